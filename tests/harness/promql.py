"""What a PromQL expression asks for: its metrics with the labels that it needs of each, read off its syntax tree."""

import re
from typing import Any

import promql_parser


def asked_for(expression: str) -> dict[str, set[str]]:
    """Metric, or the pattern of its name, to the labels that the expression matches, aggregates or joins it on.

    Raises:
        ValueError: The expression does not parse.
    """
    found: dict[str, set[str]] = {}
    _walk(promql_parser.parse(_without_comments(expression)), frozenset(), found)
    return found


def queries_in(template: str) -> list[str]:
    """The PromQL in an annotation, with something in the place of what a Go template puts in."""
    texts = re.findall(r'(?:printf|query) "((?:[^"\\]|\\.)*)"', template)
    return [
        re.sub(r"%q", '"x"', re.sub(r"%\.?\d*f", "1", text)).replace('\\"', '"') for text in texts if text != "%.0f"
    ]


def _without_comments(expression: str) -> str:
    return re.sub(r"\s+#.*$", "", expression, flags=re.M)


def _walk(node: Any, wanted: frozenset[str], found: dict[str, set[str]]) -> None:
    match type(node).__name__:
        case "VectorSelector":
            matchers = {matcher.name: matcher.value for matcher in node.matchers.matchers}
            name = node.name or matchers.pop("__name__")
            found.setdefault(name, set()).update(matchers.keys() | wanted)
        case "MatrixSelector":
            _walk(node.vector_selector, wanted, found)
        case "AggregateExpr":
            by = node.modifier is not None and node.modifier.type == promql_parser.AggModifierType.By
            _walk(node.expr, frozenset(node.modifier.labels) if by else wanted, found)
        case "BinaryExpr":
            on = node.modifier is not None and node.modifier.matching is not None
            labels = frozenset(node.modifier.matching.labels) if on and "on" in str(node.modifier.matching) else wanted
            _walk(node.lhs, labels, found)
            _walk(node.rhs, labels, found)
        case "Call":
            for one in node.args:
                _walk(one, wanted, found)
        case "ParenExpr" | "UnaryExpr" | "SubqueryExpr":
            _walk(node.expr, wanted, found)
        case _:
            return
