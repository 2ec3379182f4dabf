"""What a user needs to assert on the traces of his own engine, on engines of ours."""

from pathlib import Path

import pytest

import sglang_telemetry
from sglang_telemetry.names import Action, Attribute, Phase
from sglang_telemetry.sinks.journal import JournalSink
from sglang_telemetry.testing import FakeSGLang, Fault, ManualClock, RecordedTraces, SyncTrace, traces_of
from sglang_telemetry.trace_ids import trace_id
from tests.harness.minimind import SavableModel, SharedFolderEngine
from tests.sinks import failed, remedy, who
from tests.testing.checkpoints import write_models


class Rolling(SharedFolderEngine):
    """An engine that generates too."""

    def rollout(self) -> int:
        """One short answer."""
        body = {"text": "1 2 3", "sampling_params": {"max_new_tokens": 2}}
        return int(self.http.post(f"{self.base_url}/generate", json=body, timeout=10).status_code)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder that the fake server starts with."""
    return write_models(tmp_path_factory.mktemp("models")) / "base"


def test_a_sync_and_a_rollout(tmp_path: Path, model: Path) -> None:
    """Complete, with its request below the request phase; the rollout in a trace of its own that links to the sync."""
    traces = RecordedTraces()
    with FakeSGLang(model, faults=[Fault.SERVICE_UNAVAILABLE]) as server:
        engine = Rolling(server.url, str(tmp_path / "checkpoint"))
        with sglang_telemetry.instrument(engine, sinks=[traces]):
            with pytest.raises(RuntimeError):
                engine.update_policy(SavableModel())
            assert engine.rollout() == 200
    trace = traces.sync()
    trace.assert_complete(ranks=1)
    [request] = trace.requests()
    assert request.name == "POST /update_weights_from_disk"
    assert request.parent_span_id == trace.phase(Phase.REQUEST).span_id
    assert (trace.root.error, trace.rank().error) == (request.attributes[Attribute.CAUSE],) * 2
    [rollout] = traces.rollouts
    assert rollout.name == "POST /generate"
    assert rollout.links == ((trace.root.trace_id, trace.root.span_id),)
    assert rollout.trace_id != trace.root.trace_id


def test_requests_and_remedies_are_told_apart() -> None:
    """Both lie below phases: what was sent, and what was done about it."""
    traces = RecordedTraces()
    traces.emit(failed(who(), trace_id=trace_id(who(), 1), remedies=(remedy(Action.VALIDATE), remedy(Action.FLUSH))))
    trace = traces.sync()
    assert [one.name for one in trace.remedies()] == ["weight_sync.remedy.validate", "weight_sync.remedy.flush"]
    assert [one.name for one in trace.requests()] == ["POST /update_weights_from_disk"]


def test_phases_that_a_trainer_reports_itself() -> None:
    """Each sync by its sequence, default the last; a phase that was never entered is said by name."""
    clock, traces = ManualClock(), RecordedTraces()
    with sglang_telemetry.Telemetry(run="r", sinks=[traces], clock=clock) as telemetry:
        for seconds in (1.0, 2.0):
            with telemetry.sync() as sync, sync.phase("save"):
                clock.advance(seconds)
    assert traces.sequences == [1, 2]
    assert [traces.sync(n).phase("save").duration_ns for n in (1, 2, None)] == [10**9, 2 * 10**9, 2 * 10**9]
    with pytest.raises(AssertionError, match="rank 0 was never in barrier"):
        traces.sync().phase("barrier")
    with pytest.raises(AssertionError, match="no span of rank 3"):
        traces.sync().rank(3)
    with pytest.raises(AssertionError, match=r"sync 9 has not ended; those that have: \[1, 2\]"):
        traces.sync(9)


def test_journals_of_several_ranks(tmp_path: Path) -> None:
    """One trace of all of them; a rank too few is found."""
    clock = ManualClock()
    for rank in range(3):
        telemetry = sglang_telemetry.Telemetry(
            run="r", run_id="x", rank=rank, world_size=3, sinks=[JournalSink(tmp_path)], clock=clock
        )
        with telemetry, telemetry.sync() as sync, sync.phase("barrier"):
            clock.advance(0.5)
    trace = traces_of(tmp_path).sync()
    trace.assert_complete(ranks=3)
    assert {span.trace_id for span in trace.spans} == {trace.root.trace_id}
    with pytest.raises(AssertionError, match=r"spans of ranks \[0, 1, 2\], expected 4 ranks"):
        trace.assert_complete(ranks=4)
    without = SyncTrace(span for span in trace.spans if span.name != "weight_sync.barrier")
    with pytest.raises(AssertionError, match="rank 0: phases take"):
        without.assert_complete(ranks=3)
