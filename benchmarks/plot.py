"""Draws the plots of docs/performance.md from the tables in `benchmarks/results`: `python -m benchmarks.plot`

Needs Chromium, at `CHROMIUM_PATH` or installed by Playwright.
"""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go

from benchmarks.service import browser

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"
SIZE = {"width": 1000, "height": 420}
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")  # colours that colour-blind readers can tell apart


def main() -> None:
    for results in sorted(RESULTS.glob("step_*.md")):
        save(steps(results), DOCS / f"performance-{results.stem.replace('_', '-')}.png")
    if compared := sorted(RESULTS.glob("against_cpu*.md")):
        save(against(compared), DOCS / "performance-against-cpu.png")


def steps(results: Path) -> go.Figure:
    """A plot of the steps per second with each way to launch a step, relative to eager steps."""
    rows = [row for row in read(results) if row["x eager"]]
    return bars(rows, "launched as", "x eager", "steps per second, eager = 1", results)


def against(results: list[Path]) -> go.Figure:
    """A plot of the speed of a training step relative to the previous revision and to JAX, on one core and on several cores."""
    rows = []
    for row in (row for path in results for row in read(path) if ", train: " in row["step"]):
        cores = f"{row['cores']} core{'s'[: int(row['cores']) - 1]}"
        for other in ("before", "JAX"):
            if quotient := row[f"{other} / ours"].partition(",")[0].strip("*"):
                step = row["step"].replace(", train: ", ": ")
                rows.append({"step": step, "beside": f"{other}, {cores}", "quotient": quotient})
    figure = bars(rows, "beside", "quotient", "times as fast as", results[0])
    return figure.add_hline(y=1, line_dash="dot")


def bars(rows: list[dict[str, str]], group: str, value: str, title: str, results: Path) -> go.Figure:
    """One group of bars for each value of the first column, one colour for each value of the column `group`."""
    first = next(iter(rows[0]))
    figure = go.Figure()
    for colour, name in zip(COLOURS, dict.fromkeys(row[group] for row in rows), strict=False):
        own = [row for row in rows if row[group] == name]
        numbers = [float(row[value]) for row in own]
        labels = [row[first].replace(", batch", "<br>batch") for row in own]
        figure.add_bar(name=name.replace("`", ""), x=labels, y=numbers, text=[f"{n:g}" for n in numbers], marker_color=colour)
    heading = {"text": f"benchmarks/results/{results.name}", "font": {"size": 13}}
    margin, legend = {"l": 60, "r": 20, "t": 50, "b": 60}, {"orientation": "h", "y": 1.12, "x": 0.4}
    figure.update_layout(template="plotly_white", barmode="group", yaxis_title=title, title=heading, margin=margin, legend=legend)
    figure.update_layout(**SIZE)
    return figure


def read(results: Path) -> list[dict[str, str]]:
    """The rows of the first table of a Markdown file, by column name."""
    lines = [line for line in results.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(head, row, strict=True)) for row in rows if len(row) == len(head)]


def save(figure: go.Figure, path: Path) -> None:
    page = figure.to_html(full_html=True, include_plotlyjs=True, config={"displayModeBar": False, "showSendToCloud": False})
    with browser() as chromium:
        view = chromium.new_page(viewport=SIZE)
        view.set_content(page)
        view.wait_for_selector(".main-svg")
        path.write_bytes(view.screenshot())
    print(path)


if __name__ == "__main__":
    main()
