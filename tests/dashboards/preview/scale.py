"""Axes: where their ticks are, and what stands at them.

The one decision: a scale maps to pixels by itself and knows nothing of the sheet.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tests.dashboards.preview.interpolate import Json
from tests.dashboards.preview.units import formatted

_TIMES: Final = (
    1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000,
)  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """A vertical axis between two values, drawn between two pixels; the upper pixel is the smaller number."""

    least: float
    most: float
    top: float
    bottom: float
    config: Json
    logarithmic: bool = False

    def y(self, value: float) -> float:
        """The pixel of a value."""
        least, most, value = self._straight(self.least), self._straight(self.most), self._straight(value)
        return self.bottom - (value - least) / (most - least) * (self.bottom - self.top)

    def ticks(self) -> list[float]:
        """Values with a line each, far enough from each other."""
        if self.logarithmic:
            powers = range(math.ceil(math.log10(self.least) - 1e-9), math.floor(math.log10(self.most) + 1e-9) + 1)
            every = max(1, math.ceil(len(powers) * 24 / max(self.bottom - self.top, 1)))
            return [10.0**power for power in powers][::every]
        size = self._increment()
        first = math.ceil(self.least / size - 1e-9)
        return [index * size for index in range(first, math.floor(self.most / size + 1e-9) + 1)]

    def labels(self) -> list[str]:
        """What stands at the ticks, all with the same number of decimals unless they are configured."""
        ticks, unit, decimals = self.ticks(), self.config.get("unit"), self.config.get("decimals")
        if decimals is None and unit in (None, "", "none", "short", "percent", "percentunit"):
            size = self._increment() * (100 if unit == "percentunit" else 1)
            if unit != "short" or self.most < 1000:
                decimals = max(0, -math.floor(math.log10(size) + 1e-9)) if not self.logarithmic else None
                if decimals is not None and round(size * 10**decimals, 6) % 1:
                    decimals += 1
        return [formatted(tick, unit, decimals) for tick in ticks]

    def _increment(self) -> float:
        room = max(self.bottom - self.top, 1.0)
        least = (self.most - self.least) * 30 / room
        decimals = self.config.get("decimals")
        if decimals is not None:
            # No two ticks with the same label.
            least = max(least, 10.0**-decimals / (100 if self.config.get("unit") == "percentunit" else 1))
        if self.config.get("unit") in ("bytes", "binBps", "bits"):
            return float(2 ** math.ceil(math.log2(least)))
        power = 10.0 ** math.floor(math.log10(least))
        steps: Sequence[float] = (1, 2, 2.5, 5, 10)
        return next((step * power for step in steps if step * power >= least * (1 - 1e-9)), 10 * power)

    def _straight(self, value: float) -> float:
        return math.log10(max(value, 1e-12)) if self.logarithmic else value


def scale_of(values: Sequence[float], config: Json, top: float, bottom: float) -> Scale:
    """The axis for some values, as wide as Grafana makes it: a tenth more than needed, down to zero where that is near.

    Args:
        values: All that are drawn on it.
        config: Of its first field.
        top: Upper pixel.
        bottom: Lower pixel.
    """
    custom = config.get("custom", {})
    logarithmic = custom.get("scaleDistribution", {}).get("type") == "log"
    if logarithmic:
        positive = [value for value in values if value > 0] or [1.0]
        least, most = 10 ** math.floor(math.log10(min(positive))), 10 ** math.ceil(math.log10(max(positive)))
        return Scale(least, most if most > least else least * 10, top, bottom, config, logarithmic=True)
    low, high = min(values, default=0.0), max(values, default=1.0)
    spread = (high - low) or abs(high) or 1.0
    unit = 10.0 ** math.floor(math.log10(spread)) / 10
    least = math.floor((low - spread / 10) / unit + 1e-9) * unit
    most = math.ceil((high + spread / 10) / unit - 1e-9) * unit
    least, most = max(least, 0.0) if low >= 0 else least, min(most, 0.0) if high <= 0 < spread and low < 0 else most
    soft_least, soft_most = custom.get("axisSoftMin"), custom.get("axisSoftMax")
    least = least if soft_least is None else min(least, float(soft_least)) if low < soft_least else float(soft_least)
    most = most if soft_most is None else max(most, float(soft_most)) if high > soft_most else float(soft_most)
    least = float(config["min"]) if config.get("min") is not None else least
    most = float(config["max"]) if config.get("max") is not None else most
    return Scale(least, most if most > least else least + 1, top, bottom, config)


def time_ticks(start: float, end: float, width: float) -> list[tuple[float, str]]:
    """Times with a label each, far enough from each other."""
    size = next((one for one in _TIMES if one * width / (end - start) >= 70), _TIMES[-1])
    form = "%H:%M:%S" if size < 60 else "%H:%M" if size < 86400 else "%m/%d"
    first = math.ceil(start / size)
    found = []
    for index in range(first, math.floor(end / size) + 1):
        moment = datetime.fromtimestamp(index * size, UTC)
        day = size < 86400 and moment.hour == moment.minute == moment.second == 0 and end - start > 86400
        found.append((float(index * size), f"{moment:%m/%d}" if day else f"{moment:{form}}"))
    return found
