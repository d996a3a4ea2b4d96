"""How the run page presents a layer's record: its title, notes for readers, and its charts.

A record is an entry of GET /api/runs/{id}/series: {id, layer, name, eigenvalues, form, kinds, gates, module, note}.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stablessm_core.telemetry.forms import NO_MAP
from stablessm_core.telemetry.gradients import GRADIENTS
from stablessm_core.telemetry.series import LAYER_GROUPS, WIDE, layer_group
from web.charts import CHARTS
from web.figures import series_of

Record = Mapping[str, Any]

NOTES = {
    "fixed": "The decays of this layer are fixed and not trained. Therefore the layer has no gradient over weight and no "
    "relative step, and the eigenvalues do not move.",
    "none": "These weights are recorded in addition to the layer's eigenvalues and have no eigenvalues themselves.",
    "gate": "No single weight determines an eigenvalue. The layer reports the decay −ln|λ| at every step of a sequence. A row "
    "of weights determines this decay: the charts show the norm of the row as weight and the norm of its gradient as gradient. "
    "The decay also changes with the batch, so the relative step of an update is unknown.",
    "varies": "The eigenvalues vary with the input. The charts show their geometric mean over batch and time, which is the "
    "average decay of a state. If a gate preserves its state, a very small closest distance to the boundary is normal.",
    "channels": "All channels share each mode, and each channel has its own step size. The charts show |λ| at the mean step "
    "size and at the smallest step size.",
    "radius": "No weight has its own eigenvalue. The charts show the spectral radius, which is the largest |λ| of the matrix "
    "that all weights form together, and the norm of all weights. All eigenvalues, the certified gain and the "
    "measured gain are computed at evaluations.",
    "shared": "{eigenvalues} eigenvalues share {gates} gates: the line of an eigenvalue shows its gate.",
    "unbounded": "This layer normalises its kernel over the sequence. The charts show |λ| = 1, but it is not a stability "
    "boundary of this layer, so eigenvalues beyond it are allowed.",
    "complex": "Complex eigenvalues come in conjugate pairs. The plane shows the eigenvalue above the real axis; charts over "
    "steps show its absolute value.",
    "half_plane": "An eigenvalue of this layer has no single λ in the discrete recurrence, so there is no unit disc.",
    "bilinear": "The bilinear rule moves fast oscillations towards −1, so a small distance to the boundary does not always mean "
    "a long memory.",
    "measured": "The eigenvalues recorded at every step are those of the diagonal part. The eigenvalues of the whole transition "
    "are computed at evaluations and have their own chart.",
    "zero": "A weight of this layer may be exactly 0, which makes |dL/dw| / |w| infinite. Such ratios are marked “infinite: "
    "weight is 0” and excluded from range and median. Another chart shows the gradient itself.",
    "wide": f"For more than {WIDE:,} eigenvalues only quantiles and extremes are recorded (see Downloads). The option "
    "telemetry.all_eigenvalues records every eigenvalue.",
    "gate_zero": "The eigenvalues of this layer depend on the token. The charts show their values at a zero input.",
    "unconfirmed": "The names and shapes of the parameters suggest this layer; no table knows the module's class. Check that the "
    "parameter means what the charts say, or declare it with layers=… in stablessm.watch.",
}
UNCONFIRMED = "unconfirmed"  # part of the note on a layer that is known by its parameters' names alone


def title(record: Record) -> str:
    """The record's title: the layer's index and name ("0 · mamba"), then a further record's name ("0 · mamba: dt_bias")."""
    own = " · ".join(part for part in (str(record["layer"]), record["name"]) if part)
    further = str(record["id"]).partition(".")[2]
    return f"{own}: {further}" if further else own


def composition(records: Sequence[Record]) -> str:
    """Short summary of a run's layers: "2 × mamba of 512 eigenvalues, lru of 64". Layers that are named by their paths, such as
    "backbone.layers.0", are only counted: "24 × layer of 512 eigenvalues"."""
    layers = Counter((_kind(r["name"]), r["eigenvalues"]) for r in records if r["id"] == str(r["layer"]))
    parts: list[str] = []
    for (name, count), times in layers.items():
        many = f"{times} × " if times > 1 else ""
        unit = (" eigenvalue" if count == 1 else " eigenvalues") if not parts else ""
        parts.append(f"{many}{name}" + (f" of {count:,}{unit}" if count is not None else ""))
    if any(is_unconfirmed(record) for record in records):
        parts.append("by parameter name, unconfirmed")
    return ", ".join(parts)


def is_unconfirmed(record: Record) -> bool:
    """True if only the names of its parameters suggest that the layer has these eigenvalues."""
    return UNCONFIRMED in (record.get("note") or "")


def gradient_state(record: Record, environment: Mapping[str, Any] | None) -> str:
    """Which gradient a reported run records for the layer, such as "gradient: clipped"; "" if that is not stated."""
    stated = (environment or {}).get("gradient")
    known = isinstance(stated, str) and stated in GRADIENTS and any(kind.startswith("grad") for kind in record["kinds"])
    return f"gradient: {stated}" if known else ""


def _kind(name: str) -> str:
    return name if name and "." not in name else "layer"


def map_of(record: Record) -> str:
    """Name of the map from weight to eigenvalue; "" if there is none."""
    name = str((record["form"] or {}).get("map", ""))
    return "" if name in NO_MAP else name


def bounded(record: Record) -> bool:
    """Whether |lambda_bar| = 1 is a boundary of stability."""
    return bool((record["form"] or {}).get("bounded", True))


def draws(chart: str, record: Record | None) -> bool:
    """Whether the record has a series that the chart shows. If its series are unknown: whether most records have one."""
    if record is None or not record["kinds"]:
        return not CHARTS[chart].optional
    prefix = layer_group("{layer}") + "/"
    kinds = {name.removeprefix(prefix) for name in series_of(chart) if name.startswith(LAYER_GROUPS)}
    return not kinds.isdisjoint(record["kinds"])


def notes(record: Record) -> list[str]:
    """Notes for readers of the record's charts, one or two sentences each."""
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
        "gate_zero": "at gate zero" in (record.get("note") or ""),
        "unconfirmed": is_unconfirmed(record),
    }
    counts = {"eigenvalues": f"{eigenvalues:,}", "gates": f"{gates:,}"} if shared else {}
    return [NOTES[what].format(**counts) for what, does in applies.items() if does]
