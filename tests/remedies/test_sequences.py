"""Random sequences of checkpoints, faults, remedies and kills, against a model of what must be true after each step."""

import os
import shutil
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import sglang_telemetry
from sglang_telemetry import Applied, Remedies, Result, Telemetry
from sglang_telemetry.checkpoint.validate import fault_of
from sglang_telemetry.testing import FakeSGLang, Fault, RecordingSink
from tests.harness.policy import Policy, policy_engine
from tests.harness.processes import wait_until
from tests.harness.remedied_ranks import Killer
from tests.testing.checkpoints import write_models

WHOLE = ("v2", "v3", "base")
BROKEN = ("truncated", "wrongshape", "missing", "noweights")
FAULTS = (
    None,
    Fault.RATE_LIMITED,
    Fault.BUSY_WEIGHTS_APPLIED,
    Fault.UPDATE_IN_PROGRESS,
    Fault.OUT_OF_MEMORY,
    Fault.STAYS_PAUSED,
    Fault.CLOSED_WITHOUT_ANSWER,
)
STEPS = ("phase:save", "validate", "publish", "serialize", "pause", "phase:request", "release")
STALE = 2

remedies = st.builds(
    Remedies,
    validate=st.booleans(),
    publish_atomically=st.booleans(),
    retry=st.booleans(),
    timeout=st.sampled_from([None, "auto"]),
    pause=st.sampled_from([None, "retract", "abort"]),
    serialize=st.booleans(),
    tag_weights=st.booleans(),
    deadline_seconds=st.just(2.2),
)


class Sequences(RuleBasedStateMachine):
    """A trainer, started again and again, and one server."""

    models: Path
    checksums: dict[str, str]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="sequences-"))
        self.server = FakeSGLang(self.models / "base")
        self.weights = "base"
        self.telemetry: Telemetry | None = None
        self.wanted = Remedies()
        self.paused_by_fault = False
        self.stale, self.synced, self.left_there = 0, False, False
        self.live_is_whole = True

    @initialize(wanted=remedies, goes_on=st.booleans())
    def begin(self, wanted: Remedies, goes_on: bool) -> None:
        """The first start."""
        self.start(wanted, goes_on)

    @rule(wanted=remedies, goes_on=st.booleans())
    def start(self, wanted: Remedies, goes_on: bool) -> None:
        """A trainer begins; one that was there has ended."""
        if self.telemetry is not None:
            self.telemetry.uninstrument()
        if goes_on:
            wanted = replace(wanted, on_failure="continue_stale", stale_syncs=STALE)
        self.wanted, self.sink = wanted, RecordingSink()
        self.engine = policy_engine(self.server.url, self.folder, timeout=10)
        self.policy = Policy(self.models)
        self.telemetry = sglang_telemetry.instrument(
            self.engine, sinks=[self.sink], remedies=wanted, inspect_checkpoints=False
        )
        self.stale, self.synced, self.left_there = 0, False, False

    @rule(content=st.sampled_from([*WHOLE, *BROKEN]), fault=st.sampled_from(FAULTS))
    def sync(self, content: str, fault: Fault | None) -> None:
        """Once, with a checkpoint that may be broken and a fault that the update may meet."""
        if not self.server.alive:
            return
        sent = len(self.server.updates)
        if fault is not None:
            self.server.inject(fault)
        self.policy.content = content
        try:
            returned: Any = self.engine.update_policy(self.policy)
        except RuntimeError:
            returned = None
        record, requests_made = self.sink.records[-1], len(self.server.updates) - sent
        pending = len(self.server.state().pending_faults)
        self.server._settings.faults.clear()
        assert requests_made <= (2 if self.wanted.retry else 1)
        if self.wanted.validate and content in BROKEN:
            assert requests_made == 0
            assert record.weights_applied is Applied.NO
        died = fault is Fault.CLOSED_WITHOUT_ANSWER and not pending
        self._check_stale(returned, record.result, died=died or not self.server.alive)
        if record.result is Result.SUCCESS:
            self.weights = "mixed" if content == "missing" and self.weights not in {"v2", "missing"} else content
        elif record.weights_applied is Applied.YES:
            self.weights = content
        if requests_made or not self.wanted.publish_atomically:
            self.live_is_whole = content in WHOLE
        if fault is Fault.STAYS_PAUSED and not pending and self.wanted.pause is None:
            self.paused_by_fault = True
        elif requests_made and self.wanted.pause is not None:
            self.paused_by_fault = False

    def _check_stale(self, returned: Any, result: Result, *, died: bool) -> None:
        """A run goes on as often as was asked for, while the server has what a sync of this start has left there.

        Args:
            returned: By the engine; None when it raised.
            result: How the sync ended.
            died: The server gave an update no answer.
        """
        if result is Result.SUCCESS:
            self.stale, self.synced, self.left_there = 0, True, True
            assert returned is True
            return
        self.stale += 1
        wanted = self.wanted.on_failure == "continue_stale" and self.stale <= STALE
        goes_on = wanted and self.synced and self.left_there and not died
        assert returned is (False if goes_on else None)

    @rule()
    def restart(self) -> None:
        """The server is started again, with its start weights."""
        self.server.kill()
        self.server.restart()
        self.weights, self.paused_by_fault, self.left_there = "base", False, False

    @rule(content=st.sampled_from(WHOLE), step=st.sampled_from(STEPS))
    def kill(self, content: str, step: str) -> None:
        """Another start of the trainer with the same remedies dies in its first sync, at some step."""
        if not self.server.alive:
            return
        assert self.telemetry is not None
        self.telemetry.uninstrument()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of the stand-in live in the parent alone
            child = os.fork()
        if not child:
            try:
                self.engine.http = requests.Session()
                sglang_telemetry.instrument(
                    self.engine, sinks=[Killer(step, 1)], remedies=self.wanted, inspect_checkpoints=False
                )
                self.policy.content = content
                self.engine.update_policy(self.policy)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        self.weights = next(
            (name for name, one in self.checksums.items() if one == self.server.state().checksum), "mixed"
        )
        live = self.folder / "checkpoint"
        if self.wanted.publish_atomically and live.exists():
            assert fault_of(live) is None or not self.live_is_whole
        self.live_is_whole = live.exists() and fault_of(live) is None
        # The next start releases and removes, with the first sync that the server takes.
        wanted = self.wanted
        self.start(replace(wanted, on_failure="raise", stale_syncs=None), False)
        self.policy.content = content
        self.engine.update_policy(self.policy)
        self.weights, self.live_is_whole, self.synced, self.left_there = content, True, True, True

    @invariant()
    def weights_are_what_the_records_say(self) -> None:
        """Never a mixture that nobody knows of, never other weights than those of the last sync that was taken."""
        if not self.server.alive:
            self.server.restart()
            self.weights, self.paused_by_fault, self.left_there = "base", False, False
        if self.weights in self.checksums:
            assert self.server.state().checksum == self.checksums[self.weights]

    @invariant()
    def nobody_is_left_paused(self) -> None:
        """But by a fault that no remedy was asked for."""
        if self.telemetry is not None and not self.paused_by_fault and self.server.alive:
            assert self.server.state().paused is None

    @invariant()
    def no_folder_is_left(self) -> None:
        """Beside that of the engine, after a start and after a good sync."""
        if self.telemetry is None or not self.wanted.publish_atomically:
            return
        # The old one is kept until the next sync when the server did not take the new one: it may be loading it.
        if not self.sink.records or self.sink.records[-1].result is Result.SUCCESS:
            wait_until(lambda: {one.name for one in self.folder.iterdir()} <= {"checkpoint"}, "nothing is left")

    @invariant()
    def the_engine_is_what_it_was(self) -> None:
        """Its folder and its client are its own again."""
        if self.telemetry is not None:
            assert self.engine.shared_ckpt_path == str(self.folder / "checkpoint")
            assert type(vars(self.engine)["http"]) is requests.Session

    def teardown(self) -> None:
        """End everything."""
        if self.telemetry is not None:
            self.telemetry.uninstrument()
        self.server.close()
        shutil.rmtree(self.folder)


@pytest.mark.timeout(300)
def test_random_sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis looks for a sequence that breaks the model."""
    monkeypatch.setenv("SGLANG_TELEMETRY_DIR", str(tmp_path / "journals"))
    Sequences.models = write_models(tmp_path / "models")
    Sequences.checksums = {}
    for name in WHOLE:
        with FakeSGLang(Sequences.models / name) as server:
            Sequences.checksums[name] = server.state().checksum
    chosen = settings(
        max_examples=60,
        stateful_step_count=10,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Sequences, settings=chosen)  # type: ignore[no-untyped-call]
