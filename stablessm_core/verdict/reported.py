"""The verdict on a run that another program trains and reports.

Its causes are the same. What is not known of such a run (a weight decay, what follows the states, the size of the batches) is
unknown to the causes that need it, so they do not apply. It has no autopsy, and its configuration is not ours to change.
"""

from __future__ import annotations

from stablessm_core.verdict.formats import value_of
from stablessm_core.verdict.inputs import Run, Source
from stablessm_core.verdict.sentences import Said, said, sentence
from stablessm_core.verdict.timeline import Event, event
from stablessm_core.verdict.words import eigenvalue_label

SHOWN = 20  # maximum number of alerts about numbers that are not finite


def begin(run: Run, known: bool) -> str:
    """How the run ended, unless a later sentence says it. known: whether something is said about its numbers."""
    match run.status:
        case "finished" | "cancelled" | "failed" if run.reason:
            reason = run.reason.rstrip(".")
            described = reason.startswith(run.status)  # no program gave a reason
            return (f"{reason[:1].upper()}{reason[1:]}" if described else f"{run.status.capitalize()}: {reason}") + "."
        case "finished" | "cancelled" | "failed":
            return f"{run.status.capitalize()} at step {run.step:,}."
        case "diverged":
            return "" if run.fatal is not None else f"Diverged at step {run.step:,}."
        case "lost":
            heard = f"Its program fell silent: {run.reason.rstrip('.')}." if run.reason else "Its program fell silent."
            return f"{heard} The run goes on if the program reports again; `stablessm sync` sends what its file still holds."
    if not run.step:
        return "Nothing is recorded yet."
    return f"So far, at step {run.step:,}:" if known else f"So far, {run.step:,} steps are recorded."


@sentence(
    "train/loss", holds="the loss of the last recorded row is not finite, and that row is not the one that the verdict names"
)
def last_loss_not_finite(run: Run, source: Source) -> str | None:
    rows = source.scalars(max(1, run.step - run.every), run.step) if run.step else None
    if rows is None or not len(rows) or abs(rows.loss[-1]) < float("inf"):
        return None
    if run.fatal is not None and int(run.fatal["step"]) == int(rows.step[-1]):
        return None
    return f"The loss of step {int(rows.step[-1]):,}, the last recorded one, is {value_of(float(rows.loss[-1]))}."


def last_loss(run: Run, source: Source) -> list[Said]:
    return said(last_loss_not_finite(run, source))


def nonfinite_events(run: Run) -> list[Event]:
    """The alerts about numbers that were not finite after the first one."""
    events = []
    for alert in run.nonfinite_alerts[:SHOWN]:
        layer, index = alert.get("layer"), alert.get("eigenvalue")
        at = "" if layer is None else f" at {eigenvalue_label(run, layer, index)}"
        what = {"": "A number", "loss": "The loss"}.get(str(alert["tensor"]), str(alert["tensor"]))
        became = {"NaN": "NaN", "Infinity": "infinite", "-Infinity": "infinite"}.get(str(alert.get("value") or ""), "not finite")
        events.append(event(alert["step"], "nonfinite", f"{what}{at} was first recorded as {became}.", layer, index))
    return events
