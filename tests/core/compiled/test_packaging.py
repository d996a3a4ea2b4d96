"""Source distribution and wheels: a wheel that is built from shipped sources has the libraries, and says for which platform."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from stablessm_core.compiled import build

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("stablessm_core", "server", "worker", "web", "migrations")
IGNORED = shutil.ignore_patterns("__pycache__", "node_modules", "kernels-*")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the source distribution of this checkout holds."""
    folder = tmp_path_factory.mktemp("sources")
    copy = folder / "copy"
    for room in ROOMS:
        shutil.copytree(ROOT / room, copy / room, ignore=IGNORED)
    for name in ("pyproject.toml", "build_backend.py", "MANIFEST.in", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / name, copy)
    archive = hook(copy, "build_sdist", folder)
    with tarfile.open(folder / archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.removesuffix(".tar.gz")


def hook(sources: Path, name: str, *arguments: object, **environment: str) -> str:
    """What the build backend of these sources answers, as an installer would call it."""
    call = f"build_backend.{name}({', '.join(repr(str(argument)) for argument in arguments)})"
    done = subprocess.run(
        [sys.executable, "-c", f"import build_backend; answer = {call}; print(); print(answer)"],
        cwd=sources,
        env=os.environ | {"PYTHONPATH": str(sources)} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        inside = [name for name in file.namelist() if name.startswith("stablessm_core/compiled/")]
        return {Path(name).name: file.read(name) for name in inside}


def test_a_wheel_from_the_shipped_sources_has_every_library_and_its_platforms_tag(unpacked: Path, tmp_path: Path) -> None:
    compiler = build.compiler()
    if build.machine() not in build.TARGETS or compiler is None:
        pytest.skip("no kernels or no C compiler here")
    quick = tmp_path / "cc"  # the compiler at hand, told last not to optimise, which takes most of the time
    quick.write_text(f'#!/bin/sh\nexec {shlex.join(compiler)} "$@" -O0\n')
    quick.chmod(0o755)
    named = {} if build.is_zig(compiler) else {"STABLESSM_COMPILER": str(quick)}  # zig is known by its name
    wheel = tmp_path / hook(unpacked, "build_wheel", tmp_path, **named)
    assert wheel.stem.endswith(f"-py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}")
    found = members(wheel)
    libraries = {build.library(target).name for target in build.TARGETS[build.machine()]}
    assert {name for name in found if name.startswith("kernels-")} == libraries
    assert all(build.source_hash().encode() in found[name] for name in libraries)
    assert {
        path.name: path.read_bytes() for path in build.HERE.iterdir() if path.suffix in build.SOURCES
    }.items() <= found.items()


def test_a_wheel_without_libraries_is_for_any_platform_and_holds_the_reason(unpacked: Path, tmp_path: Path) -> None:
    wheel = tmp_path / hook(unpacked, "build_wheel", tmp_path, STABLESSM_COMPILER="none")
    assert wheel.stem.endswith("-py3-none-any")
    found = members(wheel)
    assert [name for name in found if name.startswith("kernels-")] == [build.reason_file().name]
    assert b"STABLESSM_COMPILER" in found[build.reason_file().name]


@pytest.mark.parametrize("name", ["get_requires_for_build_wheel", "get_requires_for_build_editable"])
def test_a_compiler_is_asked_for_only_where_there_is_none(unpacked: Path, name: str) -> None:
    nothing = {"PATH": "", "CC": "", "STABLESSM_COMPILER": ""}
    wanted = [build.COMPILER_PACKAGE] if build.machine() in build.TARGETS else []
    assert hook(unpacked, name, **nothing) == str(wanted)
    assert hook(unpacked, name, **nothing | {"CC": "gcc"}) == "[]"
    assert hook(unpacked, name, **nothing | {"STABLESSM_COMPILER": "none"}) == "[]"
