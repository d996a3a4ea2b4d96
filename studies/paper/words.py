"""The words that the reports in all formats share: titles, tables as rows of text, and sentences about the source of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from studies.paper.registry import Claim
from studies.paper.report import METRICS

Rows = list[list[str]]


def number(value: Any, digits: int = 4) -> str:
    """A number in a table; "–" if there is none."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.{digits}g}"


def origin(report: Mapping[str, Any]) -> list[str]:
    """Sentences that say where the numbers of a report come from."""
    said = [f"{report['seeds']} seeds." if report["seeds"] else "No random numbers."]
    if report["size"] == "quick":
        said.append("This is the quick size: it shows that the study works, and judges nothing.")
    if report["machines"]:
        said.append(f"Machine: {'; '.join(report['machines'])}.")
    said.append(f"Versions: {'; '.join(report['versions']) or 'unknown'}; commit {report['commit']}.")
    said.append(f"SHA-256 of claims.json: {report['claims_sha256']}; {report['family_size']} tests in the registered family.")
    return said


def verdict_rows(report: Mapping[str, Any], claims: Mapping[str, Mapping[str, Any]]) -> Rows:
    """One row per claim: place and sentence, verdict, reason."""
    rows = [["claim of the paper", "verdict", "why", "p", "p, Holm"]]
    for one in report["verdicts"]:
        claim = claims.get(one["claim"], {"place": one["claim"], "sentence": ""})
        rows.append(
            [
                f"{claim['place']}: “{claim['sentence']}”",
                one["verdict"],
                one["why"],
                number(one["p"], 3),
                number(one["p_holm"], 3),
            ]
        )
    return rows


def cell_tables(report: Mapping[str, Any]) -> list[tuple[str, Rows]]:
    """For each part, a table with a row per learning rate and a column per variant; a row per variant if there is one rate."""
    found = []
    for part in dict.fromkeys(cell["part"] for cell in report["cells"]):
        cells = [cell for cell in report["cells"] if cell["part"] == part]
        variants = list(dict.fromkeys(cell["variant"] for cell in cells))
        rates = list(dict.fromkeys(cell["rate"] for cell in cells))
        by = {(cell["rate"], cell["variant"]): cell for cell in cells}
        if len(rates) == 1:
            rows = [["map", f"at learning rate {rates[0]:g}"], *([one, cell_text(by[rates[0], one])] for one in variants)]
        else:
            rows = [["learning rate", *variants]]
            rows += [[f"{rate:g}", *(cell_text(by[rate, variant]) for variant in variants)] for rate in rates]
        exploratory = ", exploratory" if cells[0]["exploratory"] else ""
        found.append((f"{part}{exploratory}: {cell_legend(cells[0])}", rows))
    return found


def cell_legend(cell: Mapping[str, Any]) -> str:
    """What the text of a cell means."""
    metric = METRICS[cell["metric"]]
    trained = ", runs that learnt" if cell["trained"] is not None else ""
    of = "of these" if trained else "of the finite runs"
    of = {"eval_accuracy": "of the finite runs", "largest_ratio": "of all runs"}.get(cell["metric"], of)
    return f"finite / ended runs{trained}, median {metric} {of} [quartiles]"


def cell_text(cell: Mapping[str, Any]) -> str:
    """A cell such as `11/12 finite (1 arithmetic), 9 learnt, 0.31 [0.29, 0.40]`."""
    if not cell["ended"]:
        return "no run has ended"
    text = f"{cell['finite']}/{cell['ended']} finite"
    unsure = [f"{cell[state]} {state}" for state in ("arithmetic", "unchecked") if cell[state]]
    text += f" ({', '.join(unsure)})" if unsure else ""
    if cell["trained"] is not None:
        text += f", {cell['trained']} learnt"
    if cell["median"] is not None:
        text += f", {number(cell['median'])} [{number(cell['low'])}, {number(cell['high'])}]"
    return text


def tables(report: Mapping[str, Any]) -> list[tuple[str, Rows]]:
    """All tables of numbers of a report, each with its caption."""
    return [_exact(one) for one in report["tables"]] + cell_tables(report)


def _exact(table: Mapping[str, Any]) -> tuple[str, Rows]:
    return table["caption"], [list(table["columns"]), *[[number(x) for x in row] for row in table["rows"]]]


FIGURES = {  # the chart that shows a measure
    "largest_rate": "paper_finite", "finite": "paper_finite", "trained": "paper_finite", "loss": "paper_loss",
    "accuracy": "paper_ranges", "ratio": "paper_ranges", "first_ratio": "paper_ranges", "error": "paper_perturbation",
    "crossing_shift": "paper_perturbation", "radius": "paper_ranges",
}  # fmt: skip


def claim_figure(claim: Claim, report: Mapping[str, Any]) -> int | None:
    """The number of the figure in the report that shows the claim best; None if the report has no figure."""
    figures = report["figures"]
    if any("claims" in one for one in figures):
        return next((number for number, one in enumerate(figures) if claim.id in one.get("claims", ())), None)
    test = claim.test or {}
    chart, part = FIGURES.get(test.get("measure", "")), test.get("part")
    if test.get("measure") == "first_ratio":
        part = "start"
    for number, figure in enumerate(figures):
        if figure["chart"] == chart and part in (None, figure.get("part", part)):
            return number
    return 0 if figures else None


def claim_numbers(claim: Claim, report: Mapping[str, Any]) -> tuple[str, Rows]:
    """Our numbers for the claim: the table of the report, or the cells of the claim's part."""
    for one in report["tables"]:
        if claim.id in one.get("claims", ()):
            return _exact(one)
    if report["tables"]:
        return "", []
    test = claim.test or {}
    part = "start" if test.get("measure") == "first_ratio" else test.get("part")
    found = tables(report)
    chosen = next((one for one in found if part is None or one[0].startswith(part)), found[0] if found else ("", []))
    return chosen
