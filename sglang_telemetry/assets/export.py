"""The files of an export, before any is written: the assets with everything that the site asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sglang_telemetry.assets.annotate import add_base, add_labels
from sglang_telemetry.assets.dashboards import edited_dashboard
from sglang_telemetry.assets.formats import Format, Kubernetes, dashboard_files, rule_files
from sglang_telemetry.assets.matchers import Matcher
from sglang_telemetry.assets.options import set_options
from sglang_telemetry.assets.select import add_matchers
from sglang_telemetry.assets.source import Assets


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """What a site wants otherwise; nothing by default.

    Args:
        format: Who reads the rules.
        values: Thresholds by the name of their option.
        matchers: For every selector of our metrics.
        runbook_base: Address before the runbooks; without it their links stay relative.
        dashboard_base: Address of Grafana; without it the links stay relative to its root.
        labels: For every alert.
        kubernetes: Of the objects, in the operator's format.
    """

    format: Format = Format.PROMETHEUS
    values: Mapping[str, str] = field(default_factory=dict)
    matchers: tuple[Matcher, ...] = ()
    runbook_base: str | None = None
    dashboard_base: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)


def exported(assets: Assets, settings: ExportSettings) -> dict[str, str]:
    """Text of each file by its path below the folder; with no wishes they are the assets' own, byte for byte.

    Raises:
        AssetError: A wish cannot be met.
    """
    rules = set_options(assets.rules, settings.values)
    rules = {file: _edited(file, text, settings) for file, text in rules.items()}
    files = rule_files(rules, settings.format, settings.kubernetes)
    for folder, texts in (("alertmanager", assets.alertmanager), ("runbooks", assets.runbooks)):
        files |= {f"{folder}/{path}": text for path, text in texts.items()}
    dashboards = {
        file: edited_dashboard(file, text, matchers=settings.matchers, runbook_base=settings.runbook_base)
        if file.endswith(".json")
        else text
        for file, text in assets.dashboards.items()
    }
    files |= dashboard_files(dashboards, settings.format, settings.kubernetes)
    return files


def _edited(file: str, text: str, settings: ExportSettings) -> str:
    if settings.matchers:
        text = add_matchers(file, text, settings.matchers)
    if settings.labels:
        text = add_labels(file, text, settings.labels)
    if settings.runbook_base is not None:
        base = f"{settings.runbook_base}/"
        text = add_base(file, text, annotation="runbook_url", prefix="runbooks/", base=base)
    if settings.dashboard_base is not None:
        base = f"{settings.dashboard_base}/d/"
        text = add_base(file, text, annotation="dashboard_url", prefix="/d/", base=base)
    return text
