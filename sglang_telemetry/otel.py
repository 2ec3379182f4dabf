"""For ``opentelemetry-instrument python train.py``: engines are found and instrumented without a line of code.

OpenTelemetry's loader imports this through the entry point group ``opentelemetry_instrumentor``, and brings the package
``opentelemetry-instrumentation`` with it; nothing else here needs that package.
"""

import logging
import os
from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from sglang_telemetry.exporter.claim import serving
from sglang_telemetry.exporter.settings import traces_wanted
from sglang_telemetry.instrument.classes import ClassWatcher
from sglang_telemetry.journal.folder import default_folder
from sglang_telemetry.names import LOGGER
from sglang_telemetry.sinks.protocol import Sink
from sglang_telemetry.telemetry import Telemetry, default_sinks, instrument


class SGLangTelemetryInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments each engine (``update_policy``, and a ``base_url`` with a URL) at its first sync.

    Its class has to be made after :meth:`instrument` was called. The spans are the exporter's to send; where no
    exporter serves the journals at that moment and ``OTEL_EXPORTER_OTLP_*`` names a collector, this process sends them.
    """

    _watcher: ClassWatcher | None = None
    _handles: list[Telemetry]

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: an engine is known by its shape, not by a package."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        self._handles = []
        self._watcher = ClassWatcher(self._found)
        self._watcher.start()

    def _uninstrument(self, **kwargs: Any) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        for handle in self._handles:
            handle.uninstrument()

    def _found(self, engine: object) -> None:
        try:
            self._handles.append(instrument(engine, sinks=_sinks()))
        except Exception as error:
            logging.getLogger(LOGGER).warning("%s is not instrumented: %s", type(engine).__name__, error)


def _sinks() -> tuple[Sink, ...]:
    sinks = default_sinks()
    if not traces_wanted(os.environ) or serving(default_folder()) is not None:
        return sinks
    from sglang_telemetry.sinks.traces import TraceSink

    return (*sinks, TraceSink())
