"""Monitoring for SGLang weight syncs in RL training."""

from sglang_telemetry.causes import FailureCause
from sglang_telemetry.events import (
    Checkpoint,
    CheckpointInspected,
    EnginePrint,
    Event,
    Exchange,
    Identity,
    PhaseSpan,
    PhaseStarted,
    ProcessEnded,
    ProcessStarted,
    Remedied,
    Remedy,
    RequestRecord,
    RolloutsSeen,
    SyncRecord,
    SyncStarted,
    Target,
    TelemetryError,
)
from sglang_telemetry.names import Action, Applied, Component, Exit, Outcome, Phase, Policy, Result, Transport
from sglang_telemetry.remedies.options import Remedies
from sglang_telemetry.sinks.journal import JournalSink
from sglang_telemetry.sinks.log import LogSink
from sglang_telemetry.sinks.protocol import Sink
from sglang_telemetry.telemetry import EditedSync, Telemetry, instrument

__all__ = [
    "Action",
    "Applied",
    "Checkpoint",
    "CheckpointInspected",
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
    "Outcome",
    "Phase",
    "PhaseSpan",
    "PhaseStarted",
    "Policy",
    "ProcessEnded",
    "ProcessStarted",
    "Remedied",
    "Remedies",
    "Remedy",
    "RequestRecord",
    "Result",
    "RolloutsSeen",
    "Sink",
    "SyncRecord",
    "SyncStarted",
    "Target",
    "Telemetry",
    "TelemetryError",
    "Transport",
    "instrument",
]
