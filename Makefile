# Everything runs in .venv, which `make setup` makes here; every other target makes it when it is missing.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
SGLANG ?= fake
KEEP ?= 0
# Processes of `make test`; a file's tests stay together, since they share what they started.
WORKERS ?= 3

.PHONY: setup services demo test test-sglang lint bench assets dashboards-preview

setup: $(READY) services
	@echo "setup ok: make demo | make test | make lint | make bench | make test-sglang"

$(READY): pyproject.toml
	@bash tests/harness/setup.sh "$(PYTHON)" "$(VENV)"
	@touch "$(READY)"

services: $(READY)
	@bash tests/harness/services.sh

demo: $(READY) services
	@if [ "$(SGLANG)" = real ]; then bash tests/real_sglang/setup.sh .venv-sglang; fi
	@$(PY) -m tests.demo --sglang "$(SGLANG)" --keep "$(KEEP)"

test: $(READY) services
	@$(PY) -m pytest -m "not sglang" -n "$(WORKERS)" --dist loadfile

test-sglang: $(READY)
	@bash tests/real_sglang/setup.sh .venv-sglang
	@SGLANG_TELEMETRY_TEST_SGLANG=1 $(PY) -m pytest -m sglang tests/real_sglang

lint: $(READY)
	@$(PY) -m ruff check --quiet . && $(PY) -m ruff format --quiet --check . && $(PY) -m mypy --no-error-summary
	@$(PY) -m tests.generate --check && $(PY) -m dashboards.build --check
	@echo "lint ok"

bench: $(READY)
	@$(PY) -m tests.bench

assets: $(READY)
	@$(PY) -m tests.generate && $(PY) -m dashboards.build

# The scripted day in a real Prometheus, and every panel's query drawn: one picture a dashboard and state.
dashboards-preview: $(READY) services
	@$(PY) -m tests.dashboards.preview
