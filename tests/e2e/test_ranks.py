"""Several real torch ranks over gloo: one sync, one failure, one run id, and who waits for whom while it hangs."""

from pathlib import Path

from sglang_telemetry.events import PhaseStarted, ProcessStarted, SyncStarted
from sglang_telemetry.journal.reader import SegmentReader
from tests.harness.answers import BUSY, SUCCESS, Answers, Held
from tests.harness.exporter import ExporterProcess
from tests.harness.processes import wait_until
from tests.harness.training import ended, records, training


def test_two_ranks_one_failure(tmp_path: Path) -> None:
    """A good sync and a failed one: counted once each, every rank's wait reported, one run id, one trace a sync."""
    with Answers(SUCCESS, BUSY) as server, ExporterProcess(tmp_path / "j") as exporter:
        with training(tmp_path / "j", server.url, "2", str(tmp_path / "c")) as process:
            assert ended(process, tmp_path) != 0
        labels = {"run": "ranks", "server": server.server, "transport": "disk"}
        samples = exporter.samples()
    failures = {dict(k[1])["cause"]: v for k, v in samples.items() if k[0] == "weight_sync_failures_total" and v}
    assert failures == {"server_busy": 1.0}
    for result, count in (("success", 1.0), ("failure", 1.0), ("cancelled", 0.0)):
        assert samples["weight_sync_attempts_total", frozenset((labels | {"result": result}).items())] == count
    for rank in "01":
        key = ("weight_sync_rank_wait_seconds_count", frozenset({("run", "ranks"), ("rank", rank)}))
        assert samples[key] == 2.0
    found = records(tmp_path / "j")
    assert len({record.identity.run_id for record in found}) == 1
    assert sorted((r.identity.rank, r.sequence, r.result.value, r.cause) for r in found) == [
        (0, 1, "success", None),
        (0, 2, "failure", "server_busy"),
        (1, 1, "success", None),
        (1, 2, "failure", "peer"),
    ]
    assert len({(r.sequence, r.trace_id) for r in found}) == 2
    assert all(sum(span.duration_ns for span in r.phases) == r.duration_ns for r in found)
    assert {r.identity.world_size for r in found} == {2}


def test_each_start_has_a_run_id_of_its_own(tmp_path: Path) -> None:
    """The same command twice on the same folder: the ranks of one start agree, the starts differ."""
    with Answers(SUCCESS) as server:
        for _ in range(2):
            with training(tmp_path / "j", server.url, "1", str(tmp_path / "c")) as process:
                assert ended(process, tmp_path) == 0
    ids = [record.identity.run_id for record in records(tmp_path / "j")]
    assert len(ids) == 4
    assert len(set(ids)) == 2


def test_a_hanging_sync_is_seen_while_it_hangs(tmp_path: Path) -> None:
    """Rank 0 waits for a server that does not answer: rank 1 is in broadcast, and /metrics says so meanwhile."""
    with Held(SUCCESS) as held, Answers(held) as server, ExporterProcess(tmp_path / "j") as exporter:
        with training(tmp_path / "j", server.url, "1", str(tmp_path / "c")) as process:

            def hangs() -> bool:
                return (
                    exporter.value("weight_sync_active_phase", run="ranks", rank="1", phase="broadcast") == 1.0
                    and exporter.value("weight_sync_active_phase", run="ranks", rank="0", phase="request") == 1.0
                )

            wait_until(hangs, "rank 0 in request and rank 1 in broadcast", timeout=60)
            assert exporter.value("weight_sync_active", run="ranks", rank="1") == 1.0
            page = exporter.get("/")
            held.release()
            assert ended(process, tmp_path) == 0
        assert "<b>broadcast</b>" in page
        assert exporter.value("weight_sync_active", run="ranks", rank="1") is None


def test_rank_0_killed_in_the_middle(tmp_path: Path) -> None:
    """SIGKILL of the coordinator while it saves: one failure, trainer_lost; rank 1 is not counted beside it."""
    with Answers(SUCCESS) as server, ExporterProcess(tmp_path / "j") as exporter:
        with training(tmp_path / "j", server.url, "2", str(tmp_path / "c"), "0", "save") as process:
            assert ended(process, tmp_path) != 0
        wait_until(lambda: exporter.total("weight_sync_process_exits_total") == 2.0, "both ranks are gone")
        assert exporter.total("weight_sync_failures_total", cause="trainer_lost") == 1.0
        assert exporter.total("weight_sync_failures_total") == 1.0


def test_other_rank_killed_in_the_middle(tmp_path: Path) -> None:
    """SIGKILL of rank 1 before the barrier: the coordinator's collective breaks, which is a failure by a peer."""
    with Answers(SUCCESS) as server, ExporterProcess(tmp_path / "j") as exporter:
        with training(tmp_path / "j", server.url, "2", str(tmp_path / "c"), "1", "barrier") as process:
            assert ended(process, tmp_path) != 0
        wait_until(lambda: exporter.total("weight_sync_process_exits_total") == 2.0, "both ranks are gone")
        assert exporter.total("weight_sync_process_exits_total", how="lost") >= 1.0
        causes = {
            cause for cause in ("peer", "trainer_lost") if exporter.total("weight_sync_failures_total", cause=cause)
        }
        assert len(causes) == 1  # torchrun may end rank 0 with SIGTERM before its barrier fails
        assert exporter.total("weight_sync_failures_total") == 1.0


def test_run_id_is_agreed_without_a_collective(tmp_path: Path) -> None:
    """The first event that needs the id, on a rank that is alone in its sync, does not wait for the others."""
    with Answers(SUCCESS) as server:
        with training(tmp_path / "j", server.url, "1", str(tmp_path / "c")) as process:
            assert ended(process, tmp_path) == 0
    for path in (tmp_path / "j").glob("ranks-*.jsonl"):
        reader = SegmentReader(path)
        events = list(reader.events())
        reader.close()
        started = next(event for event in events if isinstance(event, SyncStarted))
        assert isinstance(events[0], ProcessStarted)
        assert events[0].identity == started.identity
        assert not any(isinstance(e, PhaseStarted) and e.phase == "confirm" for e in events)
