"""A table for a paper as LaTeX, Markdown, CSV and Parquet.

LaTeX and Markdown have text cells such as `0.0123 ± 0.0004 (9/12)`. CSV and Parquet have the exact numbers in columns of their
own.
"""

from __future__ import annotations

import math
from itertools import groupby

from server.compare.claims import notes
from server.compare.paper_table import Cell, PaperTable, Statistic, metric_title, row_titles, value_text
from server.compare.sweep_table import Column, Table
from server.compare.table_formats import as_csv, as_markdown, as_parquet, latex_comments, latex_text, outcome
from stablessm_core.spec.titles import setting_title

PARTS = {"mean": ("mean", "std"), "median": ("median", "q25", "q75")}
MEANING = {
    "mean": "mean ± standard deviation over the finite runs (number of finite runs / runs that have ended)",
    "median": "median [quartiles] over the finite runs (number of finite runs / runs that have ended)",
}
PLAIN_EXPONENTS = range(-4, 6)  # numbers outside are written with a power of ten


def paper_latex(table: PaperTable, statistic: Statistic, digits: int) -> bytes:
    """A `tabular` for pdfLaTeX with the package booktabs."""
    first = len(table.rows) or 1
    lines = [
        r"% \usepackage{booktabs}",
        f"% {MEANING[statistic].replace('±', '+-')}",
        f"% {outcome(_numbers(table, statistic))}",
        *latex_comments(notes(table.claims)),
        rf"\begin{{tabular}}{{{'l' * first}{'r' * len(table.heads)}}}",
        r"\toprule",
    ]
    if table.across:
        spans, at = [], first + 1
        for metric, members in groupby(head.metric for head in table.heads):
            width = len(list(members))
            title = latex_text(f"{metric_title(metric)} by {setting_title(table.across)}")
            spans.append((rf"\multicolumn{{{width}}}{{c}}{{{title}}}", rf"\cmidrule(lr){{{at}-{at + width - 1}}}"))
            at += width
        lines.append(" & " * first + " & ".join(title for title, _ in spans) + r" \\")
        lines.append(" ".join(rule for _, rule in spans))
    heads = [value_text(head.value) if table.across else metric_title(head.metric) for head in table.heads]
    lines.append(" & ".join(map(latex_text, [*(row_titles(table) or ["runs"]), *heads])) + r" \\")
    lines.append(r"\midrule")
    for key, cells in zip(table.keys, table.cells, strict=True):
        names = [latex_text(value_text(value)) for value in key] or ["all"]
        lines.append(" & ".join([*names, *(cell_text(cell, statistic, digits, latex=True) for cell in cells)]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""]).encode()


def paper_markdown(table: PaperTable, statistic: Statistic, digits: int) -> bytes:
    """A table in GitHub's Markdown, followed by what its cells mean, how the runs ended, and the claims about its rows."""
    columns = [Column(title, "text", "") for title in row_titles(table) or ["runs"]]
    columns += [Column(title, "text", "") for title in _titles(table)]
    rows = tuple(
        (*(map(value_text, key) if key else ["all"]), *(cell_text(cell, statistic, digits) for cell in cells))
        for key, cells in zip(table.keys, table.cells, strict=True)
    )
    written = as_markdown(Table(0, None, tuple(columns), rows, table.of, table.statuses, notes=notes(table.claims))).decode()
    head, _, ended = written.partition("\n\n")
    return f"{head}\n\nCells: {MEANING[statistic]}. {ended}".encode()


def paper_csv(table: PaperTable, statistic: Statistic, digits: int) -> bytes:  # noqa: ARG001 - as the other formats
    return as_csv(_numbers(table, statistic))


def paper_parquet(table: PaperTable, statistic: Statistic, digits: int) -> bytes:  # noqa: ARG001
    return as_parquet(_numbers(table, statistic))


def cell_text(cell: Cell, statistic: Statistic, digits: int, *, latex: bool = False) -> str:
    """The text of a cell. It never hides a lost run: "none finite (0/12)" instead of an empty cell."""
    if not cell.ended + cell.open:
        return "no run"
    counts = f"({cell.finite}/{cell.ended}" + (f", {cell.open} open)" if cell.open else ")")
    if not cell.finite:
        what = "none ended" if not cell.ended else "none finite" if cell.recorded else "no value"
        return f"{what} {counts}"
    of = cell.of
    if statistic == "mean":
        text = _mean(of.mean or 0.0, of.std, digits, latex)
    else:
        numbers = [_significant(value or 0.0, digits, latex) for value in (of.median, of.q25, of.q75)]
        text = numbers[0] + (f" [{numbers[1]}, {numbers[2]}]" if cell.finite > 1 else "")
    return f"${text}$ {counts}" if latex else f"{text} {counts}"


def _mean(mean: float, deviation: float | None, digits: int, latex: bool) -> str:
    """Mean ± deviation with the same number of decimal places, which the larger of the two determines."""
    if deviation is None:
        return _significant(mean, digits, latex)
    exponent = _exponent(max(abs(mean), deviation), digits)
    scaled = exponent not in PLAIN_EXPONENTS
    places = digits - 1 if scaled else max(0, digits - 1 - exponent)
    unit = 10.0**exponent if scaled else 1.0
    first, second = f"{mean / unit:.{places}f}", f"{deviation / unit:.{places}f}"
    if deviation > 0 and float(second) == 0:  # it is not 0
        second = ("{<}" if latex else "<") + f"{10.0**-places:.{places}f}"
    text = rf"{first} \pm {second}" if latex else f"{first} ± {second}"
    if not scaled:
        return text
    return rf"({text}) \times 10^{{{exponent}}}" if latex else f"({text})e{exponent:+03d}"


def _significant(value: float, digits: int, latex: bool) -> str:
    """The value with this number of significant digits."""
    exponent = _exponent(abs(value), digits)
    if exponent in PLAIN_EXPONENTS:
        return f"{value:.{max(0, digits - 1 - exponent)}f}"
    mantissa = f"{value / 10.0**exponent:.{digits - 1}f}"
    return rf"{mantissa} \times 10^{{{exponent}}}" if latex else f"{mantissa}e{exponent:+03d}"


def _exponent(size: float, digits: int) -> int:
    """The power of ten of the first digit, after rounding: 9.996 with three digits is 10.0."""
    if not math.isfinite(size) or size == 0:
        return 0
    return int(f"{size:.{digits - 1}e}".partition("e")[2])


def _titles(table: PaperTable) -> list[str]:
    """A header for each column, which also names the value of the setting across."""
    if table.across is None:
        return [metric_title(head.metric) for head in table.heads]
    several = len({head.metric for head in table.heads}) > 1
    of = setting_title(table.across)
    return [(f"{metric_title(h.metric)}, " if several else "") + f"{of} {value_text(h.value)}" for h in table.heads]


def _numbers(table: PaperTable, statistic: Statistic) -> Table:
    """The table with a column per number."""
    columns = [Column(title, "text", "setting") for title in row_titles(table) or ["runs"]]
    for title in _titles(table):
        columns += [Column(f"{title}: {part}", "number", part) for part in PARTS[statistic]]
        columns += [Column(f"{title}: {part}", "integer", part) for part in ("finite", "ended", "open")]
    rows = tuple(
        (
            *(map(value_text, key) if key else ["all"]),
            *(
                number
                for cell in cells
                for number in (*(getattr(cell.of, part) for part in PARTS[statistic]), cell.finite, cell.ended, cell.open)
            ),
        )
        for key, cells in zip(table.keys, table.cells, strict=True)
    )
    return Table(0, None, tuple(columns), rows, table.of, table.statuses)
