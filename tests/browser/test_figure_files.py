"""A chart as a file for a paper, drawn by the real browser: the same figure is the same file, and says which line is which."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.database.connection import Database
from stablessm_core.client import Client
from tests.server.http_service import BODY, TOKEN, running
from tests.server.recording import Recording, claim

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.mark.usefixtures("chromium")
def test_a_figure_drawn_twice_is_the_same_file_with_a_colour_and_a_name_for_each_line(sqlite_url: str, tmp_path: Path) -> None:
    sqlite = Database(sqlite_url)
    with running(sqlite_url, tmp_path) as (address, _), Client(address, TOKEN) as client:
        client.submit(BODY)
        Recording(sqlite, claim(sqlite), width=4).write(20)
        first, again = (client.figure_file(1, "eigenvalue", "svg", width=640, height=360) for _ in range(2))
        picture = client.figure_file(1, "eigenvalue", "png", width=640, height=360, scale=2.0)
    sqlite.close()
    assert first == again
    text = first.decode()
    assert 'width="640" height="360"' in text
    assert all(f"λ {key}" in text for key in range(4))
    assert len({color for color in ("rgb(0, 114, 178)", "rgb(213, 94, 0)", "rgb(0, 158, 115)") if color in text}) == 3
    assert picture.startswith(b"\x89PNG")
    assert int.from_bytes(picture[16:20], "big") == 1280
