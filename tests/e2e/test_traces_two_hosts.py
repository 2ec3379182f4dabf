"""Two hosts, each with its exporter and its journals: the ranks of both are in one trace, with no word between them."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sglang_telemetry.events import PhaseStarted
from tests.harness.answers import BUSY, SUCCESS, Answers, Held
from tests.harness.exporter import ExporterProcess
from tests.harness.namespaces import INTERFACE, Host, two_hosts
from tests.harness.otlp import OtlpReceiver, SyncTrace
from tests.harness.processes import wait_until
from tests.harness.training import ended, events, pids, training

RANKS_A_HOST = 2
RANKS = 2 * RANKS_A_HOST
OTHERS = range(1, RANKS)


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts on a cable."""
    with two_hosts() as both:
        yield both


def rendezvous(mine: Host, first: Host) -> tuple[str, ...]:
    """torchrun's options of a training over both hosts, which meet at the first one."""
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{first.address}:29400", "--rdzv-id", first.name)
    here = ("--rdzv-conf", f"is_host={'true' if mine == first else 'false'}", "--local-addr", mine.address)
    return ("--nnodes", "2", *where, *here)


def trained(
    tmp_path: Path,
    hosts: tuple[Host, Host],
    *answers: tuple[int, bytes] | Held,
    arguments: tuple[str, ...] = (),
    meanwhile: Callable[[dict[int, int]], object] | None = None,
) -> list[SyncTrace]:
    """Train over both hosts until the training fails; the trace of each sync, which both exporters have sent in parts.

    Each span comes once, from the exporter of its rank's own host.

    Args:
        tmp_path: Takes everything.
        hosts: Which they are.
        answers: Of the server, one a sync.
        arguments: More of ``ranks.py``.
        meanwhile: Called once all ranks are in the last sync and rank 0 is in its request, with the pid of each rank.
    """
    journals = {host: tmp_path / host.name / "j" for host in hosts}
    first = hosts[0]
    with ExitStack() as stack:
        with first.inside():
            receiver = stack.enter_context(OtlpReceiver(first.address))
            server = stack.enter_context(Answers(*answers, host=first.address))
        exporters = {}
        for host in hosts:
            journals[host].parent.mkdir()
            environment = receiver.environment | {
                "NO_PROXY": first.address,
                "OTEL_RESOURCE_ATTRIBUTES": f"exporter={host.name}",
            }
            exporters[host] = stack.enter_context(
                ExporterProcess(journals[host], environment=environment, prefix=host.prefix)
            )
        trainings = {
            host: stack.enter_context(
                training(
                    journals[host],
                    server.url,
                    str(len(answers)),
                    str(tmp_path / "c"),
                    *arguments,
                    ranks=RANKS_A_HOST,
                    rendezvous=rendezvous(host, first),
                    prefix=host.prefix,
                    environment={"GLOO_SOCKET_IFNAME": INTERFACE, "NO_PROXY": first.address},
                )
            )
            for host in hosts
        }
        if meanwhile is not None:
            wait_until(lambda: waiting(journals.values(), len(answers)), "all ranks wait for the server", timeout=60)
            meanwhile({rank: pid for folder in journals.values() for rank, pid in pids(folder).items()})
        for host, process in trainings.items():
            assert ended(process, journals[host].parent) != 0
        sent = {}
        for host, exporter in exporters.items():
            with host.inside():
                sent[host.name] = exporter.wait_for_spans(processes=RANKS_A_HOST)
        spans, by_trace = receiver.spans(), receiver.traces()
    assert {name: sum(span.resource["exporter"] == name for span in spans) for name in sent} == sent
    of_host = {rank: host.name for host, folder in journals.items() for rank in pids(folder)}
    assert sorted(of_host.values()) == sorted([host.name for host in hosts] * RANKS_A_HOST)
    for span in spans:
        assert span.resource["host.name"] == span.resource["exporter"] == of_host[span.rank]
    traces = [SyncTrace.of(of_trace, ranks=RANKS) for of_trace in by_trace.values()]
    assert len(traces) == len(answers)
    for trace in traces:
        assert trace.root.resource["host.name"] == of_host[0]
        assert [span.attributes["http.request.method"] for span in trace.requests[0]] == ["POST"]
    return sorted(traces, key=lambda trace: trace.root.start_ns)


def waiting(journals: Iterable[Path], sequence: int) -> bool:
    """Is rank 0 in the request of that sync, and are all others in its broadcast?"""
    inside = {
        event.identity.rank: event.phase.value
        for folder in journals
        for event in events(folder)
        if isinstance(event, PhaseStarted) and event.sequence == sequence
    }
    return inside == {0: "request"} | dict.fromkeys(OTHERS, "broadcast")


def assert_waited(trace: SyncTrace) -> None:
    """Ranks of both hosts were in broadcast while rank 0 was in request; durations, since hosts' clocks may differ."""
    request = trace.phase(0, "request")
    for rank in OTHERS:
        assert trace.phase(rank, "broadcast").duration_ns > request.duration_ns / 2


def test_two_hosts_one_trace(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """A good sync and a failed one of four ranks: one trace each, of which either exporter has sent its two ranks."""
    with Held(BUSY) as slow:

        def let_wait(_: dict[int, int]) -> None:
            enough = time.monotonic() + 1.0
            wait_until(lambda: time.monotonic() > enough, "the server was slow")
            slow.release()

        good, bad = trained(tmp_path, hosts, SUCCESS, slow, meanwhile=let_wait)
    assert {span.status for span in good.all()} == {"UNSET"}
    causes = {rank: span.attributes["weight_sync.cause"] for rank, span in bad.ranks.items()}
    assert causes == {0: "server_busy"} | dict.fromkeys(OTHERS, "peer")
    assert bad.phase(0, "request").duration_ns > 1.0e9
    assert_waited(bad)


def test_rank_0_killed_in_request(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """SIGKILL of the coordinator: what its host's exporter says of it is one tree with the other host's ranks."""
    with Held(SUCCESS) as held:
        [trace] = trained(tmp_path, hosts, held, meanwhile=lambda pids: os.kill(pids[0], signal.SIGKILL))
    assert_lost(trace, 0, "request")
    assert trace.root.attributes["weight_sync.cause"] == "trainer_lost"
    [request] = trace.requests[0]
    assert request.attributes["weight_sync.unfinished"] is True
    for rank in OTHERS:
        assert trace.ranks[rank].status == "ERROR"
        assert "weight_sync.broadcast" in {span.name for span in trace.phases[rank]}


def test_another_rank_killed_in_barrier(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """SIGKILL of rank 2: the root is of another process, and where rank 2 is on the other host, of another exporter."""
    [trace] = trained(tmp_path, hosts, SUCCESS, arguments=("2", "barrier"))
    assert_lost(trace, 2, "barrier")
    assert {span.status for span in trace.ranks.values()} == {"ERROR"}


def assert_lost(trace: SyncTrace, rank: int, phase: str) -> None:
    """That rank was killed in that phase, which is its last one and never ended."""
    opened = trace.phase(rank, phase)
    assert trace.phases[rank][-1] == opened
    for span in (trace.ranks[rank], opened):
        assert span.status == "ERROR"
        assert span.attributes["weight_sync.cause"] == "trainer_lost"
        assert span.attributes["weight_sync.unfinished"] is True
    assert [span for span in trace.phases[rank] if span.attributes.get("weight_sync.unfinished")] == [opened]
