"""`stablessm doctor` without the service: checks what watching a model needs, and says how to mend what is missing."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from stablessm_core import __version__
from stablessm_core.outside.arguments import DEFAULT_DIR
from stablessm_core.report.link import Refused, Server
from stablessm_core.report.outbox import in_use
from stablessm_core.report.sync import run_files

MAY_REPORT = ("ingest", "submit", "admin")  # scopes whose tokens may report runs
Finding = tuple[str, str, str, str]  # "ok", "note" or "missing"; what was checked; what was found; how to mend it


def examine(say: Callable[[str], None]) -> int:
    """Say every finding. Returns 0 if runs can be recorded and sent as the environment asks, else 1."""
    findings = [*_packages(), _server(os.environ.get("STABLESSM_URL"), os.environ.get("STABLESSM_TOKEN")), *_folder()]
    for state, what, found, fix in findings:
        say(f"{state:<7}  {what}: {found}" + (f"\n           {fix}" if fix else ""))
    return int(any(state == "missing" for state, *_ in findings))


def _packages() -> list[Finding]:
    return [
        ("ok", "stablessm", f"{__version__} without the service", ""),
        ("ok", "python", f"{platform.python_version()} on {platform.machine()}", ""),
        _package("numpy", "missing", "pip install numpy"),
        _package("zstandard", "missing", "pip install zstandard"),
        _package("torch", "note", "`stablessm.watch` needs it, `stablessm.log_only` does not"),
    ]


def _package(name: str, without: str, fix: str) -> Finding:
    # the version in the package's metadata: importing torch takes seconds
    try:
        return ("ok", name, version(name), "")
    except PackageNotFoundError:
        return (without, name, "not installed", fix)


def _server(url: str | None, token: str | None) -> Finding:
    if not url:
        return ("note", "server", "none: STABLESSM_URL is not set", "runs are recorded in files, and `stablessm sync` sends them")
    try:
        server = Server(url, token)
        try:
            scope = server.who_am_i().get("scope")
        finally:
            server.close()
    except Refused as refused:
        # a token of the scope `ingest` may not even ask who it is; the refusal names its scope
        named = re.search(r"this token has the scope (\w+)", str(refused))
        if refused.status == 401:
            without = "does not accept the token" if token else "needs a token"
            return ("missing", "server", f"{url} {without}", "set STABLESSM_TOKEN to a token of that server")
        if refused.status != 403 or named is None:
            return ("missing", "server", f"{url} refuses to answer: {refused}", "correct STABLESSM_URL")
        scope = named[1]
    except (OSError, ValueError) as error:
        return ("missing", "server", f"{url} does not answer: {error}", "correct STABLESSM_URL, or start the server")
    if scope is None:
        return ("ok", "server", f"{url} answers", "")
    if scope not in MAY_REPORT:
        fix = f"use a token of the scope {', '.join(MAY_REPORT[:-1])} or {MAY_REPORT[-1]}"
        return ("missing", "server", f"{url} answers; the token has the scope {scope}, which may not report runs", fix)
    return ("ok", "server", f"{url} answers; the token has the scope {scope}", "")


def _folder() -> list[Finding]:
    """The folder in which runs are recorded, and the files in it that were not sent."""
    folder = Path(os.environ.get("STABLESSM_DIR") or DEFAULT_DIR)
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        why = f"{folder} cannot be written ({error.strerror or error})"
        return [("missing", "folder", why, "set STABLESSM_DIR to a folder that can be written")]
    first: Finding = ("ok", "folder", f"{folder} can be written", "")
    waiting = [path for path in run_files([folder]) if not in_use(path)] if folder.is_dir() else []
    if not waiting:
        return [first, ("ok", "unsent", f"no files of runs wait in {folder}", "")]
    count = f"{len(waiting):,} files of runs wait" if len(waiting) > 1 else "1 file of a run waits"
    return [first, ("note", "unsent", f"{count} in {folder}", f"`stablessm sync {folder}` sends them")]
