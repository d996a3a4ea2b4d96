"""A report about the paper as a file: JSON, HTML, Markdown or LaTeX, and its figures as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from studies.paper.formats import html_text, latex, markdown
from studies.paper.registry import Registry
from studies.paper.report import dumps
from web.paper_figures import paper_figure
from web.picture.sizes import PIXELS_PER_INCH, size_of
from web.standalone import sized

FORMATS = {"json": "application/json", "html": "text/html", "md": "text/markdown; charset=utf-8", "tex": "application/x-tex"}
PICTURES = {"md": "svg", "tex": "pdf"}  # the format of the figures beside a file
WIDTH, HEIGHT = 720, 400  # pixels


def report_file(report: Mapping[str, Any], registry: Registry, format: str, name: str) -> bytes:
    """The report in a format of FORMATS. Markdown and LaTeX name the files of the figures: `NAME-0.svg` or `NAME-0.pdf`."""
    captions = [figure["caption"] for figure in report["figures"]]
    if format == "json":
        return dumps(report).encode()
    if format == "html":
        svgs = [_picture(figure, "svg").decode() for figure in report["figures"]]
        return html_text(report, registry, list(zip(svgs, captions, strict=True))).encode()
    files = [f"{name}-{number}.{PICTURES[format]}" for number in range(len(captions))]
    write = markdown if format == "md" else latex
    return write(report, registry, list(zip(files, captions, strict=True))).encode()


def write_report(report: Mapping[str, Any], registry: Registry, path: Path) -> list[Path]:
    """Write the report to a file, whose ending chooses the format, and the figures of Markdown and LaTeX beside it.

    Returns the written files. Raises ValueError for another ending.
    """
    format = checked_format(path)
    path.write_bytes(report_file(report, registry, format, path.stem))
    written = [path]
    if format in PICTURES:
        for number, figure in enumerate(report["figures"]):
            beside = path.with_name(f"{path.stem}-{number}.{PICTURES[format]}")
            beside.write_bytes(_picture(figure, PICTURES[format]))
            written.append(beside)
    return written


def checked_format(path: Path) -> str:
    """The format that the ending of a file chooses. Raises ValueError."""
    format = path.suffix.removeprefix(".").lower()
    if format not in FORMATS:
        raise ValueError(f"{path.name} ends with {path.suffix!r}; allowed: {', '.join('.' + name for name in FORMATS)}")
    return format


def _picture(figure: Mapping[str, Any], format: str) -> bytes:
    from web.picture.render import picture  # here, because matplotlib takes a second and most requests draw no picture

    size = size_of(None, WIDTH, HEIGHT, None, png=False)
    drawn = sized(paper_figure(figure), round(size.width * PIXELS_PER_INCH), round(size.height * PIXELS_PER_INCH))
    return picture(drawn, format, size)
