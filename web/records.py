"""What a run's page says of its layers: which record is shown, what its form means for the reader, which charts it has.

A record is as GET /api/runs/{id}/series lists it: {id, layer, name, eigenvalues, form, kinds, gates}.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stablessm_core.forms import NO_MAP
from stablessm_core.telemetry.series import LAYER_GROUPS, WIDE, layer_group
from web.figures import CHARTS, series_of

Record = Mapping[str, Any]

NOTES = {
    "fixed": "The decays of this layer are fixed: nothing trains them. So there is no gradient over weight, no relative step "
    "and no chart of either; what is drawn stays where it began.",
    "none": "These weights are watched beside the layer's eigenvalues and have none of their own.",
    "gate": "No single weight decides an eigenvalue here: the layer reports its decay −ln|λ| at every step of a sequence. The "
    "weight shown is the norm of the row of weights that decides it, the gradient that of the row's gradient.",
    "varies": "The eigenvalues vary with the input: shown is their geometric mean over batch and time, with which a state "
    "decays on the whole. That the closest approach to the boundary, drawn beside it, is small is normal for a gate "
    "that keeps its state.",
    "channels": "Every mode belongs to all channels, each of which has a step size of its own: shown is |λ| at the mean step "
    "size, and beside it at the smallest.",
    "radius": "No weight has an eigenvalue of its own here: shown is the spectral radius, the largest |λ| of the matrix that "
    "all weights together make, and as weight the norm of them all. All of its eigenvalues, and the certified gain "
    "beside the measured one, are computed at evaluations.",
    "shared": "{eigenvalues} eigenvalues share {gates} gates: the line of an eigenvalue is that of its gate.",
    "unbounded": "This layer normalises its kernel over the sequence: |λ| = 1 is drawn, but it is no boundary of stability here, "
    "and eigenvalues beyond it are legal.",
    "complex": "Complex eigenvalues come in conjugate pairs: one of each pair is drawn, above the real axis; over steps its "
    "absolute value is.",
    "half_plane": "No single λ of the discrete recurrence belongs to an eigenvalue here, so there is no unit disc.",
    "bilinear": "The bilinear rule sends fast oscillations towards −1: a small distance to the boundary need not be a long "
    "memory.",
    "measured": "The eigenvalues followed at every step are those of the diagonal part; those of the whole transition are "
    "computed at evaluations, in a chart of their own.",
    "zero": "A weight may be exactly 0 here, where |dL/dw| / |w| is infinite: such ratios are marked “infinite: weight is 0” "
    "and left out of range and median; the gradient itself is drawn beside them.",
    "wide": f"Of more than {WIDE:,} eigenvalues quantiles and the most extreme are recorded (see Downloads), every one with "
    "telemetry.all_eigenvalues.",
}


def title(record: Record) -> str:
    """Its place and what it is, 0 · mamba; of further weights of a layer also which, 0 · mamba: dt_bias."""
    own = " · ".join(part for part in (str(record["layer"]), record["name"]) if part)
    further = str(record["id"]).partition(".")[2]
    return f"{own}: {further}" if further else own


def composition(records: Sequence[Record]) -> str:
    """The layers of a run in a few words: "2 × mamba of 512 eigenvalues, lru of 64"."""
    layers = Counter((r["name"] or "layer", r["eigenvalues"]) for r in records if r["id"] == str(r["layer"]))
    parts: list[str] = []
    for (name, count), times in layers.items():
        many = f"{times} × " if times > 1 else ""
        unit = " eigenvalues" if not parts else ""
        parts.append(f"{many}{name}" + (f" of {count:,}{unit}" if count is not None else ""))
    return ", ".join(parts)


def map_of(record: Record) -> str:
    """The map from weight to eigenvalue; "" where there is none."""
    name = str((record["form"] or {}).get("map", ""))
    return "" if name in NO_MAP else name


def bounded(record: Record) -> bool:
    """Whether |lambda_bar| = 1 is a boundary of stability."""
    return bool((record["form"] or {}).get("bounded", True))


def draws(chart: str, record: Record | None) -> bool:
    """Whether the record has what the chart shows. Of one whose series are not known yet: whether most have it."""
    if record is None or not record["kinds"]:
        return not CHARTS[chart].optional
    prefix = layer_group("{layer}") + "/"
    kinds = {name.removeprefix(prefix) for name in series_of(chart) if name.startswith(LAYER_GROUPS)}
    return not kinds.isdisjoint(record["kinds"])


def notes(record: Record) -> list[str]:
    """What one must know to read its charts, a sentence or two each."""
    form = record["form"] or {"map": "", "rule": ""}
    kinds, eigenvalues, gates = set(record["kinds"]), record["eigenvalues"], record["gates"]
    shared = eigenvalues is not None and gates is not None and 1 < gates < eigenvalues
    applies = {
        "fixed": form["map"] == "fixed",
        "none": form["map"] == "none",
        "radius": form["map"] == "gate" and "certified_gain" in kinds,
        "gate": form["map"] == "gate" and "certified_gain" not in kinds,
        "channels": bool(form.get("gate")) and form.get("phase") == "half_plane",
        "varies": bool(form.get("gate")) and form.get("phase") != "half_plane" and "certified_gain" not in kinds,
        "shared": shared,
        "unbounded": not bounded(record),
        "complex": bool(form.get("phase")),
        "half_plane": form.get("phase") == "half_plane",
        "bilinear": form["rule"] == "bilinear",
        "measured": "true_eigenvalue" in kinds and "certified_gain" not in kinds,
        "zero": "gradient" in kinds,
        "wide": "weight_quantiles" in kinds,
    }
    counts = {"eigenvalues": f"{eigenvalues:,}", "gates": f"{gates:,}"} if shared else {}
    return [NOTES[what].format(**counts) for what, does in applies.items() if does]
