"""What the server's process asks of its machine."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from server.http.serving import FILES, announce
from tests.server.http_service import TOKEN, settings

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from server.http.serving import allow_open_files
allow_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [(256, FILES + 9, FILES), (256, 300, 300), (FILES + 5, FILES + 9, FILES + 5)],
    ids=["raised", "as far as allowed", "never lowered"],
)
def test_a_server_may_hold_all_the_connections_it_admits(soft: int, hard: int, then: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(soft=soft, hard=hard)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == [str(then), str(hard)]


@pytest.mark.slow
def test_serve_says_where_it_listens_and_where_its_token_is(sqlite_url: str, tmp_path: Path, free_port: int) -> None:
    command = [sys.executable, "-m", "server", "serve", "--database-url", sqlite_url, "--data-dir", str(tmp_path / "state")]
    process = subprocess.Popen([*command, "--port", str(free_port)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "listening" in line)
    finally:
        process.terminate()
        process.communicate(timeout=60)
    file = tmp_path / "state" / "token"
    assert json.loads(line)["msg"] == f"listening on http://127.0.0.1:{free_port}/, the token is the file {file}"
    assert file.read_text().strip() not in line


@pytest.mark.parametrize(
    ("given", "said"),
    [({}, "the token is that of STABLESSM_TOKEN"), ({"auth": False, "token": None}, "the token is not asked for (--no-auth)")],
)
def test_where_the_token_comes_from_is_said_and_never_the_token(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, given: dict[str, Any], said: str
) -> None:
    caplog.set_level(logging.INFO, "stablessm.server")
    announce(settings(sqlite_url, tmp_path, **given))
    assert caplog.messages == [f"listening on http://127.0.0.1:8000/, {said}"]


def test_on_a_terminal_the_address_has_the_token_as_with_up(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    announce(settings(sqlite_url, tmp_path))
    assert capsys.readouterr().out == f"StableSSM is at http://127.0.0.1:8000/?token={TOKEN}\n"
