"""For users' own tests: a clock to set, a sink that remembers, and an SGLang server that fails as it is told to."""

from sglang_telemetry.testing.doubles import ManualClock, RecordingSink
from sglang_telemetry.testing.fake_faults import Fault
from sglang_telemetry.testing.fake_sglang import FakeSGLang, ServerState

__all__ = ["FakeSGLang", "Fault", "ManualClock", "RecordingSink", "ServerState"]
