"""Monitoring for SGLang weight syncs in RL training."""

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import (
    Checkpoint,
    EnginePrint,
    Event,
    Exchange,
    Identity,
    PhaseSpan,
    PhaseStarted,
    ProcessEnded,
    ProcessStarted,
    RequestRecord,
    SyncRecord,
    SyncStarted,
    Target,
    TelemetryError,
)
from sglang_telemetry.names import Applied, Component, Exit, Phase, Result, Transport
from sglang_telemetry.sinks.journal import JournalSink
from sglang_telemetry.sinks.log import LogSink
from sglang_telemetry.sinks.protocol import Sink
from sglang_telemetry.telemetry import EditedSync, Telemetry, instrument

__all__ = [
    "Applied",
    "Checkpoint",
    "Component",
    "EditedSync",
    "EnginePrint",
    "Event",
    "Exchange",
    "Exit",
    "FailureCause",
    "Identity",
    "JournalSink",
    "LogSink",
    "Phase",
    "PhaseSpan",
    "PhaseStarted",
    "ProcessEnded",
    "ProcessStarted",
    "RequestRecord",
    "Result",
    "Sink",
    "SyncRecord",
    "SyncStarted",
    "Target",
    "Telemetry",
    "TelemetryError",
    "Transport",
    "instrument",
]
