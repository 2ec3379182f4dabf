"""Where the files are: data of the installed wheel, and in a checkout the folders that the wheel is made of.

The folders at the top of the repository are the one place where they are written; a wheel holds a copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from sglang_telemetry.assets.error import AssetError

PACKAGE = "sglang_telemetry"
IN_WHEEL = "_assets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assets:
    """All files, by their path below their folder.

    Args:
        rules: Rule files of Prometheus.
        alertmanager: The example configuration with its templates.
        runbooks: One an alert.
        dashboards: Of Grafana, as JSON, and examples in YAML of how it is provisioned; empty where there are none.
    """

    rules: Mapping[str, str]
    alertmanager: Mapping[str, str]
    runbooks: Mapping[str, str]
    dashboards: Mapping[str, str]


def load(package: Traversable | None = None) -> Assets:
    """Read all files.

    Args:
        package: Folder of the package; the one that is imported by default.

    Raises:
        AssetError: They are neither in the wheel nor beside the package.
    """
    package = files(PACKAGE) if package is None else package
    wheel = package / IN_WHEEL
    alerts, dashboards = wheel, wheel / "dashboards"
    if not wheel.is_dir():
        top = package / ".."
        alerts, dashboards = top / "alerts", top / "dashboards"
    rules = _texts(alerts / "rules", ".yml")
    if not rules:
        raise AssetError(
            f"the rule files are neither in {wheel} nor in {alerts}: install sglang-telemetry from its wheel, "
            "or with pip install -e in a whole checkout"
        )
    return Assets(
        rules=rules,
        alertmanager=_texts(alerts / "alertmanager", ".yml", ".tmpl"),
        runbooks=_texts(alerts / "runbooks", ".md"),
        dashboards=_texts(dashboards, ".json", ".yml"),
    )


def _texts(folder: Traversable, *endings: str, below: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    if folder.is_dir():
        for entry in sorted(folder.iterdir(), key=lambda one: one.name):
            if entry.is_dir():
                found |= _texts(entry, *endings, below=f"{below}{entry.name}/")
            elif entry.name.endswith(endings):
                # Bytes, not read_text(): line ends stay as they are.
                found[below + entry.name] = entry.read_bytes().decode()
    return found
