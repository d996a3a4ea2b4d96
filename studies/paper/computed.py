"""The studies that need no runs: table 5 and figures 1, 2 and 6. Each judges its claims by an exact computation."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stablessm_core.theory import stability_of_map
from studies.paper import bounds
from studies.paper.groups import commit
from studies.paper.judge import FAILS, HOLDS, Verdict, test_in_words, without_test
from studies.paper.registry import Claim, Registry
from studies.paper.report import computed_report, rounded

AT_ONCE = ("table5", "fig2", "fig6")  # fast enough to be computed for a page
Found = tuple[bool, str]
GROWING = ("exp", "softplus", "tanh", "direct")


def computed(study: str, registry: Registry) -> dict[str, Any]:
    """The report of one of AT_ONCE. Raises ValueError for another name."""
    if study not in AT_ONCE:
        raise ValueError(f"study is {study!r}; allowed: {', '.join(AT_ONCE)}")
    title, tables, figures, departures = _CONTENT[study]()
    verdicts = exact_verdicts(registry.of(study, None))
    report: dict[str, Any] = rounded(
        computed_report(
            study, title, registry, verdicts, tables=tables, figures=figures, departures=departures,
            configuration={"time": "discrete", "a": 1.0, "b": 0.5}, commit=commit(),
            machine=[machine()],
        )
    )  # fmt: skip
    return report


def machine() -> str:
    """The processor's architecture and the version of numpy: all that an exact computation depends on."""
    return f"{platform.machine()}, numpy {np.__version__}"


def exact_verdicts(claims: Sequence[Claim]) -> list[Verdict]:
    """The verdicts on claims with exact tests, and on claims without a test."""
    verdicts = []
    for claim in claims:
        given = without_test(claim)
        if given is not None:
            verdicts.append(given)
        elif claim.test and claim.test["kind"] == "exact":
            right, why = CHECKS[claim.test["check"]](float(claim.test["margin"]))
            verdicts.append(Verdict(claim.id, HOLDS if right else FAILS, why, test_in_words(claim)))
    return verdicts


def _table5_formulas(margin: float) -> Found:
    errors = bounds.formula_errors()
    worst = max(errors, key=lambda pair: errors[pair])
    why = f"The largest relative difference is {errors[worst]:.2g}, for {worst[0]} in {worst[1]} time."
    return errors[worst] <= margin, why


def _table5_ratios(margin: float) -> Found:
    table = bounds.ratio_table()
    columns = {name: [row[i + 1] for row in table["rows"]] for i, name in enumerate(bounds.SHOWN)}
    constant = all(abs(value - 2) <= 2 * margin for value in columns["best"][:3])
    growing = all(np.all(np.diff(columns[name]) > 0) for name in GROWING)
    shown = "; ".join(f"{name} {', '.join(f'{value:.4g}' for value in columns[name][:3])}" for name in ("best", "exp", "direct"))
    return constant and growing, f"At λ = 0.9, 0.99 and 0.999: {shown}."


def _balanced(margin: float) -> Found:
    best = bounds.guarded_ratios("best")
    constant = bool(np.ptp(best) <= margin * best.mean())
    growth = {name: bounds.guarded_ratios(name) for name in GROWING}
    unbounded = all(values[0] > 1000 and values[0] == values.max() for values in growth.values())
    ends = ", ".join(f"{name} {values[0]:.2g}" for name, values in growth.items())
    return constant and unbounded, f"best: {best.min():.4g} to {best.max():.4g} for 0.6 < λ < 0.99999. At λ = 0.99999: {ends}."


def _negative(margin: float) -> Found:
    rows = bounds.negative_table()["rows"]
    right = all(abs(row[2] - row[3]) <= margin * row[3] for row in rows)
    worst = max(rows, key=lambda row: row[3] / row[2])
    return right, (
        f"At λ = {worst[0]} the published bound of best is {worst[2]:.3g} and the sum is {worst[3]:.4g}. The denominator must be "
        "(1 - |λ|)²."
    )


def _fig2(margin: float) -> Found:
    lines = bounds.scaling()["lines"]
    output, gradient = bounds.slope_of(lines["output"]), bounds.slope_of(lines["gradient"])
    return abs(output + 1) <= margin and abs(gradient + 2) <= 2 * margin, (
        f"The powers are {output:.3f} and {gradient:.3f} on sequences of {bounds.LENGTH:,} steps."
    )


def _stable_maps(margin: float) -> Found:
    del margin
    found = {name: stability_of_map(name, "continuous") for name in ("exp", "softplus", "best", "direct")}
    shown = ", ".join(f"{name} {one.g[list(one.beta).index(0.1)]:.3g}" for name, one in found.items())
    discrete = (
        ""
        if stability_of_map("best", "discrete").stable
        else " In discrete time, best with b = 0.5 is not stable: w = 0 gives λ = -1."
    )
    right = {name: one.stable for name, one in found.items()} == {"exp": True, "softplus": True, "best": True, "direct": False}
    return right, f"The supremum for β = 0.1 in continuous time: {shown}.{discrete}"


CHECKS: dict[str, Callable[[float], Found]] = {
    "table5_formulas": _table5_formulas,
    "table5_ratios": _table5_ratios,
    "balanced": _balanced,
    "negative_eigenvalues": _negative,
    "fig2_slopes": _fig2,
    "stable_maps": _stable_maps,
}

Content = tuple[str, list[dict[str, Any]], list[dict[str, Any]], tuple[str, ...]]


def _table5() -> Content:
    tables = [
        bounds.ratio_table() | {"claims": ["table5-ratios"]},
        bounds.formula_table() | {"claims": ["table5-formulas"]},
    ]
    departures = ("The ratios are G / |w| without the constant C, at equal eigenvalues, so that maps can be compared.",)
    return "Table 5, gradient norm functions", tables, [bounds.ratio_figure() | {"claims": ["table5-ratios"]}], departures


def _figure6() -> Content:
    tables = [
        bounds.stability_table() | {"claims": ["table1-stable-maps"]},
        bounds.ratio_table() | {"claims": ["fig6-balanced"]},
        bounds.negative_table() | {"claims": ["fig6-negative"]},
    ]
    departures = ("The axis is the distance to the boundary, not the weight: curves by weight cannot be compared between maps.",)
    figures = [bounds.ratio_figure() | {"claims": ["fig6-balanced"]}, bounds.negative_figure() | {"claims": ["fig6-negative"]}]
    return "Figure 6, gradient over weight near the boundary", tables, figures, departures


def _figure2() -> Content:
    departures = (f"Sequences have {bounds.LENGTH:,} steps: where 1 - λ is below 1 / length, both curves would become flat.",)
    table = bounds.scaling_table() | {"claims": ["fig2-scaling"]}
    figure = bounds.scaling() | {"claims": ["fig2-scaling"]}
    return "Figure 2, output and gradient near the boundary", [table], [figure], departures


_CONTENT: dict[str, Callable[[], Content]] = {"table5": _table5, "fig2": _figure2, "fig6": _figure6}
