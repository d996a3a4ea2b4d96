"""What the server's process sets on its machine at startup."""

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

pytestmark = pytest.mark.slow

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from server.http.serving import FILES
from server.open_files import SERVER_NEEDS, allow_open_files
allow_open_files(FILES, SERVER_NEEDS, "the server")
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [(256, FILES + 9, FILES), (256, 300, 300), (FILES + 5, FILES + 9, FILES + 5)],
    ids=["raised", "as far as allowed", "never lowered"],
)
def test_the_server_raises_its_limit_of_open_files_for_its_connections(soft: int, hard: int, then: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(soft=soft, hard=hard)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == [str(then), str(hard)]


@pytest.mark.slow
def test_serve_prints_its_address_and_the_path_of_its_token_file(sqlite_url: str, tmp_path: Path, free_port: int) -> None:
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
    [({}, "the token is that of STABLESSM_TOKEN"), ({"auth": False, "token": None}, "the token is not required (--no-auth)")],
)
def test_the_log_names_the_source_of_the_token_but_never_the_token(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, given: dict[str, Any], said: str
) -> None:
    caplog.set_level(logging.INFO, "stablessm.server")
    announce(settings(sqlite_url, tmp_path, **given))
    assert caplog.messages == [f"listening on http://127.0.0.1:8000/, {said}"]


def test_serve_prints_the_address_with_the_token_on_a_terminal(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    announce(settings(sqlite_url, tmp_path))
    assert capsys.readouterr().out == f"StableSSM is at http://127.0.0.1:8000/?token={TOKEN}\n"
