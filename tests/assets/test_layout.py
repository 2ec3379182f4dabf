"""Where the values of a rule file lie."""

from sglang_telemetry.assets.layout import edited, spans
from tests.assets.rules import SMALL


def values(key: str, text: str = SMALL) -> list[str]:
    """Text of each value."""
    return [text[one.start : one.end] for one in spans(text, key)]


def test_values_end_where_the_next_key_begins() -> None:
    """One line, a block, and a block at the end of the file."""
    plain, block, last = values("expr")
    assert plain == ' max by (run) (weight_sync_active{rank="0"})\n'
    assert block.startswith(" |\n          max by (run) (\n")
    assert block.endswith("* 0)\n")
    assert last == " vector(1)\n"
    assert values("annotations")[-1].endswith("dashboard_url: *link\n")


def test_text_that_looks_like_a_key() -> None:
    """It is part of the value it stands in."""
    assert values("expr", "a:\n  expr: |\n    x\n    # expr: y\n\n    expr: z\n  b: 1\n") == [
        " |\n    x\n    # expr: y\n\n    expr: z\n"
    ]


def test_no_line_at_the_end() -> None:
    """A file need not end with a line's end."""
    assert values("expr", "expr: x") == [" x"]


def test_edited() -> None:
    """Pieces are replaced where they were, in any order."""
    assert edited("abcdef", [(4, 5, "E"), (0, 1, "AA"), (2, 2, "-")]) == "AAb-cdEf"
