"""Words that several sentences of a verdict share."""

from __future__ import annotations

from stablessm_core.verdict import facts
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.formats import number
from stablessm_core.verdict.inputs import Run

WHICH = {1: "the input", 2: "the target", 3: "input and target"}
THROWN_BY = {
    "optimizer_step": "thrown by the optimizer's steps",
    "gradient_spike": "thrown by a spike of its gradient",
    "explosion": "carried along by an explosion",
    "both": "",
}
CONFIDENCE = {
    "measured": (
        "measured",
        "An autopsy trained the fatal step again with instruments, or a record of the cause itself says it.",
    ),
    "inferred": ("inferred", "This follows from the recorded numbers. No autopsy has measured it."),
    "cannot_tell": ("cannot tell", "The recorded numbers fit more than one cause."),
}
OUTCOMES = {"lives": "✓", "dies": "✕", "open": "…"}  # of a fork that tests a verdict


def eigenvalue_label(run: Run, layer: int, eigenvalue: int | None = None, *, first: bool = False) -> str:
    """ "eigenvalue 9", or "eigenvalue 9 of layer 1" if the run has several layers. A reported run's layer is named by its path,
    too. An assumed map is stated."""
    known = [run.paths[layer]] if run.reported is not None and layer < len(run.paths) and run.paths[layer] else []
    more = "; ".join([*known, *(["its map is assumed"] if run.is_assumed(layer) else [])])
    path = f" ({more})" if more else ""
    if eigenvalue is None:
        text = f"layer {layer}{path}"
    else:
        text = f"eigenvalue {eigenvalue}" + (f" of layer {layer}{path}" if len(run.layers) > 1 or path else "")
    return text[0].upper() + text[1:] if first else text


RESERVED = {
    "assumed": (
        "if {} has the map that the names of its parameters suggest",
        "if {} have the maps that their parameters suggest",
    ),
    "decay": ("counting only the decay factor of {}", "counting only the decay factors of {}"),
    "diagonal": ("counting only the diagonal part of {}", "counting only the diagonal parts of {}"),
}


def reserved(run: Run) -> str:
    """What a statement about all eigenvalues takes for granted, as a clause that begins with a comma; empty if nothing."""
    clauses = []
    for kind, (of_one, of_many) in RESERVED.items():
        layers = [layer.index for layer in run.reserved(kind)]
        if len(layers) == 1:
            path = run.paths[layers[0]] if run.reported is not None and layers[0] < len(run.paths) else ""
            clauses.append(of_one.format(f"layer {layers[0]}" + (f" ({path})" if path else "")))
        elif layers:
            every = len(layers) == len(run.layers)
            clauses.append(of_many.format(f"all {len(layers):,} layers" if every else f"{len(layers):,} of the layers"))
    return "".join(f", {clause}" for clause in clauses)


def tensor_label(case: Case, *, first: bool = True) -> str:
    """The name of the tensor that became NaN or infinite. first: the name begins a sentence."""
    if case.tensor in ("", "loss"):
        return "The loss" if first else "the loss"
    layer = case.fatal.get("layer")
    if case.run.reported is None or layer is None:
        return case.tensor
    return f"{case.tensor} at {eigenvalue_label(case.run, layer, case.fatal.get('eigenvalue'))}"


def ended(case: Case, since: int) -> str:
    """When a number was no longer finite, as a further sentence; empty if that is the step `since`."""
    if since == case.step:
        return ""
    return f" At step {case.step:,}, {tensor_label(case, first=False)} was no longer finite."


def against_best(growth: facts.Growth) -> str:
    """The last loss compared with the best one: "1.3 x its best (0.7)"."""
    if growth.times == 1:
        return "its best so far"
    if growth.best > 0 and number(growth.times) == "1":
        return f"about its best ({number(growth.best)})"
    if growth.best > 0:
        return f"{number(growth.times)} x its best ({number(growth.best)})"
    return f"{number(growth.loss)} (its best was {number(growth.best)})"
