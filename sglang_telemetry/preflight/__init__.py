"""What can be known before the first sync: the server, the folder, the model, and whether both sides see the same.

The one decision: a check changes nothing that lasts. What is sent to the server only asks, unless a dry run is wanted,
and a file that is written is removed. Every finding says what was seen and one thing to do about it.
"""

from sglang_telemetry.preflight.findings import Check, Finding, Level, Report
from sglang_telemetry.preflight.release import release
from sglang_telemetry.preflight.story import run

__all__ = ["Check", "Finding", "Level", "Report", "release", "run"]
