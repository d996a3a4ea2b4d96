"""A table as CSV, Parquet, Markdown and LaTeX. Every format keeps NaN and the infinities."""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import Sequence
from importlib import import_module

from server.compare.sweep_table import Column, Table, Value

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet treats text that begins with one of these strings as a formula
ARROW = {"integer": "int64", "number": "float64", "flag": "bool_", "text": "string"}
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    '"': r"''", "-": "{-}", "`": r"\textasciigrave{}",
    "[": "{[}", "*": "{*}",  # at the beginning of a row, LaTeX would read these as an argument of the preceding line break
}  # fmt: skip
ACCENTS = {"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u0327": "c", "\u030a": "r", "\u030c": "v"}


def as_csv(table: Table) -> bytes:
    """CSV (RFC 4180) in UTF-8. Non-finite numbers are nan, inf and -inf; a missing value is an empty field.

    Text that a spreadsheet would run as a formula gets a leading apostrophe, because names may come from other people.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(_harmless(name) for name in table.names)
    for row in table.rows:
        writer.writerow(_harmless(value) if isinstance(value, str) else _plain(value) for value in row)
    return out.getvalue().encode()


def as_parquet(table: Table) -> bytes:
    """A Parquet file with one type per column and the sweep in its metadata. A missing value is null, not NaN."""
    pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    schema = pa.schema([pa.field(column.name, getattr(pa, ARROW[column.kind])()) for column in table.columns])
    arrays = [pa.array([row[i] for row in table.rows], type=field.type) for i, field in enumerate(schema)]
    counts = {name: str(getattr(table.of, name)) for name in ("finite", "stable", "total")}
    about = {"sweep": str(table.sweep_id), "name": table.name or "", **counts} if table.sweep_id else counts
    sink = io.BytesIO()
    parquet.write_table(pa.table(arrays, schema=schema.with_metadata(about)), sink)
    return sink.getvalue()


def as_markdown(table: Table) -> bytes:
    """A table in GitHub's Markdown, followed by finite / total and the notes."""
    lines = [
        [_markdown(name) for name in table.names],
        ["---" if column.kind == "text" else "---:" for column in table.columns],
        *([_markdown(_short(value)) for value in row] for row in table.rows),
    ]
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    notes = [f"- {_markdown(note)}" for note in table.notes]
    return "\n".join([*rows, "", outcome(table), "", *notes, *([""] if notes else [])]).encode()


def as_latex(table: Table) -> bytes:
    """A `tabular` for pdfLaTeX with the package booktabs, with finite / total in its last row. The notes are comments."""
    align = "".join("l" if column.kind == "text" else "r" for column in table.columns)
    lines = [
        r"% \usepackage{booktabs}",
        *latex_comments(table.notes),
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        " & ".join(latex_text(name) for name in table.names) + r" \\",
        r"\midrule",
        *(" & ".join(map(_latex_cell, table.columns, row)) + r" \\" for row in table.rows),
        r"\midrule",
        rf"\multicolumn{{{len(table.columns)}}}{{l}}{{{latex_text(outcome(table))}}} \\",
        r"\bottomrule",
        r"\end{tabular}",
        "",
    ]
    return "\n".join(lines).encode()


def outcome(table: Table) -> str:
    """How the runs ended, as a sentence."""
    of, others = table.of, ", ".join(f"{count} {status}" for status, count in table.statuses.items())
    ended = f"{of.ended} ended runs" if of.open else f"{of.total} runs"
    finite = f"{of.finite} of {ended} finished with a finite loss" + (f" ({others})" if others else "")
    return f"{finite}; {of.stable} of {of.ended} with every eigenvalue inside the boundary" + (
        f", unknown for {of.unknown}" if of.unknown else ""
    )


def _plain(value: Value) -> str:
    """A number with full precision, or nan, inf or -inf."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else repr(value)


def _harmless(text: str) -> str:
    return "'" + text if text.startswith(FORMULA) else text


def _short(value: Value) -> str:
    """The value with at most six digits."""
    return f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else _plain(value)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _markdown(text: str) -> str:
    escaped = re.sub(r"([\\`*\[\]<>|~&])", r"\\\1", _one_line(text))
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", escaped)  # Markdown ignores an underscore inside a word


def _latex_cell(column: Column, value: Value) -> str:
    if value is None or column.kind == "text" or not isinstance(value, int | float) or isinstance(value, bool):
        return latex_text(_short(value))
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else r"$\infty$" if value > 0 else r"$-\infty$"
    digits, _, exponent = _short(value).partition("e")
    return f"${digits} \\times 10^{{{int(exponent)}}}$" if exponent else f"${digits}$"


def latex_comments(notes: Sequence[str]) -> list[str]:
    return [f"% {_one_line(note)}" for note in notes]


def latex_text(text: str) -> str:
    return "".join(LATEX.get(c) or (c if c.isascii() else _letter(c)) for c in _one_line(text))


def _letter(character: str) -> str:
    """LaTeX for an accented letter. Any other character is replaced by its code point, because standard fonts lack it and the
    table must compile."""
    base, *accents = list(unicodedata.normalize("NFD", character))
    if base.isascii() and base.isalpha() and len(accents) == 1 and accents[0] in ACCENTS:
        base = {"i": r"\i", "j": r"\j"}.get(base, base) if accents[0] != "\u0327" else base
        return rf"\{ACCENTS[accents[0]]}{{{base}}}"
    return f"(U+{ord(character):04X})"
