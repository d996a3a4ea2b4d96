"""How several runs look: colours by layer and dashes by map where there are several, in Python as in the browser."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

from stablessm_core.layers.registry import LAYERS
from stablessm_core.maps import MAPS
from tests.web.test_javascript import run_node
from web.looks import group_looks, run_looks
from web.palette import COLORS, MAP_DASHES

SCRIPT = """
import { readFileSync } from "node:fs";
const { MAP_DASHES, groupLooks, runLooks } = await import(`${process.env.STATIC}/looks.js`);
const { cases, colors } = JSON.parse(readFileSync(0, "utf8"));
const answers = cases.map((runs) => {
  const looks = runLooks(runs, (color) => colors.includes(color));
  const names = [...new Set(runs.map((run) => run.group))];
  const groups = names.map((name) => [name, runs.map((run, i) => ({ ...run, ...looks[i] })).filter((run) => run.group === name)]);
  return { looks, groups: Object.fromEntries(groupLooks(groups).map((look, i) => [names[i], look])) };
});
console.log(JSON.stringify({ answers, dashes: MAP_DASHES }));
"""


def runs_of(*kinds: tuple[str, str], by: str = "layer map") -> list[dict[str, str]]:
    """Runs of (layer, map), each in the group of those with the same of `by`."""
    named = [{"layer": layer, "map": map_} for layer, map_ in kinds]
    return [run | {"group": ", ".join(run[part] for part in by.split()) or "all"} for run in named]


def python_looks(runs: list[dict[str, str]]) -> dict[str, Any]:
    looks = run_looks(runs)
    groups: dict[str, list[dict[str, str]]] = {}
    for run, look in zip(runs, looks, strict=True):
        groups.setdefault(run["group"], []).append(run | look)
    return {"looks": looks, "groups": group_looks(groups)}


def test_several_layers_have_their_colours_and_maps_their_dashes() -> None:
    found = python_looks(runs_of(("mamba", "exp"), ("s4d", "exp"), ("mamba", "best"), ("mamba", "exp")))
    exp, best = MAP_DASHES["exp"], MAP_DASHES["best"]
    assert [tuple(look.values()) for look in found["looks"]] == [
        ("layer-mamba", exp), ("layer-s4d", exp), ("layer-mamba", best), ("layer-mamba", exp),
    ]  # fmt: skip
    assert found["groups"]["mamba, best"] == {"color": "layer-mamba", "dash": best}
    by_layer = python_looks(runs_of(("mamba", "exp"), ("s4d", "exp"), ("mamba", "best"), by="layer"))["groups"]
    assert by_layer == {"mamba": {"color": "layer-mamba", "dash": "solid"}, "s4d": {"color": "layer-s4d", "dash": exp}}


def test_one_layer_is_coloured_by_map_as_ever() -> None:
    found = python_looks(runs_of(("s4d", "exp"), ("s4d", "best"), ("s4d", "exp"), by="map"))
    assert [tuple(look.values()) for look in found["looks"]] == [("map-exp", "solid"), ("map-best", "solid"), ("map-exp", "dash")]
    assert found["groups"] == {name: {"color": f"map-{name}", "dash": "solid"} for name in ("exp", "best")}


def test_groups_that_would_look_the_same_take_colours_of_their_own() -> None:
    runs = runs_of(("mamba", "exp"), ("s4d", "exp"), ("mamba", "exp"), ("s4d", "exp"), by="map")
    for run, group in zip(runs, "aabb", strict=True):
        run["group"] = group
    assert [look["color"] for look in python_looks(runs)["groups"].values()] == ["line-0", "line-1"]


def test_mixed_layers_have_the_lines_colours() -> None:
    looks = run_looks(runs_of(("lru, mamba", "exp"), ("mamba", "exp"), ("gla, mamba", "")))
    assert [look["color"] for look in looks] == ["line-0", "layer-mamba", "line-1"]
    assert looks[2]["dash"] == "solid"


def test_page_and_python_give_the_same_looks(static_modules: Path) -> None:
    choice = random.Random(5)
    kinds = [*itertools.product([*LAYERS, "lru, mamba", "other"], [*MAPS, "gate", ""])]
    groupings = ["layer map", "layer", "map"]
    cases = [runs_of(*choice.sample(kinds, n), by=choice.choice(groupings)) for n in (1, 2, 3, 9, 30) for _ in range(4)]
    cases += [runs_of(("s4d", "exp"), ("s4d", "best"), ("s4d", "exp"), by="map")]
    asked = json.dumps({"cases": cases, "colors": list(COLORS)})
    answer = json.loads(run_node(static_modules, "--input-type=module", "-e", SCRIPT, stdin=asked))
    assert answer["dashes"] == MAP_DASHES
    assert answer["answers"] == [python_looks(runs) for runs in cases]
