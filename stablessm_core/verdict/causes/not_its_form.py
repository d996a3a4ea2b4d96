"""A layer does not compute the form that is recorded for it, so its recorded eigenvalues are not those of its recurrence."""

from __future__ import annotations

from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause
from stablessm_core.verdict.formats import number
from stablessm_core.verdict.measured import FormCheck
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.words import ended


def _find(case: Case) -> Answer | None:
    checks = () if case.autopsy is None else case.autopsy.forms
    departs = [check for check in checks if check.agrees is False]
    if not departs or (case.measured_layer is not None and case.measured_layer not in [check.layer for check in departs]):
        return None
    return Answer(confidence="measured", layer=case.layer_of(departs[0].layer), about=departs[0])


@sentence(
    "autopsy.form",
    holds="with the weights of the fatal step, an eigenvalue of the layer differs from the recorded one by more than 1 % of "
    "its size",
)
def layer_departs_from_its_form(case: Case, check: FormCheck) -> str:
    return (
        f"Layer {check.layer} does not compute its recorded form: with the weights of step {case.step:,}, an eigenvalue "
        f"differs from the recorded one by {number(check.error)} x its size. What is recorded as its eigenvalues is not what "
        f"the layer does.{ended(case, 0)}"
    )


def _summary(case: Case, answer: Answer) -> list[Said]:
    return said(layer_departs_from_its_form(case, answer.about))


CAUSE = Cause(name="not_its_form", label="a layer departs from its recorded form", find=_find, summary=_summary)
