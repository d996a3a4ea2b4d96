"""A sweep's chart has one line per row, with the names and colours from the page's table."""

from __future__ import annotations

from typing import Any

from tests.web.test_javascript import plain
from web.figures import spec
from web.palette import COLORS
from web.swept import swept_figure


def cell(lost: int, total: int, median: float | None, q25: float | None = None, q75: float | None = None) -> dict[str, Any]:
    spread = {"median": median, "q25": median if q25 is None else q25, "q75": median if q75 is None else q75}
    return {"lost": lost, "total": total, "loss": spread}


def traces(path: str, values: list[Any], cells: list[list[dict[str, Any]]], rates: list[float]) -> list[dict[str, Any]]:
    grid = {"rows": {"path": path, "values": values}, "columns": {"path": "optimizer.lr", "values": rates}, "cells": cells}
    drawn = plain(swept_figure(spec("sweep_final_loss"), grid))
    assert isinstance(drawn, dict)
    assert drawn["layout"]["xaxis"]["title"] == {"text": "learning rate"}
    assert drawn["layout"]["xaxis"]["type"] == "log"
    return list(drawn["data"])


def test_sweep_lines_show_medians_with_quartiles_and_mark_every_cell_with_a_lost_run() -> None:
    cells = [[cell(0, 2, None), cell(0, 2, 0.5, 0.4, 0.75)], [cell(2, 2, None), cell(1, 2, 2)]]
    best, direct, no_mark, mark = traces("model.reparameterization.name", ["best", "direct"], cells, [1, 0.1])
    assert [best["name"], direct["name"]] == ["best", "direct"]
    assert [best["line"]["color"], direct["line"]["color"]] == [COLORS["map-best"], COLORS["map-direct"]]
    assert (best["x"], best["y"]) == ([0.1, 1.0], [0.5, "NaN"])
    assert [round(best["error_y"][side][0], 6) for side in ("array", "arrayminus")] == [0.25, 0.1]
    assert not no_mark["visible"]
    assert mark["x"] == [0.1, 1.0]
    assert mark["text"] == ["direct learning rate 0.1: 1 of 2 lost", "direct learning rate 1: 2 of 2 lost"]


def test_sweep_lines_are_labelled_with_layer_or_model_and_layers_use_their_colours() -> None:
    one = [[cell(0, 1, 1)]] * 2
    layers = traces("model.layer", ["s4d", {"name": "mamba", "d_state": 4}], one, [0.1])[:2]
    assert [(t["name"], t["line"]["color"]) for t in layers] == [("s4d", COLORS["layer-s4d"]), ("mamba", COLORS["layer-mamba"])]
    models = traces("model", [{"layer": "mamba", "reparameterization": {"name": "best"}}, {"d_model": 4}], one, [0.1])[:2]
    assert [(t["name"], t["line"]["color"]) for t in models] == [
        ("mamba, best", COLORS["line-0"]),
        ('{"d_model":4}', COLORS["line-1"]),
    ]
