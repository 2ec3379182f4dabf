"""The dashboards' JSON as the tests read it: as files, the way Grafana gets them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.dashboards.preview.interpolate import ALL, Chosen, interpolated

Json = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "dashboards"
BOARDS: dict[str, Json] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
EVERYTHING: Chosen = {"run": ALL, "server": ALL, "rank": ALL}


class Asked(NamedTuple):
    """One PromQL expression of a dashboard: in a panel, in a variable, or of an annotation."""

    board: str
    place: str
    expr: str


def panels(board: Json) -> Iterator[Json]:
    """All panels, also those in collapsed rows, without the rows."""
    for one in board["panels"]:
        if one["type"] == "row":
            yield from one["panels"]
        else:
            yield one


def asked() -> list[Asked]:
    """Everything that a Prometheus is asked."""
    found = []
    for uid, board in BOARDS.items():
        for one in panels(board):
            for target in one["targets"]:
                if target["datasource"]["type"] == "prometheus":
                    found.append(Asked(uid, f"{one['title']} {target['refId']}", target["expr"]))
        for variable in board["templating"]["list"]:
            match = re.fullmatch(r"label_values\((.+), \w+\)", variable.get("definition", ""))
            if variable["type"] == "query":
                assert match, variable["definition"]
                found.append(Asked(uid, f"${variable['name']}", match[1]))
        found += [Asked(uid, one["name"], one["expr"]) for one in board["annotations"]["list"]]
    return found


def filled(one: Asked, start: float = 0.0, end: float = 3600.0, chosen: Chosen = EVERYTHING) -> str:
    """An expression with values in the place of its variables."""
    return interpolated(one.expr, BOARDS[one.board], chosen, start, end, step=60.0)
