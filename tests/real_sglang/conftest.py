"""The real SGLang server for those tests that are marked ``sglang``, and tiny models for it and for its stand-in."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.real_sglang.server import HERE, RealSGLang

REQUIRED = "SGLANG_TELEMETRY_TEST_SGLANG"
VENV = HERE.parents[1] / ".venv-sglang"

RealSGLangFactory = Callable[..., RealSGLang]


@pytest.fixture(scope="session")
def sglang_venv() -> Path:
    """The virtual environment with SGLang; without one the test is skipped, or fails where SGLang is required."""
    if not (VENV / ".sglang-ready").is_file():
        reason = f"no SGLang in {VENV.name}: run `make test-sglang`, or tests/real_sglang/setup.sh {VENV.name}"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return VENV


@pytest.fixture(scope="session")
def tiny_models(sglang_venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints that ``make_tiny_model.py`` makes, ``base`` among them; not to be changed."""
    folder = tmp_path_factory.mktemp("sglang") / "models"
    command = [sglang_venv / "bin" / "python", HERE / "make_tiny_model.py", folder]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert made.returncode == 0, made.stdout
    return folder


@pytest.fixture(scope="session")
def real_sglang(sglang_venv: Path, tiny_models: Path) -> Iterator[RealSGLangFactory]:
    """Starts real servers: ``real_sglang()`` or ``real_sglang(flags=[...], environment={...})``, one for each of these.

    They are ended with the session. A server that was asked for before is given again, started anew if it died
    meanwhile. Its weights are those that the test before left behind.
    """
    servers: dict[tuple[tuple[str, ...], frozenset[tuple[str, str]]], RealSGLang] = {}

    with ExitStack() as stack:

        def start(flags: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> RealSGLang:
            key = (tuple(flags), frozenset((environment or {}).items()))
            if key not in servers:
                server = RealSGLang(sglang_venv, tiny_models / "base", flags=flags, environment=environment)
                servers[key] = stack.enter_context(server)
            elif not servers[key].alive:
                servers[key].restart()
            return servers[key]

        yield start
