"""The stability map as an SVG file: |lambda| - 1 against the length of the sequence, with the line e^(88.72 / T)."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from studies.stability_map import Point, critical

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")  # one per map; colours that colour-blind readers can tell apart
LENGTHS_OF_LINE = 60


def stability_svg(points: Sequence[Point]) -> bytes:
    """The figure. Equal points give equal bytes. points: at least one.

    Filled markers are fatal steps, hollow markers the largest |lambda| of a finite step. Runs whose eigenvalues all stayed inside
    the boundary have no logarithm of |lambda| - 1, and stand on the lower edge.
    """
    import matplotlib as mpl  # here, because it takes a second and most commands draw nothing
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "stablessm", "svg.fonttype": "path", "text.parse_math": True, "font.size": 9}):
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes = figure.add_subplot()
        outside = [value - 1 for point in points if (value := point.shown) > 1]
        lines = [critical(point.length) - 1 for point in points]
        floor = min([*outside, *lines], default=0.1) / 4
        first, last = min(p.length for p in points), max(p.length for p in points)
        steps = [first * (last / first) ** (i / LENGTHS_OF_LINE) for i in range(LENGTHS_OF_LINE + 1)]
        axes.plot(steps, [math.expm1(88.72 / t) for t in steps], color="#444", label="$e^{88.72/T} - 1$")
        maps = list(dict.fromkeys(point.map for point in points))
        for map_, colour in zip(maps, COLOURS, strict=False):
            shift = 1 + 0.04 * (maps.index(map_) - (len(maps) - 1) / 2)  # so that markers of several maps do not hide each other
            for died, face in ((False, "none"), (True, colour)):
                own = [point for point in points if point.map == map_ and (point.fatal is not None) == died]
                x = [point.length * shift for point in own]
                y = [max(point.shown - 1, floor) for point in own]
                label = f"{map_}, {'fatal step' if died else 'lives'}"
                if own:
                    axes.scatter(x, y, s=22, facecolors=face, edgecolors=colour, linewidths=1, label=label)
        axes.set(xscale="log", yscale="log", xlabel="length T of the sequence", ylabel="largest |λ| - 1")
        lengths = sorted({point.length for point in points})
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", frameon=False)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": "StableSSM"})
        return out.getvalue()
