"""What `fieldConfig` says of a field: defaults and overrides, then text and colour of a value.

The one decision: an override or mapping that this file does not know is an error, not something to leave out, since
the picture would then show what Grafana would not.
"""

import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Final, NamedTuple

from tests.dashboards.preview import colours
from tests.dashboards.preview.frames import Field, Frame
from tests.dashboards.preview.interpolate import Json
from tests.dashboards.preview.units import formatted

_STEPS: Final[list[Json]] = [{"color": "green", "value": None}, {"color": "red", "value": 80}]


class Shown(NamedTuple):
    """A value as people see it."""

    text: str
    colour: str
    mapped: bool = False
    """Did a mapping give the colour?"""


class Extent(NamedTuple):
    """Least and most of the values that belong together, for colours that go by the share."""

    least: float = 0.0
    most: float = 100.0

    def share(self, value: float) -> float:
        """Where a value is between them, 0 to 1."""
        return (value - self.least) / (self.most - self.least) if self.most > self.least else 0.0


def configure(frames: Sequence[Frame], field_config: Json) -> None:
    """Give each field its configuration: the defaults with the overrides that match it."""
    for frame in frames:
        for field in frame.fields:
            config: Json = deepcopy(field_config.get("defaults", {}))
            field.config = config
            for override in field_config.get("overrides", []):
                if _matches(override["matcher"], frame, field):
                    for entry in override["properties"]:
                        _set(config, entry["id"].split("."), deepcopy(entry.get("value")))


def extent(config: Json, values: Sequence[Any]) -> Extent:
    """Least and most, as configured or else as found."""
    found = [float(value) for value in values if isinstance(value, int | float)]
    least, most = config.get("min"), config.get("max")
    return Extent(
        min(found, default=0.0) if least is None else float(least),
        max(found, default=100.0) if most is None else float(most),
    )


def show(
    value: Any,
    config: Json,
    *,
    now: float,
    index: int = 0,
    of: Extent | None = None,
    mode: str = "thresholds",
    decimals: int | None = None,
) -> Shown:
    """Text and colour of a value.

    Args:
        value: A number, a text or None.
        config: Of its field.
        now: Unix time that dates are relative to.
        index: Of the series, for its place in the palette.
        of: For colours and thresholds that go by the share.
        mode: The panel kind's colour mode, where nothing is configured.
        decimals: For a number whose configuration does not say it.
    """
    mapping = _mapping(value, config.get("mappings", []))
    if mapping is not None and mapping.get("text"):
        text = str(mapping["text"])
    elif value is None:
        text = str(config.get("noValue", ""))
    elif isinstance(value, str):
        text = value
    else:
        text = formatted(float(value), config.get("unit"), config.get("decimals", decimals), now=now)
    if mapping is not None and mapping.get("color"):
        return Shown(text, colours.colour(mapping["color"]), True)
    figure = float(value) if isinstance(value, int | float) else None
    return Shown(text, colour_of(figure, config, index=index, of=of, mode=mode))


def colour_of(
    value: float | None, config: Json, *, index: int = 0, of: Extent | None = None, mode: str = "thresholds"
) -> str:
    """The colour of a number by the field's colour mode; a missing one has the lowest threshold's."""
    configured: Json = config.get("color") or {}
    mode = configured.get("mode", mode)
    if mode in ("fixed", "shades"):
        return colours.colour(configured.get("fixedColor", "gray"))
    if mode == "thresholds":
        return threshold_colour(value, config, of)
    if colours.is_gradient(mode):
        return colours.along(mode, 0.0 if value is None else (of or extent(config, [])).share(value))
    return colours.classic(index)


def thresholds(config: Json, of: Extent | None = None) -> list[tuple[float | None, str]]:
    """The steps of a field, each with the value that it begins at; None for the lowest."""
    configured: Json = config.get("thresholds") or {}
    found: list[tuple[float | None, str]] = []
    for step in configured.get("steps") or _STEPS:
        start = step.get("value")
        if start is not None and configured.get("mode") == "percentage":
            least, most = of or extent(config, [])
            start = least + (most - least) * start / 100
        found.append((start, colours.colour(step["color"])))
    return found


def threshold_colour(value: float | None, config: Json, of: Extent | None = None) -> str:
    """The colour of the highest step that a value has reached."""
    steps = thresholds(config, of)
    reached = steps[0][1]
    for start, name in steps[1:]:
        if value is not None and start is not None and value >= start:
            reached = name
    return reached


def _mapping(value: Any, mappings: Sequence[Json]) -> Json | None:
    for mapping in mappings:
        options: Json = mapping["options"]
        result: Json | None = options.get("result")
        match mapping["type"]:
            case "value":
                result = next((to for key, to in options.items() if value is not None and _same(value, key)), None)
            case "range":
                low, high = options.get("from"), options.get("to")
                inside = isinstance(value, int | float) and (low is None or value >= low)
                result = result if inside and (high is None or value <= high) else None
            case "special":
                special = {"null": value is None, "null+nan": value is None, "empty": value == ""}
                special |= {"true": value is True, "false": value is False, "nan": False}
                result = result if special[options["match"]] else None
            case "regex":
                found = isinstance(value, str) and re.search(options["pattern"].strip("/"), value)
                result = result if found else None
            case kind:
                raise ValueError(f"mapping of type {kind!r} is not known to the preview")
        if result is not None:
            return result
    return None


def _same(value: Any, key: str) -> bool:
    try:
        return float(value) == float(key)
    except ValueError:
        return str(value) == key


def _matches(matcher: Json, frame: Frame, field: Field) -> bool:
    options = matcher.get("options")
    names = {field.title, field.name}
    match matcher["id"]:
        case "byName":
            return str(options) in names
        case "byNames":
            assert isinstance(options, dict)
            listed = bool(names & set(options["names"]))
            return listed if options.get("mode", "include") == "include" else not listed
        case "byRegexp":
            return re.search(str(options).strip("/"), field.title) is not None
        case "byType":
            return bool(options == field.kind)
        case "byFrameRefID":
            return bool(options == frame.ref)
        case kind:
            raise ValueError(f"matcher {kind!r} is not known to the preview")


def _set(config: Json, path: Sequence[str], value: Any) -> None:
    for step in path[:-1]:
        config = config.setdefault(step, {})
    config[path[-1]] = value
