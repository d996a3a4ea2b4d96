"""Heat maps of a picture: one cell per eigenvalue and step, with a colour bar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from stablessm_core.telemetry.typed_arrays import decode
from web.picture.axes import log_label
from web.picture.sizes import Size
from web.picture.text import plain

Floats = NDArray[np.floating[Any]]


def draw_heat(figure: Figure, axes: Any, trace: Mapping[str, Any], x: Floats, y: Floats, size: Size) -> Any:
    """Draw the cells. In a PDF or SVG they are one image, because 100,000 cells would be 100,000 shapes."""
    z = decode(trace["z"]) if isinstance(trace["z"], Mapping) else np.empty((0, 0))
    if not z.size:
        return None
    z = np.ma.masked_invalid(np.asarray(z).reshape(len(y), len(x)))
    scale = trace["colorscale"]
    single = scale[0][1] if scale[0][1] == scale[-1][1] else None
    colors = LinearSegmentedColormap.from_list("of the page", [(at, color) for at, color in scale])
    limits = {"vmin": trace.get("zmin"), "vmax": trace.get("zmax")}
    mesh = axes.pcolormesh(_edges(x), _edges(y), z, cmap=colors, shading="flat", rasterized=True, linewidth=0, **limits)
    if single:
        return Patch(color=single, linewidth=0)
    bar = figure.colorbar(mesh, ax=axes, fraction=0.05, pad=0.015, aspect=28)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_locator(MaxNLocator(6, integer=trace["zmax"] - trace["zmin"] >= 2))
    wide = trace["zmax"] - trace["zmin"] >= 3
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: log_label(10.0**value, powers=wide)))
    bar.ax.tick_params(labelsize=size.font - 0.5, width=0.6, length=2.5)
    bar.set_label(plain(trace["colorbar"]["title"]["text"]), fontsize=size.font)
    return None


def _edges(centres: Floats) -> Floats:
    """The edges of cells that reach half way to their neighbours."""
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    between = (centres[1:] + centres[:-1]) / 2
    return np.concatenate([[2 * centres[0] - between[0]], between, [2 * centres[-1] - between[-1]]])
