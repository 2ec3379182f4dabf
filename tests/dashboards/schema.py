"""Is this JSON a dashboard that Grafana understands? A strict JSON Schema, made from the types that Grafana publishes.

The types are those of `grafana-foundation-sdk`, which Grafana generates from its own schema, so a key that they do not
know is a key that Grafana silently ignores. The one decision: the schema is derived from those classes each time, not
written down, and what it tolerates beyond them stands in one table, `ALLOWANCES`, with a reason each.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from types import ModuleType
from typing import Final, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

with warnings.catch_warnings():
    # Its Dashboard class says on import that v2 is preferred; provisioning and grafana.com still take the classic one.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.cog.variants import Dataquery
    from grafana_foundation_sdk.models import (
        bargauge,
        dashboard,
        heatmap,
        logs,
        loki,
        prometheus,
        stat,
        statetimeline,
        table,
        text,
        timeseries,
    )

Json: TypeAlias = dict[str, object]


class Allowance(NamedTuple):
    """A place where we say other than the published types, and why."""

    owner: type
    key: str
    schema: Json
    required: bool
    why: str


_DATA_LINKS: Final[Json] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"title": {"type": "string"}, "url": {"type": "string"}, "targetBlank": {"type": "boolean"}},
        "required": ["title", "url"],
        "additionalProperties": False,
    },
}
_IN_MENU: Final[Json] = {"const": "inControlsMenu"}
_PANELS: Final[Json] = {"type": "array", "items": {"type": "object"}}

ALLOWANCES: Final = (
    Allowance(dashboard.Dashboard, "id", {"type": ["integer", "null"]}, False, "null until a database numbers it"),
    Allowance(dashboard.Dashboard, "panels", _PANELS, False, "checked one by one, so that an error names its panel"),
    Allowance(dashboard.RowPanel, "panels", _PANELS, True, "checked one by one, as those of the dashboard"),
    Allowance(dashboard.Panel, "links", _DATA_LINKS, False, "a panel's link is a data link, not a dashboard's"),
    Allowance(dashboard.FieldConfig, "links", _DATA_LINKS, False, "a field's link is a data link, not a dashboard's"),
    Allowance(dashboard.DashboardLink, "placement", _IN_MENU, False, "optional in Grafana; moves the link to a menu"),
    Allowance(dashboard.AnnotationQuery, "placement", _IN_MENU, False, "optional in Grafana; moves it to a menu"),
)

_PANEL_MODULES: Final = (bargauge, heatmap, logs, stat, statetimeline, table, text, timeseries)
_QUERY_MODULES: Final = (loki, prometheus)
# By the name that Grafana gives them, which a module knows of itself: `statetimeline` is `state-timeline`.
PANELS: Final[dict[str, ModuleType]] = {module.variant_config().identifier: module for module in _PANEL_MODULES}
QUERIES: Final[dict[str, ModuleType]] = {module.variant_config().identifier: module for module in _QUERY_MODULES}

# Grafana reads these as they are. To a panel's `options` and `custom` it merges the defaults of the panel's plugin, at
# every depth, so that none of their keys has to be there.
_READ_AS_THEY_ARE: Final = frozenset(module.__name__ for module in (dashboard, *_QUERY_MODULES))
_SCALARS: Final[dict[object, Json]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    object: {},
    Dataquery: {"type": "object"},  # whose class is known by its data source alone: see _query
}
_NO_CUSTOM: Final[Json] = {"type": "object", "additionalProperties": False}


class _EachItsName:
    """Given to a class's to_json as self, it makes that tell which attribute goes under which JSON key."""

    def __getattr__(self, name: str) -> str:
        return name


class _AllAbsent:
    """Given to a class's to_json as self, it leaves the keys that are always written."""

    def __getattr__(self, name: str) -> None:
        return None


def _of_hint(hint: object, definitions: dict[str, Json]) -> Json:
    """The schema of one annotation. Optional says that the key may be absent, which is for `_of_class`."""
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Union:
        branches = [_of_hint(argument, definitions) for argument in arguments if argument is not type(None)]
        return branches[0] if len(branches) == 1 else {"anyOf": branches}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": _of_hint(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of_hint(arguments[1], definitions)}
    if not isinstance(hint, type):
        raise TypeError(f"no schema for the annotation {hint!r}")
    if issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    return _of_class(hint, definitions)


def _of_class(owner: type, definitions: dict[str, Json]) -> Json:
    """A reference to the schema of one class, which is put into `definitions` with all that it needs."""
    name = f"{owner.__module__.rpartition('.')[2]}.{owner.__qualname__}"
    reference: Json = {"$ref": f"#/$defs/{name}"}
    if name in definitions:
        return reference
    definition = definitions[name] = {}  # before its fields: a class may hold itself
    to_json: Callable[[object], dict[str, str]] = vars(owner)["to_json"]
    attributes = to_json(_EachItsName())
    written = set(to_json(_AllAbsent()))
    hints = get_type_hints(owner)
    settable = inspect.signature(owner).parameters
    own = {allowance.key: allowance for allowance in ALLOWANCES if allowance.owner is owner}
    properties: Json = {}
    required = []
    for key, attribute in attributes.items():
        if key in own:
            properties[key], needed = own[key].schema, own[key].required
        elif attribute not in settable:  # a constant, such as the `type` that tells the members of a union apart
            properties[key], needed = {"const": str(getattr(owner(), attribute))}, True
        else:
            schema = _of_hint(hints[attribute], definitions)
            needed = key in written and owner.__module__ in _READ_AS_THEY_ARE
            # Always written and yet Optional: then null is a value, as in the lowest threshold.
            null = key in written and type(None) in get_args(hints[attribute])
            properties[key] = {"anyOf": [schema, {"type": "null"}]} if null else schema
        if needed:
            required.append(key)
    definition.update(type="object", properties=properties, required=required, additionalProperties=False)
    return reference


@cache
def validator(owner: type) -> Draft202012Validator:
    """What checks JSON against one of Grafana's classes."""
    definitions: dict[str, Json] = {}
    return Draft202012Validator({**_of_class(owner, definitions), "$defs": definitions})


def errors(board: Json) -> list[str]:
    """All that Grafana's types do not allow in a dashboard, each with its place and, in a panel, the panel's title."""
    return [
        *_check(validator(dashboard.Dashboard), board, "dashboard"),
        *(error for panel in _objects(board.get("panels")) for error in _panel(panel)),
        *_annotations(board),
    ]


def _check(checker: Draft202012Validator, value: object, place: str) -> Iterator[str]:
    """One line for each error; of a union, what the likeliest member says."""
    for error in checker.iter_errors(value):
        told: ValidationError = best_match([error])
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in told.absolute_path)
        yield f"{place}{path}: {told.message}"


def _objects(value: object) -> list[Json]:
    """The objects of a list; that it is a list of objects is checked elsewhere."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _object(value: object) -> Json:
    """The object that a key holds, or an empty one; that it is an object is checked elsewhere."""
    return value if isinstance(value, dict) else {}


def _panel(panel: Json) -> Iterator[str]:
    """The errors of a panel, and of those in it where it is a row."""
    kind = panel.get("type")
    place = f"panel {panel.get('title') or panel.get('id')!r} ({kind})"
    if kind == "row":
        yield from _check(validator(dashboard.RowPanel), panel, place)
        for inner in _objects(panel.get("panels")):
            yield from _panel(inner)
        return
    yield from _check(validator(dashboard.Panel), panel, place)
    if not isinstance(kind, str) or kind not in PANELS:
        if isinstance(kind, str):  # else the panel's own schema has said so
            yield f"{place}.type: {kind!r} is none of {', '.join(('row', *PANELS))}"
        return
    if "options" in panel:
        yield from _check(validator(PANELS[kind].Options), panel["options"], f"{place}.options")
    yield from _fields(panel, PANELS[kind], place)
    for index, target in enumerate(_objects(panel.get("targets"))):
        yield from _query(target, panel, f"{place}.targets[{index}]")


def _fields(panel: Json, module: ModuleType, place: str) -> Iterator[str]:
    """The errors of what a panel's own type adds to its fields: `custom`, and the values of the overrides."""
    owner = getattr(module, "FieldConfig", None)  # a stat, for one, adds nothing
    custom = Draft202012Validator(_NO_CUSTOM) if owner is None else validator(owner)
    config = _object(panel.get("fieldConfig"))
    defaults = _object(config.get("defaults"))
    if "custom" in defaults:
        yield from _check(custom, defaults["custom"], f"{place}.fieldConfig.defaults.custom")
    for index, override in enumerate(_objects(config.get("overrides"))):
        for part in _objects(override.get("properties")):
            # The id is a path: `custom.thresholdsStyle.mode` sets what `custom` holds there.
            first, *rest = str(part.get("id")).split(".")
            of_type = first == "custom"
            value: object = part.get("value")
            for step in reversed(rest if of_type else [first, *rest]):
                value = {step: value}
            where = f"{place}.fieldConfig.overrides[{index}]{'.custom' * of_type}"
            yield from _check(custom if of_type else validator(dashboard.FieldConfig), value, where)


def _annotations(board: Json) -> Iterator[str]:
    """The errors of what the annotations ask."""
    for asked in _objects(_object(board.get("annotations")).get("list")):
        if "target" in asked:
            yield from _query(_object(asked["target"]), asked, f"annotation {asked.get('name')!r}.target")


def _query(query: Json, owner: Json, place: str) -> Iterator[str]:
    """The errors of one query, by the type of its data source, which is its owner's where it names none itself."""
    kind = _object(query.get("datasource", owner.get("datasource"))).get("type")
    if kind == "grafana":  # its own store of annotations, which every exported dashboard asks
        yield from _check(validator(dashboard.AnnotationTarget), query, place)
    elif isinstance(kind, str) and kind in QUERIES:
        yield from _check(validator(QUERIES[kind].Dataquery), query, place)
    else:
        yield f"{place}.datasource.type: {kind!r} is none of {', '.join(QUERIES)}"
