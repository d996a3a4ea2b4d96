"""The looks of several runs: colours by layer and dashes by map, if there are several. Python and the browser agree."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

from stablessm_core.maps import MAPS
from stablessm_core.spec.layers import LAYERS
from tests.web.test_javascript import run_node
from web.looks import group_looks, run_looks
from web.palette import COLORS, MAP_DASHES

SCRIPT = """
import { readFileSync } from "node:fs";
const { groupLooks, runLooks } = await import(`${process.env.STATIC}/lib/looks.js`);
const { cases, palette } = JSON.parse(readFileSync(0, "utf8"));
const answers = cases.map((runs) => {
  const looks = runLooks(runs, palette);
  const names = [...new Set(runs.map((run) => run.group))];
  const groups = names.map((name) => [name, runs.map((run, i) => ({ ...run, ...looks[i] })).filter((run) => run.group === name)]);
  return { looks, groups: Object.fromEntries(groupLooks(groups).map((look, i) => [names[i], look])) };
});
console.log(JSON.stringify(answers));
"""


def runs_of(*kinds: tuple[str, str], by: str = "layer map") -> list[dict[str, str]]:
    """Runs from (layer, map) pairs. Runs with equal values of the fields in `by` form a group."""
    named = [{"layer": layer, "map": map_} for layer, map_ in kinds]
    return [run | {"group": ", ".join(run[part] for part in by.split()) or "all"} for run in named]


def python_looks(runs: list[dict[str, str]]) -> dict[str, Any]:
    looks = run_looks(runs)
    groups: dict[str, list[dict[str, str]]] = {}
    for run, look in zip(runs, looks, strict=True):
        groups.setdefault(run["group"], []).append(run | look)
    return {"looks": looks, "groups": group_looks(groups)}


def test_with_several_layers_colours_show_the_layer_and_dashes_show_the_map() -> None:
    found = python_looks(runs_of(("mamba", "exp"), ("s4d", "exp"), ("mamba", "best"), ("mamba", "exp")))
    exp, best = MAP_DASHES["exp"], MAP_DASHES["best"]
    assert [tuple(look.values()) for look in found["looks"]] == [
        ("layer-mamba", exp), ("layer-s4d", exp), ("layer-mamba", best), ("layer-mamba", exp),
    ]  # fmt: skip
    assert found["groups"]["mamba, best"] == {"color": "layer-mamba", "dash": best}
    by_layer = python_looks(runs_of(("mamba", "exp"), ("s4d", "exp"), ("mamba", "best"), by="layer"))["groups"]
    assert by_layer == {"mamba": {"color": "layer-mamba", "dash": "solid"}, "s4d": {"color": "layer-s4d", "dash": exp}}


def test_runs_of_a_single_layer_are_coloured_by_map() -> None:
    found = python_looks(runs_of(("s4d", "exp"), ("s4d", "best"), ("s4d", "exp"), by="map"))
    assert [tuple(look.values()) for look in found["looks"]] == [("map-exp", "solid"), ("map-best", "solid"), ("map-exp", "dash")]
    assert found["groups"] == {name: {"color": f"map-{name}", "dash": "solid"} for name in ("exp", "best")}


def test_groups_that_would_look_the_same_get_distinct_colours() -> None:
    runs = runs_of(("mamba", "exp"), ("s4d", "exp"), ("mamba", "exp"), ("s4d", "exp"), by="map")
    for run, group in zip(runs, "aabb", strict=True):
        run["group"] = group
    assert [look["color"] for look in python_looks(runs)["groups"].values()] == ["line-0", "line-1"]


def test_models_with_mixed_layers_use_the_generic_line_colours() -> None:
    looks = run_looks(runs_of(("lru, mamba", "exp"), ("mamba", "exp"), ("gla, mamba", "")))
    assert [look["color"] for look in looks] == ["line-0", "layer-mamba", "line-1"]
    assert looks[2]["dash"] == "solid"


def test_page_and_python_choose_the_same_colours_and_dashes(static_modules: Path) -> None:
    choice = random.Random(5)
    kinds = [*itertools.product([*LAYERS, "lru, mamba", "other"], [*MAPS, "gate", ""])]
    groupings = ["layer map", "layer", "map"]
    cases = [runs_of(*choice.sample(kinds, n), by=choice.choice(groupings)) for n in (1, 2, 3, 9, 30) for _ in range(4)]
    cases += [runs_of(("s4d", "exp"), ("s4d", "best"), ("s4d", "exp"), by="map")]
    palette = COLORS | {f"dash-{name}": dash for name, dash in MAP_DASHES.items()}
    given = json.dumps({"cases": cases, "palette": palette})
    answers = json.loads(run_node(static_modules, "--input-type=module", "-e", SCRIPT, stdin=given))
    assert answers == [python_looks(runs) for runs in cases]
