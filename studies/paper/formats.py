"""A report as Markdown, LaTeX and HTML. Figures are separate files beside Markdown and LaTeX, and part of an HTML file."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from studies.paper.registry import Registry
from studies.paper.words import origin, tables, verdict_rows

Pictures = Sequence[tuple[str, str]]  # (file name or SVG text, caption) of each figure
STATES = (
    "A run counts as dead only if its fatal step is not finite, or too large for float32, in float64 too. “Arithmetic” deaths "
    "are finite in float64, and float32 could hold every true number. “Unchecked” deaths have no result of an autopsy."
)
LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
         "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "λ": r"$\lambda$", "|": r"\textbar{}", "–": "--", "“": "``",
         "”": "''", "β": r"$\beta$", "→": r"$\to$", "±": r"$\pm$", "…": r"\ldots{}", "²": r"$^2$",
         "<": r"$<$", ">": r"$>$"}  # fmt: skip


def _claims(registry: Registry) -> dict[str, dict[str, Any]]:
    return {claim.id: {"place": claim.place, "sentence": claim.sentence, "label": claim.label} for claim in registry.claims}


def _sections(report: Mapping[str, Any], registry: Registry) -> list[tuple[str, list[str]]]:
    """The sections of a report that consist of sentences, before the tables."""
    claims = _claims(registry)
    labels = [label for one in report["verdicts"] if (label := claims.get(one["claim"], {}).get("label"))]
    found = [("Where the numbers come from", origin(report))]
    if labels:
        found.insert(0, ("Note", list(dict.fromkeys(labels))))
    if report.get("findings"):
        found.insert(0, ("What was found", list(report["findings"])))
    if report["problems"]:
        found.append(("What is missing or mixed", list(report["problems"])))
    if report["departures"]:
        found.append(("How these runs differ from the paper's", list(report["departures"])))
    if report["cells"]:
        trained = [f"A run has learnt: {report['trained_means']}."] if report["trained_means"] else []
        found.append(("How runs are counted", [STATES, *trained]))
    return found


def markdown(report: Mapping[str, Any], registry: Registry, pictures: Pictures = ()) -> str:
    """The report as a Markdown file; pictures: file names of the figures."""
    lines = [f"# {report['title']}", ""]
    if report["verdicts"]:
        lines += [*_markdown_table(verdict_rows(report, _claims(registry))), ""]
    lines += [f"Test of `{one['claim']}`: {one['test']}\n" for one in report["verdicts"] if one["test"]]
    for title, sentences in _sections(report, registry):
        lines += [f"## {title}", "", *[f"- {one}" for one in sentences], ""]
    for caption, rows in tables(report):
        lines += [f"## {caption[0].upper()}{caption[1:]}", "", *_markdown_table(rows), ""]
    for name, caption in pictures:
        lines += [f"![{caption}]({name})", "", caption, ""]
    lines += ["## Exact configurations", "", *_sweep_lines(report)]
    lines += ["```json", json.dumps(report["configurations"], indent=1, ensure_ascii=False), "```", ""]
    return "\n".join(lines)


def _markdown_table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    head, *body = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in body:
        yield "| " + " | ".join(row) + " |"


def _sweep_lines(report: Mapping[str, Any]) -> list[str]:
    return [f"- part “{one['part']}”: sweep {one['id']}, {one['runs']:,} runs" for one in report["sweeps"]] + [""]


def latex(report: Mapping[str, Any], registry: Registry, pictures: Pictures = ()) -> str:
    r"""The report as a LaTeX document that needs only booktabs, longtable and graphicx; pictures: file names of the figures."""
    lines = [
        r"\documentclass{article}", r"\usepackage[a4paper,landscape,margin=15mm]{geometry}",
        r"\usepackage{booktabs,longtable,graphicx}",
        r"\usepackage[utf8]{inputenc}", r"\begin{document}", rf"\section*{{{_tex(report['title'])}}}",
    ]  # fmt: skip
    if report["verdicts"]:
        lines += _latex_table("Verdicts", verdict_rows(report, _claims(registry)))
    for title, sentences in _sections(report, registry):
        lines += [
            rf"\subsection*{{{_tex(title)}}}",
            r"\begin{itemize}",
            *[rf"\item {_tex(one)}" for one in sentences],
            r"\end{itemize}",
        ]
    for caption, rows in tables(report):
        lines += _latex_table(caption, rows)
    for name, caption in pictures:
        lines += [
            r"\begin{figure}[h]\centering",
            rf"\includegraphics[width=0.6\textwidth]{{{name}}}",
            rf"\caption{{{_tex(caption)}}}",
            r"\end{figure}",
        ]
    text = json.dumps(report["configurations"], indent=1, ensure_ascii=True)
    lines += [r"\subsection*{Exact configurations}", r"\begin{verbatim}", text, r"\end{verbatim}", r"\end{document}", ""]
    return "\n".join(lines)


def _latex_table(caption: str, rows: Sequence[Sequence[str]]) -> list[str]:
    width = 0.9 / len(rows[0])
    columns = (rf"p{{{width:.3f}\textwidth}}") * len(rows[0])
    head, *body = [" & ".join(map(_tex, row)) + r" \\" for row in rows]
    return [rf"\subsection*{{{_tex(caption)}}}", r"{\footnotesize", rf"\begin{{longtable}}{{{columns}}}", r"\toprule", head,
            r"\midrule", *body, r"\bottomrule", r"\end{longtable}}"]  # fmt: skip


def _tex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 24px auto; padding: 0 16px; color: #1b2130 }}
table {{ border-collapse: collapse; font-size: 13px }}
th, td {{ border: 1px solid #ccd2dd; padding: 5px 8px; text-align: left; vertical-align: top }}
.wide {{ overflow-x: auto }} figure {{ margin: 16px 0 }} svg {{ max-width: 100%; height: auto }}
pre {{ overflow: auto; background: #f3f5f9; padding: 10px }}
</style></head>
<body>
<h1>{title}</h1>
{body}
</body></html>
"""


def html_text(report: Mapping[str, Any], registry: Registry, pictures: Pictures = ()) -> str:
    """The report as one HTML file without scripts; pictures: the SVG text of the figures."""
    body = _html_table(verdict_rows(report, _claims(registry))) if report["verdicts"] else []
    body += _html_list([f"Test of {one['claim']}: {one['test']}" for one in report["verdicts"] if one["test"]])
    for title, sentences in _sections(report, registry):
        body += [f"<h2>{html.escape(title)}</h2>", *_html_list(sentences)]
    for caption, rows in tables(report):
        body += [f"<h2>{html.escape(caption[0].upper() + caption[1:])}</h2>", *_html_table(rows)]
    for svg, caption in pictures:
        body += [f"<figure>{svg[svg.index('<svg') :]}<figcaption>{html.escape(caption)}</figcaption></figure>"]
    body += ["<h2>Exact configurations</h2>", *_html_list(line[2:] for line in _sweep_lines(report) if line)]
    body.append(f"<pre>{html.escape(json.dumps(report['configurations'], indent=1, ensure_ascii=False))}</pre>")
    return PAGE.format(title=html.escape(report["title"]), body="\n".join(body))


def _html_table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = rows
    lines = ['<div class="wide"><table>', "<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in body]
    return [*lines, "</table></div>"]


def _html_list(sentences: Iterable[str]) -> list[str]:
    lines = [f"<li>{html.escape(one)}</li>" for one in sentences]
    return ["<ul>", *lines, "</ul>"] if lines else []
