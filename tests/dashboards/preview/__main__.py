"""``python -m tests.dashboards.preview``: a picture of each dashboard in each state of the scripted day.

The one decision: each state is a window of the day that ends where it is "now" for whoever looks, so that no picture
depends on when it is made.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.dashboards.board import BOARDS, FOLDER
from tests.dashboards.day import State, load
from tests.dashboards.preview.ask import QueryRefusedError, Window
from tests.dashboards.preview.draw import drawn
from tests.harness.backfill import LOOKBACK
from tests.harness.prometheus import Prometheus


def main(arguments: list[str] | None = None) -> int:
    """Draw all of them.

    Returns:
        Exit status: 1 when a query was refused.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.dashboards.preview", description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER / "preview", help="folder for the pictures")
    out: Path = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        with Prometheus(Path(folder), {}, data=load(Path(folder)), lookback=LOOKBACK) as prometheus:
            for dashboard in BOARDS.values():
                for state in State:
                    try:
                        picture = drawn(dashboard, prometheus, Window(state.start, state.now), {})
                    except QueryRefusedError as error:
                        print(f"preview failed: {error}", file=sys.stderr)
                        return 1
                    path = out / f"{dashboard['uid']}-{state.value}.png"
                    path.write_bytes(picture.png)
                    count += 1
                    empty = f", nothing in: {', '.join(picture.empty)}" if picture.empty else ""
                    print(f"{path.name}: {picture.panels} panels, {picture.links} links{empty}")
    print(f"preview ok: {count} pictures in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
