"""The dependency audit finds known vulnerabilities, accepts them only with a reason, and never reports success if the advisory
service gives no answer."""

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

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]


def advisory(package: str, identity: str, **more: Any) -> dict[str, Any]:
    """An advisory in the OSV format (https://ossf.github.io/osv-schema/)."""
    affected = {
        "package": {"name": package, "ecosystem": "PyPI"},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.0"}]}],
    }
    return {"id": identity, "summary": "it is bad", "affected": [affected], **more}


KNOWN = {
    ("django", "2.0"): [advisory("django", "PYSEC-0")],
    ("bad", "1.0"): [advisory("bad", "PYSEC-1", aliases=["CVE-1"])],
    ("taken-back", "1.0"): [advisory("taken-back", "PYSEC-2", withdrawn="2026-01-01T00:00:00Z")],
}


@pytest.fixture
def service() -> Iterator[str]:
    """URL of a local OSV service. Its path /nothing returns no advisories."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            known = KNOWN.get((asked["package"]["name"], asked["version"])) if self.path == "/query" else None
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"vulns": known} if known else {}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/query"
        server.shutdown()
        thread.join()


def audit(service: str, folder: Path, *pins: str, accepted: str = "") -> tuple[int, str]:
    (folder / "pins.txt").write_text("\n".join(pins) + "\n")
    (folder / "accepted.txt").write_text(accepted)
    command = [sys.executable, str(ROOT / ".ci" / "audit.py"), "--osv-url", service]
    command += ["--pins", str(folder / "pins.txt"), "--accepted", str(folder / "accepted.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stdout + done.stderr


def test_a_known_vulnerability_fails_the_audit_and_names_the_fixed_version(service: str, tmp_path: Path) -> None:
    code, said = audit(service, tmp_path, "good==1.0", "bad==1.0", "taken-back==1.0")
    assert code == 1, said
    assert "bad 1.0: CVE-1 PYSEC-1 mended in 2.0" in said
    assert "3 pins audited, 1 advisories, 0 accepted" in said
    assert "NOT AUDITED" not in said


def test_a_vulnerability_that_is_accepted_with_a_reason_passes_the_audit(service: str, tmp_path: Path) -> None:
    assert audit(service, tmp_path, "bad==1.0", accepted="CVE-1 we never call that function\n")[0] == 0
    code, said = audit(service, tmp_path, "bad==1.0", accepted="PYSEC-1\n")
    assert (code, "has no reason" in said) == (1, True)
    code, said = audit(service, tmp_path, "good==1.0", accepted="PYSEC-1 once\n")
    assert (code, "take it out" in said) == (0, True)


@pytest.mark.parametrize("away", ["http://127.0.0.1:1/query", "{}/nothing"])
def test_an_advisory_service_without_answers_is_reported_but_does_not_fail_the_audit(
    service: str, tmp_path: Path, away: str
) -> None:
    code, said = audit(away.format(service.removesuffix("/query")), tmp_path, "bad==1.0")
    assert (code, "NOT AUDITED" in said) == (0, True), said


def test_unreadable_pins_are_not_reported_as_an_unreachable_service(service: str, tmp_path: Path) -> None:
    code, said = audit(service, tmp_path, "good>=1.0")
    assert (code, "cannot read" in said, "NOT AUDITED" in said) == (1, True, False), said


def test_packages_that_the_advisory_service_does_not_know_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(ROOT / ".ci"))
    try:
        from audit import judge
    finally:
        sys.path.pop(0)
    # This is how pip-audit 2.10 reports a package that its index does not have. Only its PyPI service reports this.
    private = {"name": "private", "skip_reason": "Dependency not found on PyPI and could not be audited: private (3)"}
    known_bad = {"name": "django", "version": "2.0", "vulns": [{"id": "A", "aliases": [], "fix_versions": [], "description": ""}]}
    good = {"name": "good", "version": "1.0", "vulns": []}
    assert judge([private, good, known_bad], {}) == 0
    said = capsys.readouterr().out
    assert "NOT AUDITED, since nothing is known about them: private" in said
    assert "1 pins audited" in said
    assert judge([private, good, {"name": "django", "skip_reason": "not found"}], {}) == 0
    assert "NOT AUDITED: no advisories can be had" in capsys.readouterr().out
