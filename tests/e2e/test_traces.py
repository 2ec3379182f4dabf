"""From real torch ranks to a real OTLP receiver: one whole trace a sync, whoever is killed in it, and its exemplar."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sglang_telemetry.events import PhaseStarted, SyncStarted
from sglang_telemetry.exporter import snapshot
from tests.dashboards import board as dashboards
from tests.harness.answers import BUSY, SUCCESS, Answers, Held
from tests.harness.exporter import ExporterProcess
from tests.harness.otlp import OtlpReceiver, ReceivedSpan, SyncTrace
from tests.harness.processes import wait_until
from tests.harness.prometheus import Prometheus
from tests.harness.training import ROOT, ended, events, pids, records, training

RANKS = 4
OTHERS = range(1, RANKS)
POST = "POST /update_weights_from_disk"


def in_phase(journals: Path, sequence: int) -> dict[int, str]:
    """The phase that each rank is in, in that sync."""
    found: dict[int, str] = {}
    for event in events(journals):
        if isinstance(event, SyncStarted) and event.sequence == sequence:
            found[event.identity.rank] = "setup"
        elif isinstance(event, PhaseStarted) and event.sequence == sequence:
            found[event.identity.rank] = event.phase.value
    return found


def wait_for_all(journals: Path, held: Held, sequence: int) -> None:
    """Wait until the server holds rank 0's request of a sync, and the other ranks wait in broadcast."""
    expected = {0: "request"} | dict.fromkeys(OTHERS, "broadcast")
    wait_until(
        lambda: held.asked.is_set() and in_phase(journals, sequence) == expected,
        "rank 0 in request, the others in broadcast",
        timeout=60,
    )


def lines(log: Path, event: str) -> list[dict[str, object]]:
    """JSON log lines of that name."""
    found = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{") and f'"{event}"' in line]
    return [line for line in found if line["event"] == event]


@dataclass(frozen=True, slots=True)
class Trained:
    """A training of two syncs, the second of which failed, and where it is to be seen.

    Args:
        spans: All that came to the receiver.
        good: The trace of the first sync.
        bad: The trace of the second one.
        server: ``host:port`` that the weights were sent to.
        checkpoint: Folder of the checkpoint.
        sent: Headers of the second update.
        exemplars: Trace ids in a scrape in OpenMetrics, by the result of the sync.
        log: What all ranks printed.
        processes: Process id of each rank.
        run_id: Of the training.
    """

    spans: list[ReceivedSpan]
    good: SyncTrace
    bad: SyncTrace
    server: str
    sent: dict[str, str]
    exemplars: dict[str, str]
    log: Path
    processes: dict[int, int]
    run_id: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A good sync, then one that the server refuses after a while: a part of the time that the start took."""
    folder = tmp_path_factory.mktemp("trained")
    journals = folder / "j"
    began = time.monotonic()
    with OtlpReceiver() as receiver, Held(BUSY) as held, Answers(SUCCESS, held) as server:
        with ExporterProcess(journals, environment=receiver.environment) as exporter:
            with training(journals, server.url, "2", str(folder / "c"), ranks=RANKS) as process:
                wait_for_all(journals, held, 2)
                enough = time.monotonic() + (time.monotonic() - began) / 3
                wait_until(lambda: time.monotonic() > enough, "the server was slow", timeout=60)
                held.release()
                assert ended(process, folder) != 0
            sent = exporter.wait_for_spans(processes=RANKS)
            found = exporter.exemplars("weight_sync_duration_seconds_bucket")
        spans = receiver.spans()
    assert len(spans) == sent
    assert len({span.trace_id for span in spans}) == 2
    good, bad = (
        SyncTrace.of([span for span in spans if span.attributes["weight_sync.sequence"] == sequence], ranks=RANKS)
        for sequence in (1, 2)
    )
    return Trained(
        spans=spans,
        good=good,
        bad=bad,
        server=server.server,
        sent={name.lower(): value for name, value in server.requests[1][1].items()},
        exemplars={dict(labels)["result"]: trace_id for labels, trace_id in found.items()},
        log=folder / "training.log",
        processes=pids(journals),
        run_id=records(journals)[0].identity.run_id,
    )


def test_one_trace_a_sync(trained: Trained) -> None:
    """Each sync is one tree: a root, four ranks, phases that fill each rank, the request below its phase."""
    assert len(trained.good.all()) + len(trained.bad.all()) == len(trained.spans)
    assert trained.good.root.trace_id != trained.bad.root.trace_id
    for trace in (trained.good, trained.bad):  # that it is one tree was asserted when it was made
        names = {rank: {span.name for span in trace.phases[rank]} for rank in range(RANKS)}
        for rank in range(RANKS):
            assert {"weight_sync.broadcast", "weight_sync.barrier"} <= names[rank]
        assert {"weight_sync.save", "weight_sync.request"} <= names[0]
        assert not {"weight_sync.save", "weight_sync.request"} & set().union(*(names[rank] for rank in OTHERS))
        [request] = trace.requests[0]
        assert request.name == POST
        assert request.parent == trace.phase(0, "request").span_id
        assert not any(trace.requests[rank] for rank in OTHERS)
        assert not any(span.links for span in trace.all())
        assert {span.attributes["weight_sync.run_id"] for span in trace.all()} == {trained.run_id}
        assert {span.attributes["weight_sync.world_size"] for span in trace.all()} == {RANKS}


def test_a_good_sync_has_no_error(trained: Trained) -> None:
    """No span of it is an error, none is unfinished; the request says 200."""
    assert {span.status for span in trained.good.all()} == {"UNSET"}
    names = {name for span in trained.good.all() for name in span.attributes}
    assert not {"weight_sync.cause", "error.type", "weight_sync.unfinished"} & names
    assert trained.good.root.attributes["weight_sync.result"] == "success"
    assert trained.good.root.attributes["weight_sync.weights_applied"] == "yes"
    [request] = trained.good.requests[0]
    assert request.attributes["http.response.status_code"] == 200


def test_a_failed_sync_says_why(trained: Trained) -> None:
    """The request carries what OpenTelemetry's HTTP conventions ask for, the cause and the server's own words."""
    parts = urlsplit(f"//{trained.server}")
    [request] = trained.bad.requests[0]
    assert (
        request.attributes.items()
        >= {
            "http.request.method": "POST",
            "url.full": f"http://{trained.server}/update_weights_from_disk",
            "http.response.status_code": 400,
            "http.response.body.size": len(BUSY[1]),
            "server.address": parts.hostname,
            "server.port": parts.port,
            "error.type": "400",
            "weight_sync.cause": "server_busy",
            "weight_sync.weights_applied": "yes",
        }.items()
    )
    [said] = request.events
    assert said.name == "weight_sync.response"
    assert said.attributes["weight_sync.response_text"] == BUSY[1].decode()
    assert request.start_ns < said.at_ns <= request.end_ns
    phase = trained.bad.phase(0, "request")
    for span in (trained.bad.root, trained.bad.ranks[0], phase, request):
        assert span.status == "ERROR"
        assert span.attributes["error.type"] == "400"
        assert span.attributes["weight_sync.cause"] == "server_busy"
    for span in (trained.bad.root, trained.bad.ranks[0]):
        assert span.attributes["weight_sync.result"] == "failure"
        assert span.attributes["weight_sync.weights_applied"] == "yes"
    assert [span for span in trained.bad.phases[0] if span.status == "ERROR"] == [phase]
    for rank in OTHERS:  # they only heard of it
        assert trained.bad.ranks[rank].status == "ERROR"
        assert trained.bad.ranks[rank].attributes["weight_sync.cause"] == "peer"
        assert {span.status for span in trained.bad.phases[rank]} == {"UNSET"}


def test_the_wait_for_rank_0_is_seen(trained: Trained) -> None:
    """A slow server: rank 0 spends its time in request, and over the same time the others are in broadcast."""
    request = trained.bad.phase(0, "request")
    assert request.duration_ns / trained.bad.ranks[0].duration_ns > 0.5
    for rank in OTHERS:
        broadcast = trained.bad.phase(rank, "broadcast")
        assert broadcast.duration_ns / trained.bad.ranks[rank].duration_ns > 0.5
        together = min(request.end_ns, broadcast.end_ns) - max(request.start_ns, broadcast.start_ns)
        assert together / request.duration_ns > 0.5


def test_spans_name_their_process(trained: Trained) -> None:
    """The resource of a span is the trainer's process, not the exporter's."""
    assert sorted(trained.processes) == list(range(RANKS))
    for span in trained.spans:
        assert span.resource["service.name"] == "ranks"
        assert span.resource["service.instance.id"] == f"{trained.run_id}.{span.rank}"
        assert span.resource["host.name"] == socket.gethostname()
        assert span.resource["process.pid"] == trained.processes[span.rank]


def test_one_trace_id_everywhere(trained: Trained) -> None:
    """Log line, exemplar and the ``traceparent`` that the server got lead to the trace that the receiver has."""
    trace_id = trained.bad.root.trace_id
    said = lines(trained.log, "weight_sync.failed")
    assert sorted((line["rank"], line["level"]) for line in said) == [
        (0, "error"),
        *((rank, "warning") for rank in OTHERS),
    ]
    assert {line["trace_id"] for line in said} == {trace_id}
    span_ids = {line["rank"]: line["span_id"] for line in said}
    ranks = {rank: trained.bad.ranks[rank].span_id for rank in OTHERS}
    assert span_ids == {0: trained.bad.root.span_id} | ranks
    assert trained.exemplars == {"failure": trace_id, "success": trained.good.root.trace_id}
    assert trained.sent["traceparent"] == f"00-{trace_id}-{trained.bad.requests[0][0].span_id}-01"


@dataclass(frozen=True, slots=True)
class Hanging:
    """A training that hangs: rank 0 in request, the others in broadcast."""

    journals: Path
    process: subprocess.Popen[bytes]
    sequence: int

    def kill_rank_0(self) -> None:
        """SIGKILL rank 0, and wait until the training is over."""
        os.kill(pids(self.journals)[0], signal.SIGKILL)
        assert ended(self.process, self.journals.parent) != 0


@contextmanager
def hanging(tmp_path: Path, *, syncs: int = 1) -> Iterator[Hanging]:
    """A training whose last sync hangs; the syncs before it are good."""
    journals = tmp_path / "j"
    with Held(SUCCESS) as held, Answers(*[SUCCESS] * (syncs - 1), held) as server:
        with training(journals, server.url, str(syncs), str(tmp_path / "c"), ranks=RANKS) as process:
            wait_for_all(journals, held, syncs)
            yield Hanging(journals, process, syncs)


def assert_rank_0_lost(trace: SyncTrace) -> None:
    """The coordinator was killed in request; the others heard of it, or torchrun stopped them."""
    request = trace.phase(0, "request")
    assert trace.phases[0][-1] == request
    for span in (trace.root, trace.ranks[0], request):
        assert span.status == "ERROR"
        assert span.attributes["weight_sync.cause"] == "trainer_lost"
        assert span.attributes["error.type"] == "trainer_lost"
        assert span.attributes["weight_sync.unfinished"] is True
    assert trace.root.attributes["weight_sync.weights_applied"] == "unknown"
    assert [span for span in trace.phases[0] if span.attributes.get("weight_sync.unfinished")] == [request]
    assert [span for span in trace.phases[0] if span.status == "ERROR"] == [request]
    for rank in OTHERS:
        assert trace.ranks[rank].status == "ERROR"
        assert trace.ranks[rank].attributes["weight_sync.cause"] in {"peer", "trainer_lost"}
        assert "weight_sync.broadcast" in {span.name for span in trace.phases[rank]}


def test_rank_0_killed_in_request(tmp_path: Path) -> None:
    """SIGKILL of the coordinator: its root and all ranks arrive; it ends when it was last seen alive."""
    journals = tmp_path / "j"
    with OtlpReceiver() as receiver, ExporterProcess(journals, environment=receiver.environment) as exporter:
        with hanging(tmp_path) as hung:
            seen_ns = time.time_ns()
            exporter.samples()
            hung.kill_rank_0()
            over_ns = time.time_ns()
        sent = exporter.wait_for_spans(processes=RANKS)
        spans = receiver.spans()
        assert len(spans) == sent
        trace = SyncTrace.of(spans, ranks=RANKS)
        assert_rank_0_lost(trace)
        assert seen_ns <= trace.root.end_ns <= over_ns
        [request] = trace.requests[0]
        assert (request.name, request.status) == ("POST /update_weights_from_disk", "ERROR")
        assert request.attributes["weight_sync.unfinished"] is True
        assert request.attributes["weight_sync.cause"] == "trainer_lost"
        assert request.parent == trace.phase(0, "request").span_id
        assert exporter.total("weight_sync_failures_total", cause="trainer_lost") == 1.0


def test_another_rank_killed_in_barrier(tmp_path: Path) -> None:
    """SIGKILL of rank 2: its spans arrive with the open barrier marked, in the one trace with those of all others."""
    journals = tmp_path / "j"
    with OtlpReceiver() as receiver, ExporterProcess(journals, environment=receiver.environment) as exporter:
        with Answers(SUCCESS) as server:
            arguments = (server.url, "1", str(tmp_path / "c"), "2", "barrier")
            with training(journals, *arguments, ranks=RANKS) as process:
                assert ended(process, tmp_path) != 0
        exporter.wait_for_spans(processes=RANKS)
        spans = receiver.spans()
    trace = SyncTrace.of(spans, ranks=RANKS)
    barrier = trace.phase(2, "barrier")
    assert trace.phases[2][-1] == barrier
    for span in (trace.ranks[2], barrier):
        assert span.status == "ERROR"
        assert span.attributes["weight_sync.cause"] == "trainer_lost"
        assert span.attributes["weight_sync.unfinished"] is True
    assert [span for span in trace.phases[2] if span.attributes.get("weight_sync.unfinished")] == [barrier]
    for rank in (0, 1, 3):  # their barrier broke, or torchrun stopped them first
        assert trace.ranks[rank].status == "ERROR"
        assert "weight_sync.broadcast" in {span.name for span in trace.phases[rank]}


def test_an_exporter_that_starts_late(tmp_path: Path) -> None:
    """All trainers are dead when the exporter starts: both traces arrive whole, and end when the trainers did."""
    with hanging(tmp_path, syncs=2) as hung:
        hung.kill_rank_0()
        over_ns = time.time_ns()
    with OtlpReceiver() as receiver:
        assert receiver.spans() == []
        with ExporterProcess(tmp_path / "j", environment=receiver.environment):
            pass  # it is stopped at once: what it has read it sends before it ends
        traces = receiver.traces()
    assert len(traces) == 2
    good, bad = sorted(
        (SyncTrace.of(spans, ranks=RANKS) for spans in traces.values()), key=lambda trace: trace.root.start_ns
    )
    assert {span.status for span in good.all()} == {"UNSET"}
    assert len(good.requests[0]) == 1
    assert_rank_0_lost(bad)
    assert all(span.end_ns <= over_ns for span in bad.all())


@pytest.mark.parametrize("killed", ["before", "after"])
@pytest.mark.parametrize("saved", [True, False], ids=["with its state", "without its state"])
def test_an_exporter_restarted_in_a_sync(tmp_path: Path, saved: bool, killed: str) -> None:
    """The exporter is killed while a sync hangs; the next one sends it whole, the trainer killed before it or after."""
    journals = tmp_path / "j"
    with OtlpReceiver() as receiver, hanging(tmp_path, syncs=2) as hung:
        first = ExporterProcess(journals, environment=receiver.environment)
        try:
            wait_until(lambda: saved_syncs(journals) == dict.fromkeys(range(RANKS), 2), "the open sync is saved")
            before = receiver.wait_for(first.wait_for_spans(processes=0))
        finally:
            first.kill()
        if not saved:
            (journals / snapshot.FILE_NAME).unlink()
        if killed == "before":
            hung.kill_rank_0()
        with ExporterProcess(journals, environment=receiver.environment) as second:
            if killed == "after":
                hung.kill_rank_0()
            second.wait_for_spans(processes=RANKS)
        spans = receiver.spans()
    SyncTrace.of(before, ranks=RANKS)
    assert {span.attributes["weight_sync.sequence"] for span in before} == {1}
    again = [span for span in spans[len(before) :] if span.attributes["weight_sync.sequence"] == 1]
    # Without its state it reads all journals anew: a span that is sent twice is the same one.
    assert sorted(again, key=str) == ([] if saved else sorted(before, key=str))
    trace = SyncTrace.of([span for span in spans if span.attributes["weight_sync.sequence"] == 2], ranks=RANKS)
    assert_rank_0_lost(trace)


def saved_syncs(journals: Path) -> dict[int, int]:
    """Sequence of the sync that each rank is in, as the exporter's saved state has it, where rank 0 is in request."""
    if not (journals / snapshot.FILE_NAME).exists():
        return {}
    followed = [one for one in snapshot.load(journals)[1].values() if one.head is not None and one.sync is not None]
    return {
        one.sync.identity.rank: one.sync.sequence
        for one in followed
        if one.sync is not None and (one.sync.identity.rank or one.phases[-1].phase == "request")
    }


JOINING = """
import sys
import torch.distributed as dist
from opentelemetry.sdk.trace import TracerProvider
from torch.nn.parallel import DistributedDataParallel
import sglang_telemetry
from tests.harness.minimind import SavableModel, SharedFolderEngine, leave_together

dist.init_process_group("gloo")
engine = SharedFolderEngine(sys.argv[1], sys.argv[2], timeout=60)
sglang_telemetry.instrument(engine, run="ranks")
model = DistributedDataParallel(SavableModel())
if dist.get_rank() in (0, 2):
    with TracerProvider().get_tracer("caller").start_as_current_span("step") as step:
        context = step.get_span_context()
        with open(f"{sys.argv[2]}.{dist.get_rank()}", "w") as file:
            file.write(f"{context.trace_id:032x} {context.span_id:016x}")
        engine.update_policy(model)
else:
    engine.update_policy(model)
leave_together()
"""


def test_ranks_in_traces_of_their_callers(tmp_path: Path) -> None:
    """Ranks 0 and 2 have a span of their own active: theirs is below it; in the trace of all ranks one links to it."""
    journals = tmp_path / "j"
    (tmp_path / "joining.py").write_text(JOINING)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(RANKS))
    variables = {"SGLANG_TELEMETRY_DIR": str(journals), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with OtlpReceiver() as receiver, ExporterProcess(journals, environment=receiver.environment) as exporter:
        with Answers(SUCCESS) as server:
            command = [*torchrun, str(tmp_path / "joining.py"), server.url, str(tmp_path / "c")]
            done = subprocess.run(
                command, env=os.environ | variables, capture_output=True, text=True, timeout=60, check=False
            )
        assert done.returncode == 0, done.stderr
        exporter.wait_for_spans(processes=RANKS)
        traces = receiver.traces()
    callers = {rank: (tmp_path / f"c.{rank}").read_text().split() for rank in (0, 2)}
    below = {rank: traces.pop(trace_id) for rank, (trace_id, _) in callers.items()}
    [derived] = traces.values()
    [root] = [span for span in derived if span.parent is None]
    ranks = {span.rank: span for span in derived if span.name == "weight_sync.rank"}
    assert sorted(ranks) == list(range(RANKS))
    assert {span.parent for span in ranks.values()} == {root.span_id}
    phases = {span.rank for span in derived if span not in (root, *ranks.values())}
    assert phases == {1, 3}
    of_root = {span.name: span for span in below[0]}["weight_sync"]
    assert (of_root.parent, of_root.links) == (callers[0][1], ((root.trace_id, root.span_id),))
    assert root.links == ((of_root.trace_id, of_root.span_id),)
    for rank, parent in ((0, of_root.span_id), (2, callers[2][1])):
        [of_rank] = [span for span in below[rank] if span.name == "weight_sync.rank"]
        assert of_rank.parent == parent
        assert ranks[rank].links == ((of_rank.trace_id, of_rank.span_id),)
        assert {span.rank for span in below[rank]} == {rank}
    assert of_rank.links == ((root.trace_id, root.span_id),)
    assert not any(ranks[rank].links for rank in (1, 3))


def test_from_prometheus_to_the_trace(tmp_path: Path) -> None:
    """A real Prometheus keeps the exemplar of a failed sync: its trace id is the one of the trace at the receiver."""
    journals = tmp_path / "j"
    failures = 'weight_sync_duration_seconds_bucket{result="failure"}'
    with OtlpReceiver() as receiver, ExporterProcess(journals, environment=receiver.environment) as exporter:
        with Prometheus(tmp_path / "p", {"trainer": exporter.url.removeprefix("http://")}) as prometheus:
            prometheus.wait_for_target_up("trainer")
            with Answers(SUCCESS, BUSY) as server:
                with training(journals, server.url, "2", str(tmp_path / "c"), ranks=RANKS) as process:
                    assert ended(process, tmp_path) != 0
            exporter.wait_for_spans(processes=RANKS)
            wait_until(lambda: prometheus.exemplars(failures), "an exemplar is there", timeout=30)
            [found] = prometheus.exemplars(failures)
            [panel] = (one for one in dashboards.asked() if one.place == "Duration of a sync C")
            on_dashboard = prometheus.exemplars(dashboards.filled(panel))
            spans = receiver.spans()
    [shown] = found["exemplars"]
    [root] = [span for span in spans if span.name == "weight_sync" and span.status == "ERROR"]
    assert shown["labels"] == {"trace_id": root.trace_id}
    assert shown["labels"] in [one["labels"] for series in on_dashboard for one in series["exemplars"]]
    SyncTrace.of([span for span in spans if span.trace_id == root.trace_id], ranks=RANKS)
    assert round(float(shown["value"]) * 1e9) == root.duration_ns
