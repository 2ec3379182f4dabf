"""Two hosts, each with its exporter and its journals: the ranks of both are in one trace, with no word between them."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.answers import BUSY, SUCCESS, Answers
from tests.harness.exporter import ExporterProcess
from tests.harness.namespaces import INTERFACE, Host, two_hosts
from tests.harness.otlp import OtlpReceiver, SyncTrace
from tests.harness.training import ended, pids, training

RANKS_A_HOST = 2
RANKS = 2 * RANKS_A_HOST


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


def test_two_hosts_one_trace(tmp_path: Path, hosts: tuple[Host, Host]) -> None:
    """A good sync and a failed one of four ranks: one trace each, of which either exporter has sent its two ranks."""
    folders = {host.name: tmp_path / host.name for host in hosts}
    journals = {name: folder / "j" for name, folder in folders.items()}
    first = hosts[0]
    with ExitStack() as stack:
        with first.inside():
            receiver = stack.enter_context(OtlpReceiver(first.address))
            server = stack.enter_context(Answers(SUCCESS, BUSY, host=first.address))
        exporters = {}
        for host in hosts:
            folders[host.name].mkdir()
            environment = receiver.environment | {
                "NO_PROXY": first.address,
                "OTEL_RESOURCE_ATTRIBUTES": f"exporter={host.name}",
            }
            exporters[host] = stack.enter_context(
                ExporterProcess(journals[host.name], environment=environment, prefix=host.prefix)
            )
        trainings = {
            host: stack.enter_context(
                training(
                    journals[host.name],
                    server.url,
                    "2",
                    str(tmp_path / "c"),
                    ranks=RANKS_A_HOST,
                    rendezvous=rendezvous(host, first),
                    prefix=host.prefix,
                    environment={"GLOO_SOCKET_IFNAME": INTERFACE, "NO_PROXY": first.address},
                )
            )
            for host in hosts
        }
        for host, process in trainings.items():
            assert ended(process, folders[host.name]) != 0
        sent = {}
        for host, exporter in exporters.items():
            with host.inside():
                sent[host.name] = exporter.wait_for_spans(processes=RANKS_A_HOST)
        spans, by_trace = receiver.spans(), receiver.traces()
    assert {name: sum(span.resource["exporter"] == name for span in spans) for name in sent} == sent
    of_host = {rank: name for name, folder in journals.items() for rank in pids(folder)}
    assert sorted(of_host.values()) == sorted([host.name for host in hosts] * RANKS_A_HOST)
    for span in spans:
        assert span.resource["host.name"] == span.resource["exporter"] == of_host[span.rank]
    traces = [SyncTrace.of(of_trace, ranks=RANKS) for of_trace in by_trace.values()]
    good, bad = sorted(traces, key=lambda trace: trace.root.start_ns)
    assert {span.status for span in good.all()} == {"UNSET"}
    causes = {rank: span.attributes["weight_sync.cause"] for rank, span in bad.ranks.items()}
    assert causes == {0: "server_busy"} | dict.fromkeys(range(1, RANKS), "peer")
    for trace in (good, bad):
        assert trace.root.resource["host.name"] == of_host[0]
        assert [span.attributes["http.request.method"] for span in trace.requests[0]] == ["POST"]
