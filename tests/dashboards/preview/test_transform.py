"""Transformations and overrides make of answers what Grafana makes of them."""

from typing import Any

import pytest

from tests.dashboards.preview.config import configure, show
from tests.dashboards.preview.frames import Frame, bucket_frames, series_frames, table_frame
from tests.dashboards.preview.transform import transformed


def series(value: float, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [100.0, str(value)]}


def table(ref: str, *rows: dict[str, Any]) -> Frame:
    return table_frame(ref, rows, 100.0, alone=False)


def rows_of(frame: Frame) -> list[dict[str, Any]]:
    return [{field.title: field.values[row] for field in frame.fields} for row in range(frame.rows)]


def test_merge_makes_one_row_of_what_belongs_together() -> None:
    frames = [table("A", series(1, run="x"), series(2, run="y")), table("B", series(3, run="y"), series(4, run="z"))]
    (merged,) = transformed(frames, [{"id": "merge"}])
    assert rows_of(merged) == [
        {"Time": 100.0, "run": "x", "Value #A": 1.0, "Value #B": None},
        {"Time": 100.0, "run": "y", "Value #A": 2.0, "Value #B": 3.0},
        {"Time": 100.0, "run": "z", "Value #A": None, "Value #B": 4.0},
    ]


def test_organize_leaves_out_orders_and_renames() -> None:
    options = {
        "excludeByName": {"Time": True},
        "indexByName": {"Value #A": 0, "run": 1},
        "renameByName": {"Value #A": "Age"},
    }
    (frame,) = transformed([table("A", series(1, run="x"))], [{"id": "organize", "options": options}])
    assert [field.title for field in frame.fields] == ["Age", "run"]


def test_join_puts_columns_side_by_side_and_numbers_those_of_the_same_name() -> None:
    frames = [table("A", series(1, run="x")), table("B", series(2, run="x"), series(3, run="y"))]
    (frame,) = transformed(frames, [{"id": "joinByField", "options": {"byField": "run", "mode": "outer"}}])
    assert [field.title for field in frame.fields] == ["run", "Time 1", "Value #A", "Time 2", "Value #B"]
    assert [row["Value #A"] for row in rows_of(frame)] == [1.0, None]


def test_sort_and_limit() -> None:
    steps = [
        {"id": "sortBy", "options": {"sort": [{"field": "Value #A", "desc": True}]}},
        {"id": "limit", "options": {"limitField": 2}},
    ]
    (frame,) = transformed([table("A", series(1, run="x"), series(3, run="y"), series(2, run="z"))], steps)
    assert [row["run"] for row in rows_of(frame)] == ["y", "z"]


def test_filter_keeps_fields_by_name_or_pattern() -> None:
    options = {"include": {"names": ["run"], "pattern": "^Value"}}
    (frame,) = transformed([table("A", series(1, run="x"))], [{"id": "filterFieldsByName", "options": options}])
    assert [field.title for field in frame.fields] == ["run", "Value #A"]


def test_an_unknown_transformation_is_an_error() -> None:
    with pytest.raises(ValueError, match="pivot"):
        transformed([table("A", series(1))], [{"id": "pivot"}])


def test_the_legend_is_the_format_or_what_tells_series_apart() -> None:
    result = [series(1, run="x", job="rl"), series(2, run="y", job="rl")]
    named = [frame.fields[1].title for frame in series_frames("A", "{{run}} of {{job}}", result, [100.0])]
    assert named == ["x of rl", "y of rl"]
    assert [frame.fields[1].title for frame in series_frames("A", "__auto", result, [100.0])] == ["x", "y"]


def test_a_step_without_a_sample_is_a_gap() -> None:
    (frame,) = series_frames("A", "", [{"metric": {}, "values": [[15, "1"], [45, "NaN"]]}], [15.0, 30.0, 45.0])
    assert frame.fields[1].values == [1.0, None, None]


def test_buckets_have_what_is_in_them_alone() -> None:
    result = [series(5, le="+Inf"), series(2, le="10"), series(4, le="60")]
    buckets = bucket_frames(series_frames("A", "", result, [100.0]))
    assert [(frame.fields[1].title, frame.fields[1].values) for frame in buckets] == [
        ("10", [2.0]),
        ("60", [2.0]),
        ("+Inf", [1.0]),
    ]


def test_overrides_reach_the_fields_that_they_match_only() -> None:
    frames = [*series_frames("A", "one", [series(1)], [100.0]), *series_frames("B", "two", [series(2)], [100.0])]
    overrides = [
        {"matcher": {"id": "byFrameRefID", "options": "A"}, "properties": [{"id": "unit", "value": "s"}]},
        {"matcher": {"id": "byName", "options": "two"}, "properties": [{"id": "custom.lineWidth", "value": 3}]},
        {"matcher": {"id": "byRegexp", "options": "/^t/"}, "properties": [{"id": "displayName", "value": "second"}]},
    ]
    configure(frames, {"defaults": {"unit": "short"}, "overrides": overrides})
    assert [frame.fields[1].config["unit"] for frame in frames] == ["s", "short"]
    assert frames[1].fields[1].custom == {"lineWidth": 3}
    assert frames[1].fields[1].title == "second"


@pytest.mark.parametrize(
    ("value", "text", "colour"),
    [
        (1.0, "up", "#0000ff"),
        (7.0, "some", "#e02f44"),
        (None, "nobody", "#808080"),
        (20.0, "20 s", "#f2495c"),
        (12.0, "12 s", "#73bf69"),
    ],
)
def test_mappings_and_thresholds_say_text_and_colour(value: float | None, text: str, colour: str) -> None:
    config = {
        "unit": "s",
        "thresholds": {"mode": "absolute", "steps": [{"color": "green", "value": None}, {"color": "red", "value": 15}]},
        "mappings": [
            {"type": "value", "options": {"1": {"text": "up", "color": "#0000ff"}}},
            {"type": "range", "options": {"from": 5, "to": 9, "result": {"text": "some", "color": "semi-dark-red"}}},
            {"type": "special", "options": {"match": "null", "result": {"text": "nobody", "color": "#808080"}}},
        ],
    }
    assert show(value, config, now=0.0)[:2] == (text, colour)
