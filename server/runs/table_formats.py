"""A table as CSV, Parquet, Markdown and LaTeX. Numbers that are not finite are written as what they are, in each of them."""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from importlib import import_module

from server.runs.sweep_table import Column, Table, Value

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes a cell for that begins so
ARROW = {"integer": "int64", "number": "float64", "flag": "bool_", "text": "string"}
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    '"': r"''", "-": "{-}", "`": r"\textasciigrave{}",
    "[": "{[}", "*": "{*}",  # after the end of a row they would belong to it
}  # fmt: skip
ACCENTS = {"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u0327": "c", "\u030a": "r", "\u030c": "v"}


def as_csv(table: Table) -> bytes:
    """RFC 4180, UTF-8: nan, inf, -inf; nothing where a run has no value.

    Text that a spreadsheet would run as a formula gets an apostrophe before it: names come from others.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(_harmless(name) for name in table.names)
    for row in table.rows:
        writer.writerow(_harmless(value) if isinstance(value, str) else _plain(value) for value in row)
    return out.getvalue().encode()


def as_parquet(table: Table) -> bytes:
    """A Parquet file with a type per column; a missing value is null, which is not NaN. Its metadata name the sweep."""
    pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    schema = pa.schema([pa.field(column.name, getattr(pa, ARROW[column.kind])()) for column in table.columns])
    arrays = [pa.array([row[i] for row in table.rows], type=field.type) for i, field in enumerate(schema)]
    about = {
        "sweep": str(table.sweep_id),
        "name": table.name or "",
        "finite": str(table.of.finite),
        "stable": str(table.of.stable),
    }
    about |= {"total": str(table.of.total)}
    sink = io.BytesIO()
    parquet.write_table(pa.table(arrays, schema=schema.with_metadata(about)), sink)
    return sink.getvalue()


def as_markdown(table: Table) -> bytes:
    """A table of GitHub's Markdown, with finite / total below it."""
    lines = [
        [_markdown(name) for name in table.names],
        ["---" if column.kind == "text" else "---:" for column in table.columns],
        *([_markdown(_short(value)) for value in row] for row in table.rows),
    ]
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([*rows, "", outcome(table), ""]).encode()


def as_latex(table: Table) -> bytes:
    """A `tabular` for pdfLaTeX with the package booktabs, with finite / total in its last row."""
    align = "".join("l" if column.kind == "text" else "r" for column in table.columns)
    lines = [
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        " & ".join(_latex(name) for name in table.names) + r" \\",
        r"\midrule",
        *(" & ".join(map(_latex_cell, table.columns, row)) + r" \\" for row in table.rows),
        r"\midrule",
        rf"\multicolumn{{{len(table.columns)}}}{{l}}{{{_latex(outcome(table))}}} \\",
        r"\bottomrule",
        r"\end{tabular}",
        "",
    ]
    return "\n".join(lines).encode()


def outcome(table: Table) -> str:
    """What became of the runs, in words."""
    of, others = table.of, ", ".join(f"{count} {status}" for status, count in table.statuses.items())
    finite = f"{of.finite} of {of.total} runs finished with a finite loss" + (f" ({others})" if others else "")
    return f"{finite}; {of.stable} of {of.total} with every eigenvalue inside the boundary" + (
        f", of {of.unknown} it is not known" if of.unknown else ""
    )


def _plain(value: Value) -> str:
    """A number without losing a bit; nan, inf, -inf."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else repr(value)


def _harmless(text: str) -> str:
    return "'" + text if text.startswith(FORMULA) else text


def _short(value: Value) -> str:
    """For people: six digits."""
    return f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else _plain(value)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _markdown(text: str) -> str:
    escaped = re.sub(r"([\\`*\[\]<>|~&])", r"\\\1", _one_line(text))
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", escaped)  # inside a word it means nothing


def _latex_cell(column: Column, value: Value) -> str:
    if value is None or column.kind == "text" or not isinstance(value, int | float) or isinstance(value, bool):
        return _latex(_short(value))
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else r"$\infty$" if value > 0 else r"$-\infty$"
    digits, _, exponent = _short(value).partition("e")
    return f"${digits} \\times 10^{{{int(exponent)}}}$" if exponent else f"${digits}$"


def _latex(text: str) -> str:
    return "".join(LATEX.get(c) or (c if c.isascii() else _letter(c)) for c in _one_line(text))


def _letter(character: str) -> str:
    """A letter with an accent as LaTeX writes it; what its plain fonts lack by its number, so that the table compiles."""
    base, *accents = list(unicodedata.normalize("NFD", character))
    if base.isascii() and base.isalpha() and len(accents) == 1 and accents[0] in ACCENTS:
        base = {"i": r"\i", "j": r"\j"}.get(base, base) if accents[0] != "\u0327" else base
        return rf"\{ACCENTS[accents[0]]}{{{base}}}"
    return f"(U+{ord(character):04X})"
