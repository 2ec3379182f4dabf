"""Colours by the names that Grafana's dark theme gives them.

The one decision: a colour is an ``#rrggbb`` text everywhere behind this file, opacity is a matter of the drawing.
"""

from collections.abc import Sequence
from typing import Final

from matplotlib.colors import to_hex, to_rgb

PAGE: Final = "#111217"
PANEL: Final = "#181b1f"
BORDER: Final = "#24272d"
RAISED: Final = "#22252b"
TEXT: Final = "#ccccdc"
FAINT: Final = "#8e8f9b"
GRID: Final = "#2a2d33"
LINK: Final = "#6e9fff"

_SHADES: Final = ("super-light", "light", "", "semi-dark", "dark")
_HUES: Final = {
    "red": ("#FFA6B0", "#FF7383", "#F2495C", "#E02F44", "#C4162A"),
    "orange": ("#FFCB7D", "#FFB357", "#FF9830", "#FF780A", "#FA6400"),
    "yellow": ("#FFF899", "#FFEE52", "#FADE2A", "#F2CC0C", "#E0B400"),
    "green": ("#C8F2C2", "#96D98D", "#73BF69", "#56A64B", "#37872D"),
    "blue": ("#C0D8FF", "#8AB8FF", "#5794F2", "#3274D9", "#1F60C4"),
    "purple": ("#DEB6F2", "#CA95E5", "#B877D9", "#A352CC", "#8F3BB8"),
}
_NAMED: Final = {
    f"{shade}-{hue}".lstrip("-"): value
    for hue, values in _HUES.items()
    for shade, value in zip(_SHADES, values, strict=True)
} | {"text": TEXT, "transparent": PANEL, "panel": PANEL}
_CLASSIC: Final = (
    "green", "semi-dark-yellow", "light-blue", "semi-dark-orange", "red", "blue", "purple", "#705DA0", "dark-green",
    "#CCA300", "#447EBC", "#C15C17", "#890F02", "#0A437C", "#6D1F62", "#584477", "#B7DBAB", "#F4D598", "#70DBED",
    "#F9BA8F", "#F29191", "#82B5D8", "#E5A8E2", "#AEA2E0",
)  # fmt: skip
_SCHEMES: Final = {
    "oranges": ("#fff5eb", "#fdd1a3", "#fd9243", "#de5005", "#7f2704"),
    "blues": ("#f7fbff", "#c7dcef", "#72b2d8", "#2877b9", "#08306b"),
    "greens": ("#f7fcf5", "#caeac3", "#7bc77d", "#2a924a", "#00441b"),
    "reds": ("#fff5f0", "#fcbea5", "#fb7050", "#d42020", "#67000d"),
    "spectral": ("#9e0142", "#f46d43", "#fbf8b0", "#7fcba9", "#5e4fa2"),
    "turbo": ("#23171b", "#26bce1", "#95fb51", "#ff821d", "#900c00"),
    "viridis": ("#440154", "#3e4a89", "#26828e", "#6ece58", "#fde725"),
    "continuous-rdylgr": ("#F2495C", "#FADE2A", "#73BF69"),
    "continuous-grylrd": ("#73BF69", "#FADE2A", "#F2495C"),
    "continuous-blues": ("#181b1f", "#5794F2"),
    "continuous-greens": ("#181b1f", "#73BF69"),
    "continuous-reds": ("#181b1f", "#F2495C"),
    "continuous-purples": ("#181b1f", "#B877D9"),
    "continuous-blpu": ("#5794F2", "#B877D9"),
    "continuous-ylrd": ("#FADE2A", "#F2495C"),
    "continuous-ylbl": ("#FADE2A", "#5794F2"),
    "continuous-blylrd": ("#5794F2", "#FADE2A", "#F2495C"),
}


def colour(name: str) -> str:
    """A colour by Grafana's name, CSS's name, or as it is; one that nobody knows is a loud magenta."""
    if name.startswith("rgb"):
        parts = name[name.index("(") + 1 : name.index(")")].split(",")
        red, green, blue = (float(part) / 255 for part in parts[:3])
        return to_hex((red, green, blue))
    try:
        return to_hex(_NAMED.get(name, name))
    except ValueError:
        return "#ff00ff"


def classic(index: int) -> str:
    """The colour of the n-th series in the classic palette."""
    return colour(_CLASSIC[index % len(_CLASSIC)])


def is_gradient(mode: str) -> bool:
    """Does a colour mode go by the value's place between least and most?"""
    return mode.lower() in _SCHEMES


def along(scheme: str, share: float) -> str:
    """The colour at a share (0 to 1) of the way along a scheme."""
    return between(_SCHEMES.get(scheme.lower(), _SCHEMES["oranges"]), share)


def between(stops: Sequence[str], share: float) -> str:
    """The colour at a share (0 to 1) of the way along some colours."""
    place = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    low = min(int(place), len(stops) - 2)
    return mixed(stops[low], stops[low + 1], place - low)


def mixed(below: str, above: str, share: float) -> str:
    """One colour with a share (0 to 1) of another one over it."""
    pairs = zip(to_rgb(below), to_rgb(above), strict=True)
    red, green, blue = (one + (other - one) * share for one, other in pairs)
    return to_hex((red, green, blue))


def on(background: str) -> str:
    """The colour of text that can be read on a background."""
    red, green, blue = to_rgb(background)
    return "#ffffff" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.6 else "#16171c"
