"""The README's tree is the tree, what is packaged is complete, and `make setup` works once and then does nothing."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
PACKAGES = ("stablessm_core/", "server/", "worker/", "web/", "migrations/")
# explained as folders: their files mirror what is explained elsewhere
FOLDERS = (
    *(f"tests/{room}/" for room in ("browser", "chaos", "core", "end_to_end", "ops", "server", "web", "worker")),
    "migrations/versions/",
    "benchmarks/results/",
)


def tracked() -> list[str]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in listing.splitlines() if (ROOT / path).exists()]


def tree_of_readme() -> dict[str, str]:
    """Path -> explanation, from the indented tree between the two ``` lines that follow the heading `## The tree`."""
    section = (ROOT / "README.md").read_text().partition("## The tree")[2]
    lines = section.split("```")[1].splitlines()[1:]
    entries: dict[str, str] = {}
    parents: list[str] = []
    for line in filter(str.strip, lines):
        match = re.fullmatch(r"( *)(\S+)(?:\s+(.*))?", line)
        assert match is not None, line
        depth = len(match[1]) // 2
        parents[depth:] = [match[2]]
        entries["".join(parents)] = match[3] or ""
    return entries


def test_every_source_file_has_its_line_in_the_readme() -> None:
    explained = [path for path in tracked() if not path.endswith(("__init__.py", ".png"))]
    wanted = {next((folder for folder in FOLDERS if path.startswith(folder)), path) for path in explained}
    named = {path for path in tree_of_readme() if not path.endswith("/") or path in FOLDERS}
    assert sorted(wanted - named) == [], "add a line for each to the tree in README.md"
    assert sorted(named - wanted) == [], "the tree in README.md names what does not exist"


def test_every_line_of_the_tree_explains() -> None:
    unexplained = [path for path, text in tree_of_readme().items() if not text]
    assert unexplained == []


def test_every_file_of_the_packages_is_packaged() -> None:
    files = [Path(path) for path in tracked() if path.startswith(PACKAGES)]
    assert {".".join(file.parent.parts) for file in files} == set(SETUPTOOLS["packages"])
    for file in files:
        patterns = ["*.py", *SETUPTOOLS["package-data"].get(".".join(file.parent.parts), [])]
        assert any(file.match(pattern) for pattern in patterns), f"{file} would not be installed"


def test_files_are_text_of_a_readable_size() -> None:
    sources = [path for path in tracked() if path.startswith(PACKAGES) and path.endswith(".py")]
    long = {path: lines for path in sources if (lines := len((ROOT / path).read_text().splitlines())) > 500}
    assert long == {}


FAKE_PYTHON = """#!/bin/sh
echo "$*" >> "$LOG"
case "$1 $2" in
  "-c import sys; sys.exit"*) exit $OLD ;;
  "-m venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  "-m pip") exit $BROKEN ;;
  --version*) echo "Python 3.9.2" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile and its inputs, and an interpreter that notes what it is asked to do."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "python").write_text(FAKE_PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def setup(checkout: Path, *, old: int = 0, broken: int = 0) -> tuple[int, str, str]:
    """(exit status, what the interpreter was asked, messages) of `make setup`."""
    log = checkout / "log"
    log.write_text("")
    environment = {"PATH": "/usr/bin:/bin", "LOG": str(log), "OLD": str(old), "BROKEN": str(broken)}
    command = ["make", "setup", f"PYTHON={checkout / 'python'}"]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    return done.returncode, log.read_text(), done.stderr


def test_setup_installs_once_and_again_when_its_inputs_change(checkout: Path) -> None:
    status, asked, _ = setup(checkout)
    assert status == 0
    assert "-m venv" in asked
    assert "--constraint constraints.txt --editable .[train,dev]" in asked
    assert setup(checkout)[:2] == (0, "")
    stamp = (checkout / ".venv" / ".installed").stat()
    os.utime(checkout / "constraints.txt", (stamp.st_atime, stamp.st_mtime + 10))
    status, asked, _ = setup(checkout)
    assert status == 0
    assert "-m pip install" in asked
    assert "-m venv" not in asked


def test_a_failed_installation_is_tried_again(checkout: Path) -> None:
    assert setup(checkout, broken=1)[0] != 0
    status, asked, _ = setup(checkout)
    assert status == 0
    assert "-m pip install" in asked


def test_setup_says_which_python_it_needs(checkout: Path) -> None:
    status, _, message = setup(checkout, old=1)
    assert status != 0
    assert "Python 3.11 or newer is needed" in message
    assert "Python 3.9.2" in message
