"""The charts of a whole run: its loss, and charts of one number per step. CHARTS has a row per chart."""

from __future__ import annotations

from typing import Any

from web.charts.parts import Chart, Figure, band, figure, line, notes


def scalar_chart(
    name: str, title: str, series: str, unit: str, meaning: str, *,
    log: bool = False, axis: dict[str, Any] | None = None, **page: Any,
) -> Chart:  # fmt: skip
    """A chart with one number per step. axis: properties of the vertical axis; page: fields of `Chart`, both in addition to the
    defaults."""

    def build() -> Figure:
        kind = series.split("/")[1]
        traces = [*band(series, f"{kind} range", "accent"), line(series, kind, "accent"), *notes(series, log=True)]
        drawn = figure(traces, unit, y_type="log" if log else "linear", showlegend=False)
        drawn.layout.yaxis.update(axis or {})
        return drawn

    return Chart(name=name, title=title, meaning=meaning, scope="run", build=build, **page)


def loss() -> Figure:
    train, evaluation, test = "train/loss", "eval/loss", "test/loss"
    ev, tested = line(evaluation, "eval", "line-1"), line(test, "test at the best eval", "line-2", dash="dot")
    ev.update(mode="lines+markers", marker={"size": 5})
    tested.update(mode="lines+markers", marker={"size": 5, "symbol": "diamond"})
    tested.meta["optional"] = True
    lines = [line(train, "train", "accent"), ev, tested]
    traces = [*band(train, "train range", "accent"), *lines, *notes(train, evaluation, test, log=True)]
    return figure(traces, "loss", y_type="log")


def metric() -> Figure:
    """The chart of one free metric; "{metric}" stands for its name."""
    name = "{metric}"
    drawn = line(name, "value", "accent")
    drawn.update(mode="lines+markers", marker={"size": 4})
    return figure([*band(name, "range", "accent"), drawn, *notes(name, log=True)], "", showlegend=False)


FROM_ZERO = {"rangemode": "tozero"}

CHARTS = (
    Chart(
        name="loss",
        title="Loss",
        meaning="Training loss of each step, mean loss on the evaluation split, and on the test split at the best evaluations.",
        scope="run",
        build=loss,
        alerts=("train/loss", "eval/loss", ""),  # "": alerts about the run as a whole
        placed=True,
    ),
    Chart(
        name="metric",
        title="Metric",
        meaning="A free metric, or any other scalar, over steps.",
        scope="metric",
        build=metric,
        placed=True,
    ),
    # each row: name, title, series, unit, meaning
    scalar_chart("accuracy", "Evaluation accuracy", "eval/accuracy", "accuracy",
        "Share of correct answers on the evaluation split.", axis={"range": [0, 1.02]}, optional=True),
    scalar_chart("grad_norm", "Gradient norm", "optim/grad_norm", "gradient norm",
        "Global L2 norm of the gradient, before clipping.", log=True, alerts=("optim/grad_norm",), caption="before clipping"),
    scalar_chart("lr", "Learning rate", "optim/lr", "learning rate", "Learning rate of each step.", axis=FROM_ZERO),
    scalar_chart("skipped", "Skipped steps", "train/skipped", "skipped",
        "1 at each step whose update a gradient scaler skipped because a gradient was not finite.", axis={"range": [-0.02, 1.02]},
        optional=True, alerts=("train/skipped",), caption="1: the gradient scaler skipped the update"),
    scalar_chart("scale", "Scale of the loss", "train/scale", "factor",
        "Factor by which the gradient scaler multiplied the loss. It falls at each step that the scaler skips.", log=True,
        optional=True, caption="factor of the gradient scaler"),
    scalar_chart("throughput", "Throughput", "train/tokens_per_second", "tokens / s", "Sequence steps trained per second.",
        axis=FROM_ZERO, caption="tokens per second"),
    scalar_chart("host_memory", "Memory", "system/host_memory_gib", "GiB", "Resident memory of the training process.",
        axis=FROM_ZERO, caption="of the training process", optional=True),
    scalar_chart("gpu_memory", "GPU memory", "system/gpu_memory_gib", "GiB", "Largest GPU memory allocated so far.",
        axis=FROM_ZERO, caption="largest allocated so far", optional=True),
)  # fmt: skip
