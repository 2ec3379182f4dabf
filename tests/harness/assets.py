"""Where the project's own assets are, which tests and the demo use as a user would."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from sglang_telemetry.names import METRICS

ALERTS = Path(__file__).parents[2] / "alerts"
RULES = tuple(sorted((ALERTS / "rules").glob("*.yml")))
ALERTMANAGER = ALERTS / "alertmanager" / "alertmanager.yml"


def rules_in(texts: Iterable[str]) -> list[dict[str, Any]]:
    """The rules of these rule files, in their order."""
    return [rule for text in texts for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def rules() -> list[dict[str, Any]]:
    """All rules of the project."""
    return rules_in(path.read_text() for path in RULES)


def alerts() -> list[dict[str, Any]]:
    """Those that alert."""
    return [rule for rule in rules() if "alert" in rule]


def recorded() -> set[str]:
    """Names of the series that the others make."""
    return {rule["record"] for rule in rules() if "record" in rule}


def samples() -> dict[str, set[str]]:
    """Every sample that the exporter may serve: its name, as a query has it, to its labels."""
    ends = {"histogram": ("_bucket", "_sum", "_count")}
    return {
        one.served_as + end: {*one.labels, *(["le"] if end == "_bucket" else [])}
        for one in METRICS
        for end in ends.get(one.kind, ("",))
    }


def impatient(folder: Path, seconds: int) -> tuple[Path, ...]:
    """Copies of the rules whose alerts all fire after so many seconds of what is written in ``for``; else unchanged."""
    folder.mkdir(parents=True, exist_ok=True)
    copies = []
    for path in RULES:
        copy = folder / path.name
        copy.write_text(re.sub(r"^( +for: )\w+", rf"\g<1>{seconds}s", path.read_text(), flags=re.M))
        copies.append(copy)
    return tuple(copies)
