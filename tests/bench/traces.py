"""Traces through the exporter: how many spans a second, and how much memory while the collector is down."""

import json
import socket
import time
from pathlib import Path

from opentelemetry.test._otlp_test_server import OtlpProtoTestServer

from sglang_telemetry.events import Identity, PhaseSpan, PhaseStarted, ProcessStarted, SyncRecord, SyncStarted, Target
from sglang_telemetry.names import Phase, Result
from sglang_telemetry.sinks.journal import JournalSink
from sglang_telemetry.spans import spans_of
from sglang_telemetry.trace_ids import root_span_id, trace_id
from tests.harness.exporter import ExporterProcess
from tests.harness.processes import free_port, wait_until

_PHASES = (Phase.SETUP, Phase.STATE_DICT, Phase.SAVE, Phase.REQUEST, Phase.OTHER, Phase.BROADCAST, Phase.BARRIER)
_TARGET = Target(server="127.0.0.1:30000", timeout_seconds=120.0)


class Trainer:
    """Writes the journal of a trainer that only ever syncs."""

    def __init__(self, folder: Path) -> None:
        self._identity = Identity(run="bench", run_id="a" * 32, rank=0, world_size=1, host="h", pid=1)
        self._sink = JournalSink(folder)
        self._sink.emit(ProcessStarted(identity=self._identity, at=1.8e9, target=_TARGET, coordinator=True))
        self._sequence = 0

    def sync(self, count: int) -> int:
        """Write that many syncs; the number of their spans."""
        spans = 0
        for _ in range(count):
            self._sequence += 1
            record = self._record()
            self._sink.emit(
                SyncStarted(
                    identity=self._identity,
                    sequence=self._sequence,
                    at=record.started_at,
                    coordinator=True,
                    trace_id=record.trace_id,
                    target=_TARGET,
                )
            )
            for span in record.phases[1:]:
                self._sink.emit(
                    PhaseStarted(
                        identity=self._identity, sequence=self._sequence, phase=span.phase, offset_ns=span.offset_ns
                    )
                )
            self._sink.emit(record)
            spans += len(spans_of(record))
        return spans

    def close(self) -> None:
        """The trainer is gone."""
        self._sink.close()

    def _record(self) -> SyncRecord:
        phases = tuple(PhaseSpan(phase=p, offset_ns=n * 10**7, duration_ns=10**7) for n, p in enumerate(_PHASES))
        return SyncRecord(
            identity=self._identity,
            sequence=self._sequence,
            started_at=1.8e9 + self._sequence * 10,
            duration_ns=len(phases) * 10**7,
            phases=phases,
            result=Result.SUCCESS,
            coordinator=True,
            trace_id=trace_id(self._identity, self._sequence),
            span_id=root_span_id(self._identity, self._sequence),
            target=_TARGET,
        )


def state(exporter: ExporterProcess) -> dict[str, int]:
    """How many spans were sent, wait and were dropped."""
    found: dict[str, int] = json.loads(exporter.get("/healthz"))["traces"]
    return found


def memory_mib(exporter: ExporterProcess) -> float:
    """Resident memory."""
    status = Path(f"/proc/{exporter.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def throughput(folder: Path, syncs: int) -> float:
    """Spans a second from the journal to a real receiver on the same machine."""
    with OtlpProtoTestServer() as collector:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}"}
        with ExporterProcess(folder, environment=environment) as exporter:
            trainer = Trainer(folder)
            begin = time.perf_counter()
            spans = trainer.sync(syncs)
            wait_until(lambda: sum(state(exporter)[n] for n in ("sent", "dropped")) >= spans, "all spans sent", 120)
            took = time.perf_counter() - begin
            trainer.close()
            assert state(exporter)["dropped"] == 0
    return spans / took


def down(folder: Path, syncs: int) -> tuple[float, float, dict[str, int]]:
    """MiB of an exporter whose collector is down after a quarter of the syncs and after all, and its queue's state."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    with ExporterProcess(folder, environment=environment) as exporter:
        trainer = Trainer(folder)
        sizes, spans = [], 0
        for part in (syncs // 4, syncs - syncs // 4):
            spans += trainer.sync(part)

            def read(given: int = spans) -> bool:
                now = state(exporter)
                return now["waiting"] + now["dropped"] + now["sent"] >= given

            wait_until(read, "the journal read", 120)
            sizes.append(memory_mib(exporter))
        trainer.close()
        return sizes[0], sizes[1], state(exporter)


def end_of(folder: Path) -> float:
    """Seconds from SIGTERM to the end of an exporter whose collector takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{hole.getsockname()[1]}"}
        exporter = ExporterProcess(folder, environment=environment)
        trainer = Trainer(folder)
        trainer.sync(2_000)
        trainer.close()
        wait_until(lambda: state(exporter)["waiting"], "spans on their way")
        begin = time.perf_counter()
        exporter.close()
        return time.perf_counter() - begin
