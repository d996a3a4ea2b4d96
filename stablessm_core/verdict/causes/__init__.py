"""The causes of a divergence, one file each, and the order in which they are asked. The first cause that applies is the
verdict's.

The folder is the list: a new cause is its file and its place in ORDER.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause

# Each reason says why a cause is asked before the next ones.
ORDER = {
    "bad_input": "What is wrong with a batch was there before anything was computed.",
    "changed_data": "The same for all batches from a step on.",
    "wrong_gradient": "It was measured against the loss itself; whatever a wrong gradient did to the weights is a consequence.",
    "precision": "The type of the operation that made the number is measured; it makes infinities of ordinary numbers.",
    "changed_loss": "The same outputs have another loss; the gradients that follow look like an explosion.",
    "bad_loss": "The loss function made the number from ordinary numbers, in float64 too.",
    "not_its_form": "Statements about eigenvalues mean nothing for a layer that does not compute the recorded form.",
    "arithmetic": "The step is finite in float64, and float32 could hold its results: no weight is to blame.",
    "optimizer": "Weights that the optimizer multiplies, or a rate that jumped, move eigenvalues, dt and losses afterwards.",
    "step_size": "A step size that ran away overflows states while every eigenvalue is inside the boundary.",
    "model_forward": "The forward pass made the number from ordinary numbers, and no eigenvalue or step size explains it.",
    "unknown_step": "A single step did it, and no record says what happened inside this step: no eigenvalue may be blamed.",
    "eigenvalue_overflow": "An eigenvalue was outside the boundary, and its powers exceed the range of float32.",
    "lr_too_large": "The first updates were fatal; an explosion needs more steps to show itself.",
    "explosion": "The loss rose far above its best, or the numbers outgrew float32, and nothing above explains it.",
    "unknown": "It always applies.",
}


def _causes() -> dict[str, Cause]:
    files = {module.name for module in iter_modules(__path__)} - {"cause"}
    if files != set(ORDER):
        raise ImportError(f"ORDER and the files of {__name__} differ in {sorted(files ^ set(ORDER))}")
    return {name: import_module(f"{__name__}.{name}").CAUSE for name in ORDER}


IN_ORDER = _causes()
LABELS = {cause.name: cause.label for cause in IN_ORDER.values()}  # by the name in the API
CAUSES = tuple(LABELS)
TESTED_BY = {cause.name: cause.tested_by for cause in IN_ORDER.values()}


def decide(case: Case) -> tuple[Cause, Answer]:
    """The cause of a divergence, and what it concludes."""
    for cause in IN_ORDER.values():
        answer = cause.find(case)
        if answer is not None:
            return cause, answer
    raise AssertionError("the last cause always applies")
