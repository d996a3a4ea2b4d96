"""Writes the code of docs/extending.md to files, so that the tests run what the page shows."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "extending.md"
# where the page puts the files of a package in this repository
IN_REPOSITORY = {
    "stablessm_echo/section.py": "stablessm_core/spec/tasks/echo.py",
    "stablessm_echo/data.py": "stablessm_core/tasks/echo.py",
    "stablessm_turning/section.py": "stablessm_core/spec/layers/turning.py",
    "stablessm_turning/layer.py": "stablessm_core/layers/turning.py",
}
BUILT_BY = re.compile(r"^    built_by: .*\n", re.MULTILINE)  # the page tells readers to remove this line in this repository
BLOCK = re.compile(r"^```(\w+)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> dict[str, str]:
    """The page's code blocks in this language: file name -> code."""
    return {name: code for found, name, code in BLOCK.findall(PAGE.read_text()) if found == language}


def install_plug_in(site: Path, name: str = "echo") -> None:
    """Install in `site` the page's package with the task `echo` or the layer `turning`."""
    modules = {path: code for path, code in blocks("python").items() if path.startswith(f"stablessm_{name}/")}
    project = tomllib.loads(blocks("toml")[f"{name}/pyproject.toml"])["project"]
    install_package(site, project["name"], project["version"], modules, project["entry-points"])


def install_package(site: Path, name: str, version: str, modules: dict[str, str], groups: dict[str, dict[str, str]]) -> None:
    """Write a package to `site` as an installer does: its modules by path, and its metadata with entry points."""
    for path, code in modules.items():
        _write(site / path, code)
        (site / path).with_name("__init__.py").touch()
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    _write(folder / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, targets in groups.items():
        lines += [f"[{group}]", *(f"{entry} = {target}" for entry, target in targets.items())]
    _write(folder / "entry_points.txt", "\n".join(lines))


def extend_a_copy(target: Path) -> None:
    """Copy our packages to `target` and add everything that the page adds to this repository."""
    for package in ("stablessm_core", "server", "web"):
        shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    for name, code in blocks("python").items():
        name = IN_REPOSITORY.get(name, name)
        code = BUILT_BY.sub("", code)
        for package, room in IN_REPOSITORY.items():
            code = code.replace(_module(package), _module(room))
        _write(target / name, code)
    for name, changes in blocks("diff").items():
        text = (target / name).read_text()
        for change in changes.strip("\n").split("\n\n"):
            lines = change.splitlines()
            before, after = ("".join(f"{line[1:]}\n" for line in lines if line[0] in f" {sign}") for sign in "-+")
            assert f"\n{text}".count(f"\n{before}") == 1, (
                f"{PAGE.name} replaces {before!r}, which does not occur exactly once in {name}"
            )
            text = f"\n{text}".replace(f"\n{before}", f"\n{after}")[1:]
        (target / name).write_text(text)


def _module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
