"""Training loss of each step, and the loss on the evaluation split."""

from __future__ import annotations

from web.charts.parts import Chart, Figure, band, figure, line, notes


def build() -> Figure:
    train, evaluation = "train/loss", "eval/loss"
    ev = line(evaluation, "eval", "line-1")
    ev.update(mode="lines+markers", marker={"size": 5})
    traces = [*band(train, "train range", "accent"), line(train, "train", "accent"), ev, *notes(train, evaluation, log=True)]
    return figure(traces, "loss", y_type="log")


CHART = Chart(
    name="loss",
    title="Loss",
    meaning="Training loss of each step and mean loss on the evaluation split.",
    scope="run",
    build=build,
    alerts=("train/loss", "eval/loss", ""),  # "": alerts about the run as a whole
    placed=True,
)
