"""Levels, exit codes, what to do first, and the JSON as a whole."""

import json

from sglang_telemetry.preflight import Check, Finding, Level, Report
from sglang_telemetry.preflight.findings import at, fail, ok, warn

GOOD = ok(Check.FOLDER, "written to")
ODD = warn(Check.CLOCK, "7 s ahead", "ask the same time server")
BAD = fail(Check.READY, "paused", "POST /continue_generation {}")


def test_levels() -> None:
    """The worst counts, and an empty report is good."""
    reports = [Report(()), Report((GOOD,)), Report((GOOD, ODD)), Report((ODD, BAD, GOOD))]
    assert [(one.level, one.exit_code, one.first) for one in reports] == [
        (Level.OK, 0, None),
        (Level.OK, 0, None),
        (Level.WARN, 1, ODD),
        (Level.FAIL, 2, BAD),
    ]


def test_json() -> None:
    """All of it, for programs."""
    report = Report((*at("/share/ckpt", [GOOD, None]), *at("10.0.0.7:30000", [ODD, BAD])))
    assert json.loads(report.to_json()) == {
        "format": 1,
        "level": "fail",
        "exit_code": 2,
        "counts": {"ok": 1, "warn": 1, "fail": 1},
        "first": {"name": "ready", "place": "10.0.0.7:30000", "fix": "POST /continue_generation {}"},
        "findings": [
            {"name": "folder", "level": "ok", "place": "/share/ckpt", "reason": "written to", "fix": ""},
            {
                "name": "clock",
                "level": "warn",
                "place": "10.0.0.7:30000",
                "reason": "7 s ahead",
                "fix": "ask the same time server",
            },
            {
                "name": "ready",
                "level": "fail",
                "place": "10.0.0.7:30000",
                "reason": "paused",
                "fix": "POST /continue_generation {}",
            },
        ],
    }
    assert json.loads(Report((GOOD,)).to_json())["first"] is None


def test_text_of_others_is_data() -> None:
    """No control characters, no secrets, one line, no book."""
    found = fail(Check.PROGRAM, "a\x1b[31m red\n\x07bell\u202e api_key=topsecret " + "x" * 9000, "")
    assert found == Finding(Check.PROGRAM, Level.FAIL, found.reason)
    assert found.reason.startswith("a red bell api_key=[redacted] xxx")
    assert len(found.reason.encode()) <= 600
