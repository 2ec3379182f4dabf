"""Panels without a query of Prometheus: text, logs, and whatever the preview cannot draw.

The one decision: of Markdown, only headings, lists, bold words and links are drawn; the rest is its text.
"""

import re
from typing import Final

from tests.dashboards.preview import colours
from tests.dashboards.preview.ask import Answered
from tests.dashboards.preview.canvas import Area, Canvas, width_of

_LEVELS: Final = (
    ("error", "red"), ("critical", "purple"), ("fatal", "purple"), ("warn", "yellow"), ("info", "green"),
)  # fmt: skip


def draw_text(canvas: Canvas, area: Area, content: Answered) -> bool:
    """Draw the words of a text panel."""
    y = area.y + 4.0
    words = re.sub(r"<!--.*?-->|<[^>]+>", "", content.panel.get("options", {}).get("content", ""), flags=re.S)
    for paragraph in words.splitlines():
        heading = re.match(r"(#+)\s+", paragraph)
        size = {1: 24.0, 2: 20.0, 3: 17.0}.get(len(heading[1]), 14.0) if heading else 14.0
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph[heading.end() if heading else 0 :])
        item = re.match(r"\s*[-*]\s+", text)
        indent = 16.0 if item else 0.0
        text = re.sub(r"\*\*|__|`", "", text[item.end() if item else 0 :])
        if not text.strip():
            y += 8
            continue
        for index, line in enumerate(_wrapped(text, area.w - indent, size)):
            if y + size > area.bottom:
                return True  # Grafana scrolls here
            if item and index == 0:
                canvas.dot(area.x + 6, y + size * 0.7, 2, colours.TEXT)
            canvas.text(area.x + indent, y + size * 0.7, line, size=size, weight="medium" if heading else "normal")
            y += size * 1.5
    return True


def draw_logs(canvas: Canvas, area: Area, content: Answered) -> bool:
    """Draw the sample lines of a logs panel, or say that logs are not asked for."""
    if not content.lines:
        canvas.text(*area.middle, "Logs are not shown in a preview", fill=colours.FAINT, align="center")
        return True
    y = area.y + 10.0
    for line in content.lines:
        if y > area.bottom - 6:
            break
        level = next((fill for word, fill in _LEVELS if word in line.lower()), "blue")
        canvas.box(Area(area.x, y - 8, 3, 16), colours.colour(level))
        canvas.text(area.x + 10, y, line, size=12, room=area.w - 14)
        y += 20
    return True


def draw_unknown(canvas: Canvas, area: Area, content: Answered) -> bool:
    """Say that the preview has no drawing of this kind of panel."""
    kind = content.panel.get("type")
    canvas.text(*area.middle, f"{kind}: not drawn in a preview", fill=colours.FAINT, align="center", room=area.w)
    return True


def _wrapped(text: str, room: float, size: float) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and width_of(f"{lines[-1]} {word}", size) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
