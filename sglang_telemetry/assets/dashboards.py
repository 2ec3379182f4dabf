"""Grafana dashboards as a site wants them: queries that see its own runs alone, links to its own runbooks.

They are read and written as JSON, in the form in which they lie in the repository: nothing but what was asked for
changes. Grafana replaces its variables in a query before Prometheus sees it, so that an added matcher may hold nothing
that looks like one.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sglang_telemetry.assets.error import AssetError
from sglang_telemetry.assets.matchers import Matcher
from sglang_telemetry.assets.select import TEXT, restricted

RUNBOOKS = "runbooks"
"""Name of the hidden variable that the links to runbooks begin with."""
_LOOKS_LIKE_A_VARIABLE = re.compile(r"\$|\[(?=\[)")
_VARIABLE = r"\$(?:\w+|\{[^{}]*\})"
# A variable that is a metric's name or a part of one. In the brackets of a range it is neither.
_VARIABLE_IN_NAME = re.compile(rf"[\w:]{_VARIABLE}|{_VARIABLE}\s*[{{\[]|\$\{{[^{{}}]*\}}[\w:]")
_RANGE = re.compile(r"\[[^\[\]]*\]")
_OF_ALL_SERIES = re.compile(r"\s*(?:metrics\(|label_names\(|label_values\(\s*[^\s,(){}]+\s*\))")
_NO_KIND = ("datasource", "mixed")


def edited_dashboard(file: str, text: str, *, matchers: Sequence[Matcher], runbook_base: str | None) -> str:
    """A dashboard with matchers in its queries of Prometheus and with an address before the runbooks.

    Args:
        file: Its name, for errors.
        text: Its JSON.
        matchers: For every selector of our metrics; those of ``ALERTS`` get none, since rules aggregate the labels
            of a scrape away.
        runbook_base: Address before the runbooks; None leaves the links as they are.

    Raises:
        AssetError: It has a query in a form that cannot be edited, or no place for the address.
    """
    if not matchers and runbook_base is None:
        return text
    try:
        dashboard = json.loads(text)
    except ValueError as error:
        raise AssetError(f"{file}: this is no JSON ({error}); take the file from the repository again") from None
    if matchers:
        added = _LOOKS_LIKE_A_VARIABLE.sub(lambda match: f"\\x{ord(match[0]):02x}", ",".join(map(str, matchers)))
        for where, owner, key in _queries(file, dashboard):
            owner[key] = _restricted(where, owner[key], added)
    if runbook_base is not None:
        _set_runbooks(file, dashboard, runbook_base)
    return json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"


def _restricted(where: str, query: str, added: str) -> str:
    bare = _RANGE.sub("[]", re.sub(TEXT, '""', query, flags=re.S))
    if _VARIABLE_IN_NAME.search(bare):
        raise AssetError(
            f"{where}: --select cannot see which metric a variable stands for; write the metric's name: {query}"
        )
    if _OF_ALL_SERIES.match(query):
        raise AssetError(f"{where}: --select has no selector to restrict; write label_values(METRIC, LABEL): {query}")
    return restricted(where, query, added)


def _queries(file: str, dashboard: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Where each query of a Prometheus stands: a name for errors, the object, and the key in it."""
    for panel in _panels(dashboard):
        where = f"{file}, panel {panel.get('title', '')!r}"
        for target in panel.get("targets", []):
            if "expr" in target and _asks_prometheus(where, target, panel):
                yield where, target, "expr"
    for annotation in dashboard.get("annotations", {}).get("list", []):
        where = f"{file}, annotation {annotation.get('name', '')!r}"
        if "expr" in annotation and _asks_prometheus(where, annotation):
            yield where, annotation, "expr"
    for variable in _variables(dashboard):
        where = f"{file}, variable {variable.get('name', '')!r}"
        if variable.get("type") != "query" or not _asks_prometheus(where, variable):
            continue
        if "definition" in variable:
            yield where, variable, "definition"
        owner = variable["query"] if isinstance(variable["query"], dict) else variable
        yield where, owner, "query"


def _panels(owner: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels; a collapsed row holds its own."""
    for panel in owner.get("panels", []):
        yield panel
        yield from _panels(panel)


def _variables(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard.get("templating", {}).get("list", [])
    return found


def _asks_prometheus(where: str, *owners: Mapping[str, Any]) -> bool:
    """By the first data source of these that says its kind; a query of another kind is none of ours."""
    for owner in owners:
        source = owner.get("datasource")
        kind = source.get("type") if isinstance(source, Mapping) else None
        if kind is not None and kind not in _NO_KIND:
            return bool(kind == "prometheus")
    raise AssetError(f"{where}: --select cannot see whom the query asks; write the type of its datasource")


def _set_runbooks(file: str, dashboard: Mapping[str, Any], base: str) -> None:
    for variable in _variables(dashboard):
        if variable.get("name") == RUNBOOKS and variable.get("type") == "constant":
            variable["query"] = base
            # What Grafana showed last goes first where it is written down.
            current = variable.get("current", {})
            current |= {key: base for key in ("text", "value") if key in current}
            return
    raise AssetError(f"{file}: --runbook-base needs a constant variable {RUNBOOKS!r} in the dashboard; add it")
