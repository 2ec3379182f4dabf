"""``sglang-telemetry assets``: rules, dashboards and what belongs to them, from the installed package to files."""

import argparse
import os
import shlex
import shutil
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

from sglang_telemetry.assets.annotate import parse_base, parse_label
from sglang_telemetry.assets.error import AssetError
from sglang_telemetry.assets.export import ExportSettings, exported
from sglang_telemetry.assets.folder import Written, write
from sglang_telemetry.assets.formats import POD_LABELS, Format, Kubernetes, checked_namespace, checked_port, parse_pair
from sglang_telemetry.assets.matchers import parse_matchers
from sglang_telemetry.assets.options import Option, find_options
from sglang_telemetry.assets.source import load
from sglang_telemetry.names import DEFAULT_LISTEN

_FOR_KUBERNETES = ("metadata_label", "pod_selector", "port_name")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command and its two parts."""
    parser = commands.add_parser(
        "assets", help="write rules, runbooks, dashboards and the Alertmanager example to a folder"
    )
    parts = parser.add_subparsers(dest="part", required=True, metavar="export|options")
    options = parts.add_parser("options", help="list the thresholds that export --set can change")
    options.set_defaults(function=show_options)
    export = parts.add_parser("export", help="write the files")
    export.add_argument("folder", metavar="DIR", help="where to; made when missing")
    export.add_argument(
        "--format",
        choices=[str(one) for one in Format],
        default=str(Format.PROMETHEUS),
        help="who reads the rules and dashboards (default: %(default)s)",
    )
    export.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a threshold; see `assets options`"
    )
    export.add_argument(
        "--select",
        action="append",
        default=[],
        metavar="MATCHERS",
        help='look only at series that match, such as \'job="rl",cluster=~"a|b"\'',
    )
    export.add_argument("--label", action="append", default=[], metavar="NAME=VALUE", help="a label for every alert")
    export.add_argument(
        "--runbook-base", default=None, metavar="URL", help="address at which the runbooks are published"
    )
    export.add_argument("--dashboard-base", default=None, metavar="URL", help="address of Grafana")
    export.add_argument("--namespace", default=None, help="of the Kubernetes objects, or of the rules in Mimir")
    export.add_argument(
        "--metadata-label",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a label of the Kubernetes objects, such as release=kube-prometheus-stack",
    )
    export.add_argument(
        "--pod-selector",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a label of the pods that run an exporter (default: app.kubernetes.io/name=sglang-telemetry)",
    )
    export.add_argument("--port-name", default=None, help="of the exporter's port in these pods (default: metrics)")
    export.add_argument("--force", action="store_true", help="replace files that are there and differ")
    export.set_defaults(function=run)


def run(arguments: argparse.Namespace) -> int:
    """Write an export.

    Raises:
        AssetError: An argument makes no sense, or the folder cannot be used.
    """
    settings = _settings(arguments)
    if not arguments.folder.strip() or not arguments.folder.isprintable():
        raise AssetError(f"{arguments.folder!r} is no folder: name one in characters that can be printed, such as .")
    folder = Path(arguments.folder)
    try:
        outcome = write(folder, exported(load(), settings), force=arguments.force)
    except OSError as error:
        where = error.filename or folder
        raise AssetError(
            f"cannot write to {folder}: {where}: {error.strerror or error}; give a folder that can be written, "
            "with room for 1 MB; no file is half-written"
        ) from None
    _tell(folder, outcome, settings)
    return 0


def show_options(_: argparse.Namespace) -> int:
    """Print the thresholds: a table on a terminal, and a line each into a pipe.

    Raises:
        AssetError: The files are not there.
    """
    options = find_options(load().rules)
    width = shutil.get_terminal_size().columns if os.isatty(1) else None
    print("\n".join(_table(options.values(), width)))
    return 0


def _settings(arguments: argparse.Namespace) -> ExportSettings:
    chosen = Format(arguments.format)
    for name in _FOR_KUBERNETES:
        if getattr(arguments, name) and chosen is not Format.OPERATOR:
            raise AssetError(f"--{name.replace('_', '-')} is for --format {Format.OPERATOR}")
    if arguments.namespace is not None and chosen is Format.PROMETHEUS:
        raise AssetError(f"--namespace is for --format {Format.OPERATOR} or {Format.MIMIR}")
    kubernetes = Kubernetes(
        namespace=None if arguments.namespace is None else checked_namespace(arguments.namespace),
        labels=_pairs("--metadata-label", arguments.metadata_label, lambda text: parse_pair("--metadata-label", text)),
        port_name=checked_port("metrics" if arguments.port_name is None else arguments.port_name),
        pod_labels=_pairs("--pod-selector", arguments.pod_selector, lambda text: parse_pair("--pod-selector", text))
        or POD_LABELS,
    )
    return ExportSettings(
        format=chosen,
        values=_pairs("--set", arguments.set, _assignment),
        matchers=tuple(one for text in arguments.select for one in parse_matchers(text)),
        runbook_base=_base("--runbook-base", arguments.runbook_base),
        dashboard_base=_base("--dashboard-base", arguments.dashboard_base),
        labels=_pairs("--label", arguments.label, parse_label),
        kubernetes=kubernetes,
    )


def _base(option: str, text: str | None) -> str | None:
    return None if text is None else parse_base(option, text)


def _assignment(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name or not value:
        raise AssetError(f"--set {text[:100]!r}: write NAME=VALUE; `sglang-telemetry assets options` lists the names")
    return name.strip(), value


def _pairs(option: str, texts: Iterable[str], parse: Callable[[str], tuple[str, str]]) -> dict[str, str]:
    """Each name once, since of two values one would be lost without a word."""
    found: dict[str, str] = {}
    for name, value in map(parse, texts):
        if found.setdefault(name, value) != value:
            raise AssetError(f"{option} {name} is given twice: {found[name]} and {value}")
    return found


def _table(options: Iterable[Option], width: int | None) -> list[str]:
    rows = [("OPTION", "DEFAULT", "USED IN", "WHEN TO CHANGE IT")]
    rows += [(one.name, one.default, ", ".join(one.rules), one.about) for one in options]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = []
    for name, default, used, about in rows:
        head = f"{name:<{first}}  {default:<{second}}  "
        if width is None:
            lines.append(f"{head}{used}: {about}".rstrip(": ") if name != "OPTION" else f"{head}{used}: {about}")
            continue
        room = max(30, width - len(head))
        body = [*textwrap.wrap(used, room), *textwrap.wrap(about, room)] if name != "OPTION" else [f"{used}, {about}"]
        lines += [(head if number == 0 else " " * len(head)) + text for number, text in enumerate(body or [""])]
    return lines


def _tell(folder: Path, outcome: Written, settings: ExportSettings) -> None:
    where = folder.absolute()
    quoted = shlex.quote(str(where))
    for path in outcome.strangers:
        print(f"note: {where / path} is no part of this export; remove it if an earlier version wrote it")
    if settings.format is Format.PROMETHEUS:
        print("prometheus.yml, if it is not there yet:")
        in_yaml = str(where).replace("'", "''")
        print(f"  rule_files: ['{in_yaml}/rules/*.yml']")
        print(
            f"  scrape_configs: [{{job_name: sglang-telemetry, static_configs: [{{targets: ['{DEFAULT_LISTEN}']}}]}}]"
        )
    elif settings.format is Format.OPERATOR:
        print(f"apply: kubectl apply -f {quoted} -f {quoted}/dashboards")
    else:
        print(f"load: mimirtool rules load {quoted}/rules/*.yml")
    if settings.format is not Format.OPERATOR:
        print(f"Grafana: import {quoted}/dashboards/*.json, or provision them as in {quoted}/dashboards/provisioning")
    same = f", {len(outcome.unchanged)} unchanged" if outcome.unchanged else ""
    print(f"assets ok: {len(outcome.written)} files written to {where}{same}")
