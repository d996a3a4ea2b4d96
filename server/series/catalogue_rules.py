"""The rules of a catalogue that this installation did not write: of an archive, or of a program that reports a run.

The readers of a run rely on these rules. A catalogue that passes all three functions can be read and shown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from server.series.layout import Layout
from stablessm_core.telemetry.limits import MAX_RUN_COLUMNS, MAX_RUN_SERIES
from stablessm_core.telemetry.series import DERIVED_GROUPS, LAYER_GROUPS, MEASURED_GROUPS, has_every_eigenvalue, source_group

STEPS = 3  # steps of the block from which every series is computed; some series need two consecutive steps


def name_problem(name: str, group: str, *, derived: bool) -> str | None:
    """Why a series of this name cannot be in this group; None if it can. The name of a layer's series contains its group."""
    if not group.startswith(LAYER_GROUPS):
        return f"name {name!r} does not fit the group {group!r}" if derived or name.startswith(LAYER_GROUPS) else None
    own = group.removesuffix(DERIVED_GROUPS).removesuffix(MEASURED_GROUPS)
    layer = own.removeprefix(LAYER_GROUPS).partition(".")[0]
    if "/" in own.removeprefix(LAYER_GROUPS) or not (layer.isascii() and layer.isdigit() and len(layer) <= 6):
        return f"group_name {group!r} does not name a layer"
    return None if name.rpartition("/")[0] == own else f"name {name!r} does not fit the group {group!r}"


def catalogue_problem(series: Sequence[Mapping[str, Any]]) -> str | None:
    """What the series of a run, as rows of the table `series`, have wrong together; None if nothing is wrong."""
    if len(series) > MAX_RUN_SERIES or sum(row["width"] for row in series) > MAX_RUN_COLUMNS:
        return f"it has {len(series):,} series; allowed: {MAX_RUN_SERIES:,} series with {MAX_RUN_COLUMNS:,} columns"
    forms: dict[str, dict[str, Any]] = {}
    for row in series:
        if row["form"] is not None and forms.setdefault(row["group_name"], row["form"]) != row["form"]:
            return f"the series of group {row['group_name']!r} have different forms"
    widths: dict[str, int] = {}
    for row in series:
        layer = source_group(row["group_name"])
        if not layer.startswith(LAYER_GROUPS) or layer.endswith(MEASURED_GROUPS) or not has_every_eigenvalue(row["name"]):
            continue
        if widths.setdefault(layer, row["width"]) != row["width"]:
            return f"the series of group {layer!r} have {widths[layer]:,} and {row['width']:,} eigenvalues"
    seen: set[str] = set()
    for row in series:
        if row["name"] in seen:
            return f"it holds the same record twice: the series {row['name']!r}"
        seen.add(row["name"])
    return None


def compute_every_series(layout: Layout, groups: Collection[str] | None = None) -> None:
    """Compute all series of each group, or of these groups, from a block of ones. This needs only the catalogue, no stored block.
    Raises whatever a reader of the series would raise."""
    columns: dict[str, int] = {}
    for row in layout.series.values():
        if not row.derived:
            columns[row.group] = max(columns.get(row.group, 0), row.offset + row.width)
    for group in {row.source for row in layout.series.values() if groups is None or row.source in groups}:
        layout.follows(group)
        for points in layout.points(group, 1, 1, np.ones((columns.get(group, 0), STEPS), np.float32)):
            if points.value.shape[1:] != (layout.series[points.name].width,):
                raise ValueError(f"series {points.name!r} has {layout.series[points.name].width} columns, computed: "
                                 f"{points.value.shape[1:]}")  # fmt: skip
