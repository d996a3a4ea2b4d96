"""The code of docs/extending.md as files: what the page shows is what the tests run."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(r"^```(\w+)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> dict[str, str]:
    """Code by file name, of the blocks in this language."""
    return {name: code for found, name, code in BLOCK.findall(PAGE.read_text()) if found == language}


def install_plug_in(site: Path) -> None:
    """The page's package in `site` as an installer would leave it there: its modules, and its metadata with the entry point."""
    for name, code in blocks("python").items():
        if name.startswith("stablessm_echo/"):
            _write(site / name, code)
    (site / "stablessm_echo" / "__init__.py").touch()
    project = tomllib.loads(blocks("toml")["pyproject.toml"])["project"]
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    folder = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    _write(folder / "METADATA", metadata)
    _write(folder / "entry_points.txt", "\n".join(groups))


def extend_a_copy(target: Path) -> None:
    """Copies of our packages in `target`, with everything that the page adds to this repository."""
    for package in ("stablessm_core", "server", "web"):
        shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    for name, code in blocks("python").items():
        if name.startswith("stablessm_echo/"):  # the page says what is different about it here
            name, code = (text.replace("stablessm_echo", new) for text, new in
                          ((name, "stablessm_core/tasks/echo"), (code, "stablessm_core.tasks.echo")))  # fmt: skip
            _write(target / "stablessm_core/tasks/echo/__init__.py", '"""Repeat the input."""\n')
        if name.startswith("stablessm_core/layers/"):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).with_name("__init__.py").touch()
        _write(target / name, code)
    for name, changes in blocks("diff").items():
        text = (target / name).read_text()
        for change in changes.strip("\n").split("\n\n"):
            lines = change.splitlines()
            before, after = ("".join(f"{line[1:]}\n" for line in lines if line[0] in f" {sign}") for sign in "-+")
            assert f"\n{text}".count(f"\n{before}") == 1, f"{PAGE.name} replaces {before!r}, which is not in {name} once"
            text = f"\n{text}".replace(f"\n{before}", f"\n{after}")[1:]
        (target / name).write_text(text)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
