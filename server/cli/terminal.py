"""Output of the commands: tables, text, and readable numbers, sizes and times.

On a terminal, output has colours and fits the width. In a pipe or a file it is plain text with lines of any length.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from stablessm_core.telemetry.nonfinite import spelling

COLORS = {
    "finished": "green", "running": "blue", "diverged": "red", "failed": "red", "cancelled": "yellow", "queued": "cyan",
    "lost": "yellow",
}  # fmt: skip
ANY_LENGTH = 100_000


def show(part: RenderableType) -> None:
    """Print to standard output."""
    terminal = console()
    unlimited = terminal.options.update(width=ANY_LENGTH)
    # make the table wider than the terminal rather than cut off the last digits of a number
    terminal.width = max(terminal.width, terminal.measure(part, options=unlimited).minimum)
    with terminal.capture() as captured:
        terminal.print(part)
    click.echo("\n".join(line.rstrip(" ") for line in captured.get().split("\n")), nl=False)  # remove the padding of cells


def console() -> Console:
    """A console that does not interpret markup in text."""
    terminal = sys.stdout.isatty()
    width = None if terminal else ANY_LENGTH
    return Console(force_terminal=terminal, width=width, markup=False, emoji=False, highlight=False, soft_wrap=not terminal)


def table(rows: Iterable[Sequence[str | Text]], titles: Sequence[str], *, numbers: Iterable[str] = ()) -> Table:
    """A table. On a narrow terminal, its last column is cut off. Columns whose titles are in `numbers` are right-aligned."""
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for title in titles:
        made.add_column(title, justify="right" if title in numbers else "left", no_wrap=title != titles[-1], overflow="fold")
    for *cells, last in rows:
        made.add_row(*(_cell(cell) for cell in cells), _cell(last, no_wrap=True, overflow="ellipsis"))
    return made


def _cell(content: str | Text, **options: Any) -> Text:
    return content if isinstance(content, Text) else Text(printable(content), **options)


def printable(text: str) -> str:
    """The text with control characters replaced by U+FFFD, because a terminal would execute control characters in names and
    messages from other people."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def status_text(status: str) -> Text:
    return Text(status, COLORS.get(status, ""))


def number(value: float | str | None) -> str:
    """A number with four digits; "" for None. Strings stay unchanged, because JSON contains non-finite numbers as strings."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return spelling(value) or f"{value:.4g}"


def size_text(size: float) -> str:
    """A size in bytes as human-readable text."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def file_size(path: Path) -> str:
    """The path and the size of a written file, as text."""
    return f"{path}  {path.stat().st_size:,} bytes"


def duration_text(seconds: float | None) -> str:
    """Hours, minutes and seconds; "?" for None."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def time_text(at: float | None, *, seconds: bool = False) -> str:
    """Local date and time of a Unix time; "never" for None."""
    return time.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M", time.localtime(at)) if at is not None else "never"


def ratios(counts: dict[str, Any]) -> list[str]:
    """finite / ended and stable / ended of a group or a sweep; runs that still wait or train do not count."""
    ended = counts["total"] - counts["open"]
    return [f"{counts['finite']}/{ended}", f"{counts['stable']}/{ended}"]


def short_path(path: str) -> str:
    """The last part of a dotted path, after a final ".name" is removed: "reparameterization" for
    "model.reparameterization.name"."""
    return path.removesuffix(".name").split(".")[-1]
