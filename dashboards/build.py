"""Writes the dashboards' JSON, or checks that it is up to date.

usage: python -m dashboards.build [--check]
"""

import json
import sys
from pathlib import Path

from dashboards import ranks, weight_sync
from dashboards.grafana import Json

FOLDER = Path(__file__).parent


def dashboards() -> list[Json]:
    """Both, as they are built now."""
    return [weight_sync.build(), ranks.build()]


def files() -> dict[Path, str]:
    """Text of each file. One value a line: a small change has a small diff."""
    return {FOLDER / f"{one['uid']}.json": json.dumps(one, indent=2, ensure_ascii=False) + "\n" for one in dashboards()}


def main() -> int:
    """Write or check."""
    stale = {path: text for path, text in files().items() if not path.exists() or path.read_text() != text}
    if "--check" in sys.argv:
        if stale:
            print(f"not what the code says: {', '.join(path.name for path in stale)}; run `make assets`")
        return int(bool(stale))
    for path, text in stale.items():
        path.write_text(text)
    print(f"dashboards ok: {', '.join(path.name for path in stale) or 'all up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
