"""The dependency audit finds what is known, accepts only with a reason, and never calls clean what it could not ask about."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BAD = {"id": "PYSEC-1", "aliases": ["CVE-1"], "summary": "it is bad", "fixed_in": ["2.0"], "withdrawn": None}
KNOWN: dict[str, list[dict[str, Any]]] = {
    "/jinja2/2.10/json": [BAD],
    "/good/1.0/json": [],
    "/bad/1.0/json": [BAD],
    "/taken-back/1.0/json": [BAD | {"id": "PYSEC-2", "withdrawn": "2026-01-01"}],
}


@pytest.fixture
def source() -> Iterator[str]:
    """An index with advisories, as PyPI answers."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = KNOWN.get(self.path)
            self.send_response(404 if known is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps({"vulnerabilities": known}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def audit(source: str, folder: Path, *pins: str, accepted: str = "") -> tuple[int, str]:
    (folder / "pins.txt").write_text("\n".join(pins) + "\n")
    (folder / "accepted.txt").write_text(accepted)
    command = [sys.executable, str(ROOT / ".ci" / "audit.py"), "--source", source]
    command += ["--pins", str(folder / "pins.txt"), "--accepted", str(folder / "accepted.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stdout + done.stderr


def test_a_known_vulnerability_fails_and_says_what_mends_it(source: str, tmp_path: Path) -> None:
    code, said = audit(source, tmp_path, "good==1.0", "bad==1.0", "taken-back==1.0", "private==3")
    assert code == 1
    assert "bad 1.0: PYSEC-1 CVE-1 mended in 2.0" in said
    assert "3 pins, 1 advisories, 0 accepted" in said
    assert "NOT AUDITED, since" in said
    assert "does not have them: private 3" in said


@pytest.mark.parametrize("name", ["PYSEC-1", "CVE-1"])
def test_one_that_is_accepted_with_a_reason_passes(source: str, tmp_path: Path, name: str) -> None:
    assert audit(source, tmp_path, "bad==1.0", accepted=f"{name} we never call that function\n")[0] == 0
    code, said = audit(source, tmp_path, "bad==1.0", accepted=f"{name}\n")
    assert (code, "has no reason" in said) == (1, True)
    code, said = audit(source, tmp_path, "good==1.0", accepted=f"{name} once\n")
    assert (code, "take it out" in said) == (0, True)


@pytest.mark.parametrize("broken", ["http://127.0.0.1:1", "{}/nothing"])
def test_a_source_without_advisories_is_said_loudly_and_does_not_fail(source: str, tmp_path: Path, broken: str) -> None:
    code, said = audit(broken.format(source), tmp_path, "bad==1.0")
    assert (code, "NOT AUDITED" in said) == (0, True)


def test_every_pin_is_audited() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.strip() and not line.startswith("#")]
    sys.path.insert(0, str(ROOT / ".ci"))
    try:
        from audit import PIN
    finally:
        sys.path.pop(0)
    assert len(PIN.findall("\n".join(lines))) == len(lines)
