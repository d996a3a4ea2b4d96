"""From a step on, every batch is far above the batches before: a lasting change of the data, not one bad batch."""

from __future__ import annotations

from stablessm_core.telemetry import series as names
from stablessm_core.verdict import batches
from stablessm_core.verdict.case import Case
from stablessm_core.verdict.causes.cause import Answer, Cause
from stablessm_core.verdict.formats import number
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.words import WHICH, ended


def find(case: Case) -> Answer | None:
    bad = case.bad
    if bad is not None and (not bad.finite or bad.since is not None):
        return None
    change = batches.changed_batches(case.scalars, case.step)
    lives = case.lives("batches_scaled")
    if lives and bad is not None and change is None and case.dies_soon("batch_left_out"):
        return Answer(confidence="measured", about=bad)  # it lives without the size, and dies without the first large batch
    if change is None or (lives is None and not _began_then(case, change.step)) or lives is False:
        return None
    return Answer(confidence="measured" if lives else "inferred", about=change)


def _began_then(case: Case, step: int) -> bool:
    """Whether the loss rose, or the run ended, within RECENT rows after this step, and not before it."""
    rise = case.rise
    return rise is not None and step <= rise <= step + batches.RECENT * case.run.every


@sentence(
    names.LARGEST_INPUT, names.LARGEST_TARGET,
    holds="of the last 1,024 rows, the largest number of each batch from this step on is at least 3 x that of every batch "
    "before, and their median is at least 10 x the median before, with 2 rows or more on both sides; and the loss rose, or "
    "the run ended, at most 20 rows later, or the run lives with batches of the usual size",
)  # fmt: skip
def every_batch_far_above(case: Case, change: batches.ChangedBatches) -> str:
    part = WHICH[change.which].removeprefix("the ")
    return (
        f"The data changed at step {change.step:,}: since then the largest {part} of each of {change.rows:,} recorded batches "
        f"was at least {number(change.smallest_after)}; before, it was at most "
        f"{number(change.largest_before)}.{ended(case, change.step)}"
    )


@sentence(
    "autopsy.counterfactuals",
    holds="the run lives with every batch scaled to its usual size, and without the first large batch alone it dies at most 5 "
    "steps after its fatal step",
)
def more_than_one_batch(case: Case, bad: batches.BadBatch) -> str:
    return (
        f"The data: from step {bad.step:,} on, more than one batch is far above usual. The run lives if every batch has its "
        f"usual size, and dies if only the batch of step {bad.step:,} is left out.{ended(case, bad.step)}"
    )


def _summary(case: Case, answer: Answer) -> list[Said]:
    if isinstance(answer.about, batches.BadBatch):
        return said(more_than_one_batch(case, answer.about))
    return said(every_batch_far_above(case, answer.about))


CAUSE = Cause(name="changed_data", label="the data changed", find=find, summary=_summary)
