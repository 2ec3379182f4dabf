"""``sglang-telemetry check``: what can be known before the first sync, as a table, and what to do first."""

import argparse
import io
import os
import signal
import sys
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sglang_telemetry.exporter.settings import parse_duration
from sglang_telemetry.names import Env
from sglang_telemetry.preflight import Finding, Level, Report, release
from sglang_telemetry.preflight import run as preflight
from sglang_telemetry.server_truth.keys import Keys

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}
_MARKS = {Level.OK: "ok", Level.WARN: "warn", Level.FAIL: "FAIL"}
_WIDEST = 110
"""Longer lines are hard to read."""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "check",
        help="look at servers and the shared folder before the first sync",
        description="Look at everything that a weight sync needs, and change nothing. Exit code: 0 all is well, "
        f"1 warnings, 2 a failure. Keys of the servers are read from {Env.API_KEY}[_FILE] and "
        f"{Env.ADMIN_API_KEY}[_FILE].",
    )
    parser.add_argument(
        "--server", action="append", default=[], metavar="URL", help="an SGLang server; more than one may be given"
    )
    parser.add_argument("--shared-path", default=None, metavar="PATH", help="folder that checkpoints are written to")
    parser.add_argument("--model", default=None, metavar="DIR", help="the model that is trained, with its config.json")
    parser.add_argument(
        "--checkpoint",
        default=None,
        metavar="DIR",
        help="a checkpoint to look at (default: what the folder holds); alone, without --server, nothing else is asked",
    )
    parser.add_argument(
        "--timeout", default=None, metavar="DURATION", help="what the engine gives an update: 600 or 10m"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="also send each server, if it is idle, an empty folder, which it refuses, and its own weights; new "
        "requests wait meanwhile",
    )
    parser.add_argument(
        "--release",
        action="store_true",
        help="do nothing of that, and continue generation on each server that was left paused",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(function=run)


def run(arguments: argparse.Namespace) -> int:
    """Check, and print what was found.

    Returns:
        0 all is well, 1 there are warnings, 2 something will fail, 130 it was interrupted.

    Raises:
        ValueError: An argument makes no sense.
    """
    alone = arguments.checkpoint is not None and not arguments.server
    if not arguments.server and not alone:
        raise ValueError("--server is missing: write --server http://10.0.0.7:30000")
    if arguments.release:
        _alone(arguments)
    elif arguments.shared_path is None and not alone:
        raise ValueError("--shared-path is missing: write the folder that the trainer writes checkpoints to")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what a server said may have letters that the terminal has not
    try:
        report = _report(arguments)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if arguments.json:
        print(report.to_json())
    elif sys.stdout.isatty():
        print_report(report, Console(highlight=False))
    else:
        print("\n".join(lines_of(report)))
    return report.exit_code


def _alone(arguments: argparse.Namespace) -> None:
    others = ("--shared-path", "--model", "--checkpoint", "--timeout", "--dry-run")
    given = [option for option in others if getattr(arguments, option[2:].replace("-", "_"))]
    if given:
        raise ValueError(f"--release goes with --server alone: leave out {', '.join(given)}")


def _report(arguments: argparse.Namespace) -> Report:
    keys = Keys.from_environ(os.environ)
    if arguments.release:
        return release(arguments.server, keys=keys)
    return preflight(
        arguments.server,
        shared_path=arguments.shared_path,
        model_dir=arguments.model,
        checkpoint_dir=arguments.checkpoint,
        timeout_seconds=None if arguments.timeout is None else _seconds(arguments.timeout),
        keys=keys,
        dry_run=arguments.dry_run,
    )


def print_report(report: Report, console: Console) -> None:
    """Print a report for a person: a heading for each place, a row for each finding, and what to do first.

    Args:
        report: What was found.
        console: Where to.
    """
    width = min(console.width, _WIDEST)
    arrow = "→" if console.encoding.startswith("utf") else "->"
    column = max((len(one.name) for one in report.findings), default=0)
    for place, findings in groupby(report.findings, key=lambda one: one.place):
        console.print(Text(place, style="bold"), width=width, overflow="fold")
        table = Table.grid(padding=(0, 0, 0, 2))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(ratio=1, overflow="fold")
        for one in findings:
            mark = Text(f"{_MARKS[one.level]:>6}", style=_STYLES[one.level])
            table.add_row(mark, Text(f"{one.name:<{column}}"), _said(one, arrow))
        console.print(table, width=width)
    console.print()
    console.print(Text(_summary(report), style=_STYLES[report.level]), width=width, overflow="fold")


def lines_of(report: Report) -> list[str]:
    """The same for a file: a line for each finding, in columns, and the last with what to do first."""
    name = max((len(one.name) for one in report.findings), default=0)
    place = max((len(one.place) for one in report.findings), default=0)
    lines = [
        f"{_MARKS[one.level]:<4}  {one.name:<{name}}  {one.place:<{place}}  {one.reason}"
        + (f" -> {one.fix}" if one.fix else "")
        for one in report.findings
    ]
    return [*lines, _summary(report)]


def _said(one: Finding, arrow: str) -> Text:
    text = Text(one.reason, style="dim" if one.level is Level.OK else "")
    if one.fix:
        text.append(f"\n{arrow} {one.fix}", style="cyan")
    return text


def _summary(report: Report) -> str:
    names = ((Level.FAIL, "failure"), (Level.WARN, "warning"))
    counts = [
        f"{count} {name}{'s' if count > 1 else ''}" for level, name in names if (count := report.count(level)) > 0
    ]
    counted = ", ".join([*counts, f"{report.count(Level.OK)} ok"])
    first = report.first
    return f"{counted}." if first is None else f"{counted}. First, {first.name} of {first.place}: {first.fix}"


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValueError(f"--timeout {error}") from None
