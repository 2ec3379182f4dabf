"""A sheet to draw on in pixels, with the y axis down, as a browser counts.

The one decision: one matplotlib axes covers the whole sheet and everything is drawn on it in pixels, charts too, so
that what overlaps in the picture is what overlaps in the numbers. Texts are measured before they are drawn.
"""

import io
import logging
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, Self

from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.textpath import TextToPath
from PIL import Image

from tests.dashboards.preview.colours import PAGE, TEXT
from tests.dashboards.preview.palette import reduced

_DPI = 72  # one point is one pixel
# The first one that is there; the last one comes with matplotlib. Grafana has Inter, which is narrower than DejaVu.
_FAMILIES = ("Inter", "Roboto", "DejaVu Sans")
_PAPER = TextToPath()
Align = Literal["left", "center", "right"]


class Area(NamedTuple):
    """A rectangle in pixels; y is its upper edge."""

    x: float
    y: float
    w: float
    h: float

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.w

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.h

    @property
    def middle(self) -> tuple[float, float]:
        """Its centre."""
        return self.x + self.w / 2, self.y + self.h / 2

    def inset(self, left: float, top: float, right: float, bottom: float) -> Self:
        """The area without so much at its edges, never less than one pixel."""
        return self._replace(
            x=self.x + left, y=self.y + top, w=max(self.w - left - right, 1.0), h=max(self.h - top - bottom, 1.0)
        )


@cache
def _family() -> str:
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    known = {font.name for font in font_manager.fontManager.ttflist}
    return next(name for name in _FAMILIES if name in known)


@cache
def _font(size: float, weight: str) -> FontProperties:
    # DejaVu's letters are a seventh wider than Inter's: as wide as in Grafana counts here, not as high.
    size = size if _family() != "DejaVu Sans" else size * 0.88
    return FontProperties(family=_family(), size=size, weight=weight)


@cache
def width_of(text: str, size: float = 14, weight: str = "normal") -> float:
    """Width of a text in pixels."""
    if not text:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that no font has
        return float(_PAPER.get_text_width_height_descent(text, _font(size, weight), ismath=False)[0])


def shortened(text: str, room: float, size: float = 14, weight: str = "normal") -> str:
    """A text that fits into so many pixels, with an ellipsis where it was cut."""
    if width_of(text, size, weight) <= room:
        return text
    low, high = 0, len(text)
    while low < high:
        half = (low + high + 1) // 2
        low, high = (half, high) if width_of(text[:half] + "…", size, weight) <= room else (low, half - 1)
    return text[:low].rstrip() + "…" if low else ""


class Canvas:
    """A sheet of so many pixels.

    Args:
        width: Of the picture.
        height: Of the picture.
    """

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor=PAGE)
        FigureCanvasAgg(self._figure)
        self._axes = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set_axis_off()
        self._axes.set_autoscale_on(False)
        self._axes.set_xlim(0, width)
        self._axes.set_ylim(height, 0)
        self._order = 0.0

    def box(
        self, area: Area, fill: str, *, edge: str | None = None, radius: float = 0, opacity: float = 1, clip: Any = None
    ) -> None:
        """A filled rectangle, with round corners if wanted."""
        style: dict[str, Any] = {
            "facecolor": fill,
            "edgecolor": edge or "none",
            "linewidth": 1 if edge else 0,
            "alpha": opacity,
            "zorder": self._next(),
        }
        if radius:
            shape = f"round,pad=0,rounding_size={min(radius, area.w / 2, area.h / 2)}"
            patch: Any = FancyBboxPatch((area.x, area.y), area.w, area.h, boxstyle=shape, **style)
        else:
            patch = Rectangle((area.x, area.y), area.w, area.h, **style)
        self._axes.add_patch(patch)
        self._clip(patch, clip)

    def line(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        stroke: str,
        *,
        width: float = 1,
        dashed: bool = False,
        opacity: float = 1,
        marker: float = 0,
        clip: Area | None = None,
    ) -> None:
        """A line through points, with a gap where one is NaN."""
        (drawn,) = self._axes.plot(
            xs, ys, color=stroke, linewidth=width, alpha=opacity, zorder=self._next(),
            linestyle=(0, (5, 4)) if dashed else "-", solid_capstyle="butt", solid_joinstyle="round",
            marker="o" if marker else "", markersize=marker, markeredgewidth=0,
        )  # fmt: skip
        self._clip(drawn, clip)

    def fill(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        base: Sequence[float],
        fill: str,
        *,
        opacity: float,
        clip: Area | None = None,
    ) -> None:
        """The surface between two lines."""
        surface = self._axes.fill_between(xs, ys, base, color=fill, alpha=opacity, linewidth=0, zorder=self._next())
        self._clip(surface, clip)

    def dot(self, x: float, y: float, radius: float, fill: str) -> None:
        """A filled circle."""
        self.line([x], [y], fill, width=0, marker=radius * 2)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 14,
        fill: str = TEXT,
        weight: str = "normal",
        align: Align = "left",
        room: float | None = None,
        turned: bool = False,
    ) -> float:
        """A text whose middle line is at y, cut to the room that it has.

        Returns:
            Its width.
        """
        shown = text if room is None else shortened(text, room, size, weight)
        self._axes.text(
            x, y, shown, fontproperties=_font(size, weight), color=fill, ha=align, va="center_baseline",
            parse_math=False, zorder=self._next(), rotation=90 if turned else 0, rotation_mode="anchor",
        )  # fmt: skip
        return width_of(shown, size, weight)

    def png(self) -> bytes:
        """The sheet as a small PNG, of the 256 colours that cover most of it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a glyph that no font has
            self._figure.canvas.draw()
        image = Image.frombuffer("RGBA", self._pixels(), self._figure.canvas.buffer_rgba())  # type: ignore[attr-defined]
        out = io.BytesIO()
        small = reduced(image.convert("RGB"))
        small.save(out, "PNG", optimize=True)
        return out.getvalue()

    def _pixels(self) -> tuple[int, int]:
        return round(self.width), round(self.height)

    def _next(self) -> float:
        self._order += 1
        return self._order

    def _clip(self, artist: Any, area: Area | None) -> None:
        if area is not None:
            artist.set_clip_path(Rectangle((area.x, area.y), area.w, area.h, transform=self._axes.transData))
