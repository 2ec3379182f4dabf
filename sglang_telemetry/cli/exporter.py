"""``sglang-telemetry exporter``: serve the journals of a folder until SIGTERM or Ctrl-C."""

import argparse
import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_telemetry.exporter.settings import ExporterSettings, parse_duration, parse_listen, parse_size
from sglang_telemetry.journal.folder import default_folder
from sglang_telemetry.names import DEFAULT_LISTEN, Env
from sglang_telemetry.server_truth.keys import Keys

if TYPE_CHECKING:
    from sglang_telemetry.exporter.app import Exporter

OF_THE_EXPORTER = "sglang-telemetry exporter:"
"""Begins each line that is about the exporter itself, and not about what it found out."""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser("exporter", help="serve the journals of a folder to Prometheus")
    parser.add_argument("--dir", default=None, help=f"folder of the journals (default: {Env.DIR}, else below /tmp)")
    parser.add_argument("--listen", default=DEFAULT_LISTEN, help="HOST:PORT to serve at (default: %(default)s)")
    parser.add_argument(
        "--retention", default="24h", help="how long a run that ended stays in the metrics (default: %(default)s)"
    )
    parser.add_argument(
        "--max-size", default="1G", help="size of all journals above which counted ones go (default: %(default)s)"
    )
    parser.add_argument(
        "--probe-interval",
        default="5s",
        metavar="TIME",
        help="how often the SGLang servers of live runs are asked what they run; 0 asks none (default: %(default)s)",
    )
    parser.add_argument(
        "--no-checksums",
        action="store_true",
        help="do not ask servers which bytes they have loaded: their scheduler answers that, after each sync and each "
        "5 minutes, more often while an outcome is unknown",
    )
    parser.add_argument(
        "--watch-path",
        type=Path,
        default=None,
        metavar="PATH",
        help="folder that trainers and servers share: write a small probe file there, and tell the age of other hosts'",
    )
    parser.add_argument(
        "--exit-when-idle", default=None, metavar="TIME", help="stop when no trainer has lived for so long"
    )
    parser.set_defaults(function=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop.

    Raises:
        ValueError: An argument makes no sense.
    """
    host, port = parse_listen(arguments.listen)
    settings = ExporterSettings(
        folder=Path(arguments.dir) if arguments.dir else default_folder(),
        host=host,
        port=port,
        retention_seconds=parse_duration(arguments.retention),
        max_bytes=parse_size(arguments.max_size),
        probe_seconds=parse_duration(arguments.probe_interval),
        checksums=not arguments.no_checksums,
        keys=_keys(),
        watch_path=arguments.watch_path,
    )
    idle = parse_duration(arguments.exit_when_idle) if arguments.exit_when_idle is not None else None
    # Imported here, so that a wrong argument is told at once.
    from sglang_telemetry.exporter.app import Exporter
    from sglang_telemetry.exporter.claim import FolderServed

    # What it says of each attempt to reach a collector is counted, and told by /healthz.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    logging.getLogger("opentelemetry").propagate = False
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        exporter = Exporter(settings)
    except FolderServed as error:
        return _refuse(f"{error}; use that one, or stop it first")
    except OSError as error:
        return _refuse(_why(error, arguments.listen, settings))
    if exporter.traces_complaint is not None:
        print(f"{OF_THE_EXPORTER} NO TRACES: {exporter.traces_complaint}", file=sys.stderr)
    exporter.start()
    print(
        f"{OF_THE_EXPORTER} {exporter.url}/metrics serves {settings.folder}{_traces(exporter)}",
        file=sys.stderr,
        flush=True,
    )
    while not stop.wait(0.25):
        if idle is not None and time.monotonic() - exporter.idle_since > idle:
            break
    exporter.close()
    if exporter.spans_dropped:
        print(f"{OF_THE_EXPORTER} {exporter.spans_dropped} spans were dropped", file=sys.stderr, flush=True)
    return 0


def _keys() -> Callable[[], Keys]:
    """What the environment says of keys, checked now and read anew later.

    Raises:
        ValueError: It contradicts itself, or names a file that cannot be read.
    """
    read = functools.partial(Keys.from_environ, os.environ)
    read()
    return read


def _traces(exporter: "Exporter") -> str:
    return f"; traces go by {exporter.traces_to}" if exporter.traces_to else ""


def _why(error: OSError, listen: str, settings: ExporterSettings) -> str:
    if error.filename is not None or str(settings.folder) in str(error):
        return f"the journal folder cannot be used: {error}; give --dir a folder that you may write"
    return f"cannot listen at {listen}: {error.strerror or error}; choose another --listen, or stop what listens there"


def _refuse(text: str) -> int:
    print(f"{OF_THE_EXPORTER} {text}", file=sys.stderr)
    return 2
