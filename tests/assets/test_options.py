"""Thresholds: found by their marks, set in all their places and nowhere else."""

from pathlib import Path

import pytest

from sglang_telemetry.assets.error import AssetError
from sglang_telemetry.assets.options import find_options, set_options
from tests.assets.rules import SMALL, changed_lines, promtool_accepts

ONE = {"small.yml": SMALL}


def rule(*lines: str) -> dict[str, str]:
    """A file with one alert of these lines."""
    return {"r.yml": "\n".join(["groups:", "  - rules:", "      - alert: A", "        expr: |", *lines, ""])}


def test_what_is_offered() -> None:
    """Name, default, where it is used and what for."""
    found = find_options(ONE)
    assert {name: (one.default, one.timed, one.rules, one.about) for name, one in found.items()} == {
        "delay": ("1m30s", True, ("Small",), "longer than a blip"),
        "share": ("0.5", False, ("Small",), ""),
        "window": ("15m", True, ("Small",), "longer where nobody looks"),
    }
    assert len(found["window"].places) == 4


@pytest.mark.parametrize("value", ["20m", "1200", "1200s", " 20m "])
def test_a_duration_is_set_in_all_its_forms(value: str, tmp_path: Path) -> None:
    """With a unit where one stood, as seconds where a bare number stood."""
    text = set_options(ONE, {"window": value})["small.yml"]
    assert [new.split("  # option")[0] for _, new in changed_lines(SMALL, text)][:2] == [
        "max_over_time(weight_sync_last_failure_timestamp_seconds[20m])",
        "> time() - 1200",
    ]
    assert "vector(%.0f + 1200)" in text
    assert '{{ $w := "20m" }}' in text
    assert len(changed_lines(SMALL, text)) == 4
    promtool_accepts(text, tmp_path)


def test_other_kinds(tmp_path: Path) -> None:
    """A plain number, a delay of the rule, and a delay of nothing."""
    text = set_options(ONE, {"share": "1e-1", "delay": "0"})["small.yml"]
    assert [new.split("  # option")[0] for _, new in changed_lines(SMALL, text)] == [
        "and on (run) run:weight_sync_active:max >= 1e-1",
        "for: 0s",
    ]
    promtool_accepts(text, tmp_path)


def test_seconds_by_name() -> None:
    """An option whose places are all bare takes a duration when its name says seconds."""
    rules = rule("x > 600  # option: stuck_seconds")
    assert find_options(rules)["stuck_seconds"].default == "10m"
    assert "x > 1200  #" in set_options(rules, {"stuck_seconds": "20m"})["r.yml"]


def test_two_places_on_a_line() -> None:
    """Templates have room for two; neither moves the other."""
    rules = rule("{{ 900 }}{{/* option: a_seconds */}} {{ 30 }}{{/* option: b_seconds */}}")
    text = set_options(rules, {"a_seconds": "5", "b_seconds": "1h"})["r.yml"]
    assert "{{ 5 }}{{/* option: a_seconds */}} {{ 3600 }}{{/* option: b_seconds */}}" in text


def test_a_string_is_no_number_in_promql() -> None:
    """The value of a label stays what it is."""
    with pytest.raises(AssetError, match=r"no number stands before the mark of option x"):
        find_options(rule('y{le="5"}  # option: x'))


def test_places_have_to_agree() -> None:
    """Half a change of a file is told, with the lines."""
    with pytest.raises(AssetError) as told:
        find_options(rule("x[15m]  # option: w", "> 900  # option: w", "> 600  # option: w"))
    assert str(told.value) == "the places of option w do not agree: 15m at r.yml:5, 900 at r.yml:6, 600 at r.yml:7"


@pytest.mark.parametrize(
    "mark",
    ["# option:x", "# Option: x", "# options: x", "#option: x", "# option: X", "# option: x - ", "# option: x y"],
)
def test_misspelt_mark(mark: str) -> None:
    """It would be an option that silently is none."""
    with pytest.raises(AssetError, match=r"r.yml:5: write an option as a number and"):
        find_options(rule(f"y > 5  {mark}"))


def test_unknown_option() -> None:
    """The nearest is named, and all there are."""
    with pytest.raises(AssetError) as told:
        set_options(ONE, {"windw": "5m"})
    assert str(told.value) == "--set 'windw': no such option; did you mean window? Known: delay, share, window"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("window", "soon", "'soon' is no duration"),
        ("share", "5m", "'5m' is no number"),
        ("window", "0s", "sees nothing"),
        ("share", '1) or vector(1) # "', "is no number"),
        ("window", "5m]) or x[5m", "is no duration"),
        ("window", "{{ . }}", "is no duration"),
        ("delay", "1m\n        labels: {}", "is no duration"),
    ],
)
def test_bad_value(name: str, value: str, words: str) -> None:
    """It names the option."""
    with pytest.raises(AssetError, match=f"^--set {name}: ") as told:
        set_options(ONE, {name: value})
    assert words in str(told.value)
