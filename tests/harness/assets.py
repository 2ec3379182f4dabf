"""Where the project's own assets are, which tests and the demo use as a user would."""

import re
from pathlib import Path

ALERTS = Path(__file__).parents[2] / "alerts"
RULES = tuple(sorted((ALERTS / "rules").glob("*.yml")))
ALERTMANAGER = ALERTS / "alertmanager" / "alertmanager.yml"


def impatient(folder: Path, seconds: int) -> tuple[Path, ...]:
    """Copies of the rules whose alerts all fire after so many seconds of what is written in ``for``; else unchanged."""
    folder.mkdir(parents=True, exist_ok=True)
    copies = []
    for path in RULES:
        copy = folder / path.name
        copy.write_text(re.sub(r"^( +for: )\w+", rf"\g<1>{seconds}s", path.read_text(), flags=re.M))
        copies.append(copy)
    return tuple(copies)
