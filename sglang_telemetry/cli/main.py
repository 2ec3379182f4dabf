"""Reads the command line and hands over to the command; a wrong one ends with one line that says what to do."""

import argparse
import sys
from collections.abc import Sequence

from sglang_telemetry.cli import assets, check, exporter, run


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit code: 0 good, 2 for a wrong command line, for ``run`` that of the command it started, and for ``check``
        1 with warnings and 2 with a failure.
    """
    parser = argparse.ArgumentParser(
        prog="sglang-telemetry", description="Monitoring for SGLang weight syncs in RL training."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="run|exporter|check|assets")
    exporter.add_parser(commands)
    run.add_parser(commands)
    check.add_parser(commands)
    assets.add_parser(commands)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.function(arguments)
    except ValueError as error:
        print(f"sglang-telemetry {arguments.command}: {error}", file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
