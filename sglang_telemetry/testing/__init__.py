"""For users' own tests: a clock to set, sinks that remember, and an SGLang server that fails as it is told to."""

from sglang_telemetry.testing.doubles import ManualClock, RecordingSink
from sglang_telemetry.testing.fake_faults import Fault
from sglang_telemetry.testing.fake_sglang import FakeSGLang, ServerState
from sglang_telemetry.testing.traces import RecordedTraces, SyncTrace, traces_of

__all__ = [
    "FakeSGLang",
    "Fault",
    "ManualClock",
    "RecordedTraces",
    "RecordingSink",
    "ServerState",
    "SyncTrace",
    "traces_of",
]
