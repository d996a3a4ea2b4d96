"""Charts exported as files for papers: page, client and command line give identical files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import sync_playwright

from server.cli.main import main
from server.database.connection import Database
from stablessm_core.client import Client
from tests.conftest import CHROMIUM_ARGUMENTS
from tests.server.http_service import BODY, TOKEN, running
from tests.server.recording import Recording, claim
from web.palette import COLORS

pytestmark = [pytest.mark.long, pytest.mark.browser, pytest.mark.timeout(300)]

SIZE: Any = {"width": 640, "height": 360}


def exported(page: Any, chart: str, format: str) -> bytes:
    """The file that the chart's export dialog downloads. The dialog is operated with the keyboard."""
    size = page.locator("dialog[data-exports] [name=size]")
    deadline = time.monotonic() + 120
    while (
        not size.is_visible() and time.monotonic() < deadline
    ):  # repeated, because the link does nothing until the script is loaded
        page.locator(f'a[data-export="{chart}"]').press("Enter")
        page.wait_for_timeout(200)
    size.select_option("page" if format == "pdf" else "640x360")
    with page.expect_download() as download:
        page.locator(f'dialog[data-exports] button[value="{format}"]').press("Enter")
    page.locator("dialog[data-exports] [data-close]").click()
    assert download.value.suggested_filename.endswith(f"-{chart}.{format}")
    return Path(download.value.path()).read_bytes()


def from_the_pages(address: str, chromium: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGUMENTS) as browser,
    ):
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto(f"{address}/login")
        page.locator("[name=token]").fill(TOKEN)
        page.locator("[name=token]").press("Enter")
        page.wait_for_url(f"{address}/")
        for url, chart, formats in (
            ("/runs/1", "eigenvalue", ("svg", "html", "pdf")),
            ("/runs/1", "theory_gradient_scale", ("svg",)),
            ("/compare?runs=1,2", "compare_loss", ("png",)),
        ):
            page.goto(address + url)
            if chart.startswith("theory"):
                page.get_by_text("Where the weights are on the map").click()  # opens the part of the page that has the chart
            # the page chooses the lines of a chart before it draws the chart
            page.locator(f'[data-chart="{chart}"][data-drawn]').wait_for()
            found |= {f"{chart}.{format}": exported(page, chart, format) for format in formats}
    return found


def test_a_figure_file_is_identical_from_page_client_and_command_line(
    chromium: str, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite = Database(sqlite_url)
    with running(sqlite_url, tmp_path) as (address, _), Client(address, TOKEN) as client:
        for _ in range(2):
            client.submit(BODY)
            Recording(sqlite, claim(sqlite), width=4).write(20)
        sqlite.close()
        pages = from_the_pages(address, chromium)
        files = {
            "eigenvalue.svg": client.figure_file(1, "eigenvalue", "svg", **SIZE),
            "eigenvalue.html": client.figure_file(1, "eigenvalue", "html", eigenvalues=range(4), **SIZE),
            "theory_gradient_scale.svg": client.theory_figure_file(
                "theory_gradient_scale", "svg", run=1, layer=0, maps="best", **SIZE
            ),
        }
        monkeypatch.setenv("STABLESSM_URL", address)
        monkeypatch.setenv("STABLESSM_TOKEN", TOKEN)
        for name, arguments in {
            "compare_loss.png": ["1,2", "compare_loss", "--width", "640", "--height", "360"],
            "eigenvalue.pdf": ["1", "eigenvalue", "--eigenvalues", "0,1,2,3", "--size", "page"],
        }.items():
            done = CliRunner().invoke(main, ["figure", *arguments, "-o", str(tmp_path / name)])
            assert done.exit_code == 0, done.output
            files[name] = (tmp_path / name).read_bytes()
    assert [name for name in pages if pages[name] != files[name]] == []
    text = files["eigenvalue.svg"].decode()
    assert all(f"<!-- λ {key} -->" in text for key in range(4))
    assert [color for n in range(4) if (color := COLORS[f"line-{n}"]) not in text] == []
    assert files["compare_loss.png"].startswith(b"\x89PNG")
    assert int.from_bytes(files["compare_loss.png"][16:20], "big") == 1280
    assert files["eigenvalue.pdf"].startswith(b"%PDF-")
