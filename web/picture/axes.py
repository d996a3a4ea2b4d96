"""The axes of a picture: scales, ranges, titles and tick labels as in the figure's layout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator, ScalarFormatter

from web.picture.sizes import Size
from web.picture.text import plain, power_of_ten

INK, GRID = "#1b2130", "#e3e6ec"
MOST_DECADES = 15


def set_scales(axes: Any, layout: Mapping[str, Any]) -> None:
    """Set logarithmic scales. This comes before the data, because the limits depend on it."""
    for name in ("x", "y"):
        if layout[f"{name}axis"].get("type") == "log":
            getattr(axes, f"set_{name}scale")("log", nonpositive="clip")


def dress(axes: Any, layout: Mapping[str, Any], size: Size) -> None:
    """Titles, ranges, ticks and grid, after the data."""
    for name in ("x", "y"):
        wanted = layout[f"{name}axis"]
        getattr(axes, f"set_{name}label")(plain(wanted.get("title", {}).get("text") or ""), fontsize=size.font, color=INK)
        _limit(axes, name, wanted)
        if wanted.get("type") != "category":
            _ticks(axes, name, wanted, size)
    if layout["yaxis"].get("scaleanchor") == "x":
        axes.set_aspect("equal", adjustable="box")
    axes.grid(color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#8a93a3")
    axes.tick_params(which="minor", length=2, width=0.4)


def _limit(axes: Any, name: str, wanted: Mapping[str, Any]) -> None:
    set_limits = getattr(axes, f"set_{name}lim")
    ends = wanted.get("range")
    if ends:
        set_limits(*(10.0 ** float(end) if wanted.get("type") == "log" else float(end) for end in ends))
        return
    low, high = sorted(getattr(axes, f"get_{name}lim")())
    if wanted.get("rangemode") == "tozero":
        low, high = min(low, 0), max(high, 0)
    if wanted.get("autorange") == "reversed":
        low, high = high, low
    set_limits(low, high)


def _ticks(axes: Any, name: str, wanted: Mapping[str, Any], size: Size) -> None:
    axis = getattr(axes, f"{name}axis")
    room = (size.width if name == "x" else size.height) * 72 / size.font  # in heights of a letter
    most = max(3, min(7, int(room / (7 if name == "x" else 4))))
    if wanted.get("type") != "log":
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
        formatter = ScalarFormatter(useOffset=False)
        formatter.set_powerlimits((-3, 5))
        axis.set_major_formatter(formatter)
        axis.get_offset_text().set_fontsize(size.font - 0.5)
        return
    low, high = sorted(getattr(axes, f"get_{name}lim")())
    decades = math.log10(high / low) if low > 0 else MOST_DECADES
    if decades < 0.7:  # the ticks 1, 2 and 5 of a decade could all lie outside
        axis.set_major_locator(MaxNLocator(most))
    else:
        axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if decades < 2.5 else (1,), numticks=most + 1))
    axis.set_minor_locator(LogLocator(10, subs=tuple(range(2, 10)), numticks=50) if 1 <= decades < 8 else NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: log_label(value, powers=decades > 4)))


def log_label(value: float, *, powers: bool) -> str:
    """The label of a tick: 10⁻⁵, 0.02, 3·10⁻⁷. powers: write every power of ten as 10ⁿ, for an axis of many decades."""
    if value <= 0:
        return ""
    exponent = math.floor(math.log10(value) + 1e-9)
    digits = value / 10.0**exponent
    if -3 <= exponent <= 3 and not powers:
        return f"{value:.4g}"
    return power_of_ten(exponent) if abs(digits - 1) < 1e-6 else f"{digits:.3g}·{power_of_ten(exponent)}"
