"""The verdict on a run: derives the cause, a summary and changes to try from the recorded values. Does not import torch."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stablessm_core.verdict import reported
from stablessm_core.verdict.advice import confirmation, offered
from stablessm_core.verdict.beginning import trouble_start
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes import CAUSES, LABELS, decide
from stablessm_core.verdict.causes.cause import CONFIDENCES
from stablessm_core.verdict.evidence import evidence
from stablessm_core.verdict.evidence_of_autopsy import frozen_trial
from stablessm_core.verdict.finished import begin, judge_finished, summary_of
from stablessm_core.verdict.inputs import Layer, Rows, Run, Scalars, Source
from stablessm_core.verdict.outside import unstable
from stablessm_core.verdict.replayed import completed
from stablessm_core.verdict.sentences import SENTENCES, Said, joined, said
from stablessm_core.verdict.timeline import events, reactions
from stablessm_core.verdict.trouble import Trouble
from stablessm_core.verdict.words import THROWN_BY as THROWN_WORDS

THROWN_BY = tuple(THROWN_WORDS)

__all__ = [
    "CAUSES", "CONFIDENCES", "LABELS", "SENTENCES", "THROWN_BY", "Layer", "Rows", "Run", "Scalars", "Source", "Trouble",
    "confirmation", "judge", "trouble_start", "unstable",
]  # fmt: skip

Verdict = dict[str, Any]
NO_CAUSE: Verdict = {"cause": None, "thrown_by": None, "confidence": None, "runner_up": None, "culprit": None, "try": []}


def judge(run: Run, source: Source) -> Verdict:
    """The verdict: {cause, thrown_by, confidence, runner_up, summary, sentences, culprit, trouble, events, evidence, try,
    unstable, confirmed}.

    cause: one of CAUSES; None if every number of the training is finite. thrown_by: one of THROWN_BY if an eigenvalue
    overflowed. confidence: one of CONFIDENCES. "measured": the cause rests on the autopsy or on a record of the cause itself;
    "inferred": it follows from recorded numbers; "cannot_tell": the numbers fit more than one cause. None without a cause.
    runner_up: the second cause that the data allow, or None. summary: the text of `sentences`, a list of {sentence, text, basis}.
    culprit: {layer, eigenvalue} or None. trouble: {step, kind, shown, exact} as `Trouble`, or None. events, evidence: lists of
    items with a `text` and a `basis`. try: [{change, because}]. unstable: see `unstable`. confirmed: an empty list. The caller
    fills this list with the `confirmation`s from the run's forks.
    """
    run, source = completed(run, source)
    verdict = _of_death(run, source) if run.fatal is not None else _of_finite(run, source)
    trouble = None if run.reported is not None else trouble_start(run, source)
    return verdict | {"trouble": None if trouble is None else asdict(trouble), "confirmed": []}


def _of_death(run: Run, source: Source) -> Verdict:
    case = Case(run, source)
    cause, answer = decide(case)
    sentences = cause.summary(case, answer)
    if cause.tested_by is not None:
        sentences += said(frozen_trial(case))
    happened, start = events(case, cause.events(case, answer)), ""
    if run.reported is not None:
        start, sentences = reported.begin(run, known=True), sentences + reported.last_loss(run, source)
        happened += [one for one in reported.nonfinite_events(run) if one["step"] > case.step]
    culprit = None
    if answer.layer is not None and answer.eigenvalue is not None:
        culprit = {"layer": answer.layer.index, "eigenvalue": answer.eigenvalue}
    return {
        "cause": cause.name,
        "thrown_by": answer.thrown_by,
        "confidence": answer.confidence,
        "runner_up": answer.runner_up,
        "summary": f"{start} {joined(sentences)}".strip(),
        "sentences": _listed(sentences),
        "culprit": culprit,
        "events": happened,
        "evidence": [one.item for one in evidence(case, cause, answer)],
        "try": offered(case, cause.advice(case, answer)) if run.reported is None else [],
        "unstable": unstable(run, source, case.step if case.worst is None else case.worst.step),
    }


def _of_finite(run: Run, source: Source) -> Verdict:
    rows = source.scalars(max(1, run.step - run.every), run.step) if run.step else None
    last = (run.step or None) if rows is None or not len(rows) else int(rows.step[-1])
    diverged = {"cause": "unknown", "confidence": "cannot_tell"} if run.status == "diverged" else {}
    ours = run.reported is None
    if last is None or (ours and (rows is None or not len(rows))):
        start = (begin(run, None) or "Nothing is recorded yet.") if ours else reported.begin(run, known=False)
        empty = {"sentences": [], "events": reactions(run), "evidence": [], "unstable": None}
        return NO_CAUSE | {"summary": start} | empty | diverged
    found = judge_finished(run, source, last)
    sentences = found["sentences"]
    start = begin(run, last) if ours else reported.begin(run, known=bool(sentences))
    about = {"summary": summary_of(start, sentences), "sentences": _listed(sentences), "unstable": unstable(run, source, last)}
    return NO_CAUSE | {"events": found["events"], "evidence": found["evidence"]} | about | diverged


def _listed(sentences: list[Said]) -> list[Verdict]:
    return [one.item for one in sentences]
