"""Gates, or step sizes that depend on the input: smallest, mean and largest of each step."""

from __future__ import annotations

from web.charts.parts import Chart, Figure, band, figure, line, notes


def build() -> Figure:
    low, mean, high = (f"ssm/{{layer}}/gate_{part}" for part in ("min", "mean", "max"))
    edges = [
        band(low, "range over batch and time", "muted")[0],
        band(high, "range over batch and time", "muted", showlegend=True)[1],
    ]
    middle = line(mean, "median of the means", "muted", field="median", dash="dash", width=1.2)
    each = line(mean, "λ {key}{note}", "line-0", each="eigenvalue", width=1.5, showlegend=False)
    ends = [line(s, "λ {key}, " + what, "line-0", each="eigenvalue", width=0.8, showlegend=False, opacity=0.5)
            for s, what in ((low, "smallest"), (high, "largest"))]  # fmt: skip
    for trace, what in zip([each, *ends], ("mean", "smallest", "largest"), strict=True):
        trace.update(hovertemplate=f"{what} gate of eigenvalue {{key}}<br>step %{{x}}<br>%{{y:.6g}}<extra></extra>")
    return figure([*edges, middle, *ends, each, *notes(low, mean, high, log=True)], "gate", y_type="log")


CHART = Chart(
    name="gates",
    title="Gates",
    meaning="Gate or step size of each step: smallest, mean and largest over batch and time; thin lines beside the mean of an "
    "eigenvalue's gate are its smallest and largest.",
    scope="layer",
    build=build,
    placed=True,
    optional=True,
)
