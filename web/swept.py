"""A sweep's chart of final losses as a figure of its own; `static/grid.js` gives the page's the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from web.binding import DASHES, bind
from web.palette import COLORS

KINDS = {"model.reparameterization.name": "map", "model.layer": "layer"}  # whose values have colours of their own


def swept_figure(figure: Mapping[str, Any], grid: Mapping[str, Any]) -> dict[str, Any]:
    """From the JSON of GET /api/sweeps/{id}/grid: a line per value of the rows, over the numbers along the columns.

    The median of each cell's finite runs with quartiles; a cell with lost runs is marked at the edge, whatever the others' loss.
    """
    values = grid["columns"]["values"]
    order = sorted(
        (j for j, v in enumerate(values) if isinstance(v, int | float) and not isinstance(v, bool)), key=values.__getitem__
    )
    step = np.array([float(values[j]) for j in order])
    title = _short(grid["columns"]["path"] or "")
    items, data, spreads, lost = [], {}, [], []
    for i, value in enumerate(grid["rows"]["values"]):
        cells = [grid["cells"][i][j] for j in order]
        median, low, high = (np.array([_number(cell["loss"][part]) for cell in cells]) for part in ("median", "q25", "q75"))
        middle = np.where(median > 0, median, np.nan)[:, None].astype(np.float32)
        marked = np.array([[1.0 if cell["lost"] else 0.0] for cell in cells], np.float32)
        data[f"sweep/row-{i}"] = {"step": step, "min": middle, "max": middle, "last": middle, "nonfinite": marked}
        spreads.append({"array": np.nan_to_num(high - median).tolist(), "arrayminus": np.nan_to_num(median - low).tolist()})
        lost.append(
            [
                f"{_label(value)} {title} {v:g}: {c['lost']} of {c['total']} lost"
                for v, c in zip(step, cells, strict=True)
                if c["lost"]
            ]
        )
        own = f"{KINDS.get(grid['rows']['path'], '')}-{_label(value)}"
        look = {"color": own, "dash": DASHES[0]} if own in COLORS else {"color": f"line-{i % 8}", "dash": DASHES[i // 8 % 6]}
        items.append({"key": f"row-{i}", "label": _label(value) if grid["rows"]["path"] else "all", **look})
    drawn = bind(figure, data, items=items, colors=COLORS)
    log = len(step) > 0 and step[0] > 0
    drawn["layout"]["xaxis"] |= {"title": {"text": title}, "type": "log" if log else "linear"}
    seen = {"last": 0, "nonfinite": 0}
    for trace in drawn["data"]:
        field = trace["meta"]["field"]
        i, seen[field] = seen[field], seen[field] + 1
        if field == "nonfinite":
            trace["text"] = lost[i]
        else:
            trace["error_y"] = {"type": "data", "symmetric": False, "thickness": 1, "width": 4, **spreads[i]}
    return drawn


def _label(value: Any) -> str:
    """A row in a few characters: sections by their name, models by their layer and map."""
    if not isinstance(value, Mapping):
        return str(value)
    map_ = (value.get("reparameterization") or {}).get("name")
    return ", ".join(str(part) for part in (value.get("name", value.get("layer")), map_) if isinstance(part, str)) or str(value)


def _short(path: str) -> str:
    name = path.removesuffix(".name").split(".")[-1].replace("_", " ")
    return "learning rate" if name == "lr" else name


def _number(value: Any) -> float:
    found = np.nan if value is None else float(value)
    return found if np.isfinite(found) else float("nan")
