"""Transformations of a panel, applied to its frames.

The one decision: only those that our dashboards may use are known; another one is an error.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from tests.dashboards.preview.frames import Field, Frame
from tests.dashboards.preview.interpolate import Json


def transformed(frames: Sequence[Frame], transformations: Sequence[Json]) -> list[Frame]:
    """The frames after all transformations of a panel.

    Raises:
        ValueError: There is one that the preview does not know.
    """
    done = list(frames)
    for transformation in transformations:
        if transformation.get("disabled"):
            continue
        step = _STEPS.get(transformation["id"])
        if step is None:
            raise ValueError(f"transformation {transformation['id']!r} is not known to the preview")
        done = step([frame for frame in done if frame.fields], transformation.get("options", {}))
    return done


def _merge(frames: list[Frame], options: Json) -> list[Frame]:
    """One row for all rows that say the same in the columns that every frame has."""
    if len(frames) < 2:
        return frames
    fields: dict[str, Field] = {}
    for frame in frames:
        for field in frame.fields:
            fields.setdefault(field.title, field)
    keys = [name for name in fields if all(any(f.title == name for f in frame.fields) for frame in frames)]
    rows: list[dict[str, Any]] = []
    for frame in frames:
        for index in range(frame.rows):
            row = {field.title: field.values[index] for field in frame.fields}
            same = (one for one in rows if all(one[key] == row[key] for key in keys) and _agree(one, row))
            found = next(same, None)
            if found is None:
                rows.append(row)
            else:
                found.update(row)
    merged = [replace(field, values=[row.get(name) for row in rows]) for name, field in fields.items()]
    return [Frame(f"merge-{'-'.join(frame.ref for frame in frames)}", merged)]


def _agree(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[name] == value for name, value in other.items() if name in one)


def _join(frames: list[Frame], options: Json) -> list[Frame]:
    """Columns of all frames side by side, by the value of one column."""
    by = options.get("byField", "Time")
    joined = [(frame, key) for frame in frames if (key := frame.named(by)) is not None]
    if len(joined) < 2:
        return [frame for frame, _ in joined] or frames
    places = [{value: row for row, value in enumerate(key.values)} for _, key in joined]
    order = list(dict.fromkeys(value for _, key in joined for value in key.values))
    if options.get("mode") == "inner":
        order = [value for value in order if all(value in place for place in places)]
    if joined[0][1].kind == "time":
        order.sort()
    fields = [replace(joined[0][1], values=order)]
    for (frame, key), place in zip(joined, places, strict=True):
        for field in frame.fields:
            if field is not key:
                values = [field.values[place[value]] if value in place else None for value in order]
                fields.append(replace(field, values=values))
    titles = [field.title for field in fields]
    for index, field in enumerate(fields):
        if titles.count(field.title) > 1 and not field.legend:
            field.renamed = f"{titles[index]} {titles[: index + 1].count(titles[index])}"
    return [Frame(f"joinByField-{'-'.join(frame.ref for frame, _ in joined)}", fields)]


def _organize(frames: list[Frame], options: Json) -> list[Frame]:
    """Columns left out, put in order, and given other names, all by the names that they have before."""
    hidden, index = options.get("excludeByName") or {}, options.get("indexByName") or {}
    shown, names = options.get("includeByName") or {}, options.get("renameByName") or {}
    done = []
    for frame in frames:
        kept = [
            field for field in frame.fields if not hidden.get(field.title) and (not shown or shown.get(field.title))
        ]
        kept.sort(key=lambda field: index.get(field.title, len(index) + len(kept)))
        fields = [replace(field, renamed=names.get(field.title) or field.renamed) for field in kept]
        done.append(Frame(frame.ref, fields))
    return done


def _sort(frames: list[Frame], options: Json) -> list[Frame]:
    done = []
    for frame in frames:
        for sort in options.get("sort", [])[:1]:
            field = frame.named(sort["field"]) if sort.get("field") else None
            if field is not None:
                frame = taken(frame, sorted_rows(field, descending=bool(sort.get("desc"))))
        done.append(frame)
    return done


def _limit(frames: list[Frame], options: Json) -> list[Frame]:
    most = int(options.get("limitField", 10))
    return [taken(frame, range(min(most, frame.rows))) for frame in frames]


def _filter(frames: list[Frame], options: Json) -> list[Frame]:
    def chosen(title: str, rule: Json) -> bool:
        pattern = rule.get("pattern")
        return title in rule.get("names", []) or bool(pattern and re.search(str(pattern).strip("/"), title))

    include, exclude = options.get("include"), options.get("exclude")
    return [
        Frame(
            frame.ref,
            [
                field
                for field in frame.fields
                if (not include or chosen(field.title, include)) and not (exclude and chosen(field.title, exclude))
            ],
        )
        for frame in frames
    ]


def sorted_rows(field: Field, *, descending: bool) -> list[int]:
    """The rows in the order of a column, those without a value last."""
    there = [row for row, value in enumerate(field.values) if value is not None]
    there.sort(key=lambda row: field.values[row], reverse=descending)
    return there + [row for row, value in enumerate(field.values) if value is None]


def taken(frame: Frame, rows: Sequence[int]) -> Frame:
    """A frame with some rows only, in that order."""
    return Frame(frame.ref, [field.taken(rows) for field in frame.fields])


_STEPS: Final[dict[str, Callable[[list[Frame], Json], list[Frame]]]] = {
    "merge": _merge,
    "joinByField": _join,
    "organize": _organize,
    "sortBy": _sort,
    "limit": _limit,
    "filterFieldsByName": _filter,
}
