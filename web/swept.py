"""A sweep's chart of final losses, for the sweep's page and as a single figure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from stablessm_core.spec.titles import setting_title
from web.binding import DASHES, bind
from web.palette import COLORS

KINDS = {"model.reparameterization.name": "map", "model.layer": "layer"}  # setting -> prefix of the names of its colours


def swept_figure(figure: Mapping[str, Any], grid: Mapping[str, Any]) -> dict[str, Any]:
    """One line per row of the grid, over the numbers of the grid's columns. grid: JSON of GET /api/sweeps/{id}/grid.

    Each point is the median of the finite runs of a cell, with the quartiles. A cell with lost runs has a mark at the edge, even
    if its other runs have a loss.
    """
    values = grid["columns"]["values"]
    order = sorted(
        (j for j, v in enumerate(values) if isinstance(v, int | float) and not isinstance(v, bool)), key=values.__getitem__
    )
    step = np.array([float(values[j]) for j in order])
    title = setting_title(grid["columns"]["path"] or "")
    items, data, spreads, lost = [], {}, [], []
    for i, value in enumerate(grid["rows"]["values"]):
        cells = [grid["cells"][i][j] for j in order]
        median, low, high = (np.array([_number(cell["loss"][part]) for cell in cells]) for part in ("median", "q25", "q75"))
        middle = np.where(median > 0, median, np.nan)[:, None].astype(np.float32)
        marked = np.array([[1.0 if cell["lost"] else 0.0] for cell in cells], np.float32)
        data[f"sweep/row-{i}"] = {"step": step, "min": middle, "max": middle, "last": middle, "nonfinite": marked}
        spreads.append({"array": np.nan_to_num(high - median).tolist(), "arrayminus": np.nan_to_num(median - low).tolist()})
        name = _label(value) if value is not None else ""
        lost.append(
            [f"{name} {title} {v:g}: {c['lost']} of {c['total']} lost" for v, c in zip(step, cells, strict=True) if c["lost"]]
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
    """A short label of a row: the name of a section, or the layer and the map of a model."""
    if not isinstance(value, Mapping):
        return value if isinstance(value, str) else json.dumps(value)
    map_ = (value.get("reparameterization") or {}).get("name")
    names = [part for part in (value.get("name", value.get("layer")), map_) if isinstance(part, str)]
    return ", ".join(names) or json.dumps(value, separators=(",", ":"))


def _number(value: Any) -> float:
    found = np.nan if value is None else float(value)
    return found if np.isfinite(found) else float("nan")
