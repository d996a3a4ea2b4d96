"""The wheel of the service: it has the libraries of the kernels and the tag of its platform."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from stablessm_core.kernels import build

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("stablessm_core", "server", "worker", "web", "migrations", "studies")
IGNORED = shutil.ignore_patterns("__pycache__", "node_modules", "kernels-*")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the service is built from."""
    copy = tmp_path_factory.mktemp("sources")
    for room in (*ROOMS, "service"):
        shutil.copytree(ROOT / room, copy / room, ignore=IGNORED)
    shutil.copy(ROOT / "LICENSE", copy)
    shutil.copytree(ROOT / "docs" / "paper", copy / "docs" / "paper")
    return copy


def hook(sources: Path, name: str, *arguments: object, **environment: str) -> str:
    """Call a hook of the sources' build backend as an installer would, and return its result."""
    call = f"build_backend.{name}({', '.join(repr(str(argument)) for argument in arguments)})"
    done = subprocess.run(
        [sys.executable, "-c", f"import build_backend; answer = {call}; print(); print(answer)"],
        cwd=sources / "service",
        env=os.environ | {"PYTHONPATH": str(sources / "service")} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        inside = [name for name in file.namelist() if name.startswith("stablessm_core/kernels/")]
        return {Path(name).name: file.read(name) for name in inside}


def test_the_wheel_of_the_service_has_every_library_and_a_platform_tag(sources: Path, tmp_path: Path) -> None:
    compiler = build.compiler()
    if build.machine() not in build.TARGETS or compiler is None:
        pytest.skip("this machine has no kernels or no C compiler")
    # The compiler found above, with a final option that turns off optimisation, which takes most of the time.
    quick = tmp_path / "cc"
    quick.write_text(f'#!/bin/sh\nexec {shlex.join(compiler)} "$@" -O0\n')
    quick.chmod(0o755)
    # The build backend recognises zig by its name, which a wrapper would hide.
    named = {} if build.is_zig(compiler) else {"STABLESSM_COMPILER": str(quick)}
    wheel = tmp_path / hook(sources, "build_wheel", tmp_path, **named)
    assert wheel.stem.endswith(f"-py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}")
    with zipfile.ZipFile(wheel) as file:
        assert {name.partition("/")[0] for name in file.namelist() if ".dist-info" not in name} == set(ROOMS)
        assert [name for name in file.namelist() if name.startswith("stablessm_core/") and "/kernels-" not in name] == []
        assert file.read("studies/paper/registered/claims.json") == (ROOT / "docs" / "paper" / "claims.json").read_bytes()
    found = members(wheel)
    libraries = {build.library_path(target).name for target in build.TARGETS[build.machine()]}
    assert {name for name in found if name.startswith("kernels-")} == libraries
    assert all(build.source_hash().encode() in found[name] for name in libraries)


def test_a_wheel_without_libraries_is_platform_independent_and_contains_the_reason(sources: Path, tmp_path: Path) -> None:
    wheel = tmp_path / hook(sources, "build_wheel", tmp_path, STABLESSM_COMPILER="none")
    assert wheel.stem.endswith("-py3-none-any")
    found = members(wheel)
    assert [name for name in found if name.startswith("kernels-")] == [build.failure_path().name]
    assert b"STABLESSM_COMPILER" in found[build.failure_path().name]


@pytest.mark.parametrize("name", ["get_requires_for_build_wheel", "get_requires_for_build_editable"])
def test_the_build_requires_a_compiler_package_only_if_no_compiler_is_found(sources: Path, name: str) -> None:
    nothing = {"PATH": "", "CC": "", "STABLESSM_COMPILER": ""}
    wanted = [build.COMPILER_PACKAGE] if build.machine() in build.TARGETS else []
    assert hook(sources, name, **nothing) == str(wanted)
    assert hook(sources, name, **nothing | {"CC": "gcc"}) == "[]"
    assert hook(sources, name, **nothing | {"STABLESSM_COMPILER": "none"}) == "[]"
