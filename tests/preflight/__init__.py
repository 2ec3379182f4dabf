"""What is known before the first sync."""

from sglang_telemetry.testing import FakeSGLang
from sglang_telemetry.testing.fake_state import Request


def posted(server: FakeSGLang) -> list[Request]:
    """The updates that were sent to a server, and not only asked about."""
    return [one for one in server.updates if one.method == "POST"]
