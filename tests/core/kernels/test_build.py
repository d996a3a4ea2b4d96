"""The kernels are built by the named or the first working compiler. If no compiler works, the reason is stored."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

from stablessm_core.kernels import build

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(build.machine() not in build.TARGETS, reason="no kernels for this family of processors"),
]


@pytest.fixture
def no_compiler_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sets PATH to one empty folder, removes the variables that name a compiler, and returns the folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CC", "STABLESSM_COMPILER"):
        monkeypatch.delenv(name, raising=False)
    return folder


def program(path: Path, says: str) -> str:
    """Creates a compiler that prints `says` and fails; returns its path."""
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 1\n")
    path.chmod(0o755)
    return str(path)


def test_a_compiler_named_in_the_environment_takes_precedence(
    no_compiler_installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "ccache 'my gcc' -m64")
    assert build.compiler() == ["ccache", "my gcc", "-m64"]
    monkeypatch.setenv("STABLESSM_COMPILER", "clang-19")
    assert build.compiler() == ["clang-19"]


def test_a_compiler_that_cannot_compile_is_ignored(no_compiler_installed: Path) -> None:
    program(no_compiler_installed / "cc", "stdlib.h: No such file or directory")
    assert build.compiler() is None or "ziglang" in build.compiler()


def test_the_error_of_a_broken_compiler_is_stored_and_older_libraries_are_deleted(
    no_compiler_installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = build.library_path(next(iter(build.TARGETS[build.machine()])), tmp_path)
    old.write_bytes(b"of an earlier build")
    monkeypatch.setenv("CC", program(tmp_path / "mycc", "internal compiler error: it rained"))
    reason = build.try_to_build(tmp_path)
    assert reason is not None
    assert "mycc could not build kernels-" in reason
    assert "it rained" in reason
    assert build.failure_path(tmp_path).read_text().strip() == reason
    assert not old.exists()


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is not None, reason="ziglang is installed")
def test_without_a_compiler_the_stored_reason_names_what_to_install(no_compiler_installed: Path, tmp_path: Path) -> None:
    assert build.needs_compiler()
    assert "there was no C compiler" in str(build.try_to_build(tmp_path))
    assert "there was no C compiler" in build.failure_path(tmp_path).read_text()


def test_the_error_for_a_missing_compiler_names_the_compiler(
    no_compiler_installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-cc")
    assert "no compiler no-such-cc" in str(build.try_to_build(tmp_path))


def test_the_compiler_setting_none_builds_nothing_and_requires_no_compiler(
    no_compiler_installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABLESSM_COMPILER", "none")
    assert not build.needs_compiler()
    assert "STABLESSM_COMPILER" in str(build.try_to_build(tmp_path))
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [build.failure_path(tmp_path).name]


def test_different_compiler_flags_change_the_hash_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.source_hash()
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    assert build.source_hash() != before


@pytest.mark.slow
def test_the_available_compiler_builds_a_library_that_contains_the_hash_of_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if build.compiler() is None:
        pytest.skip("this machine has no C compiler")
    monkeypatch.setattr(build, "OPTIMISED", dict.fromkeys(build.OPTIMISED, ("-O0",)))  # optimising takes most of the time
    target = next(reversed(build.TARGETS[build.machine()]))
    [made] = build.build(tmp_path, targets=[target])
    assert made == build.library_path(target, tmp_path)
    assert build.source_hash().encode() in made.read_bytes()
    assert os.listdir(tmp_path) == [made.name]


@pytest.mark.slow
@pytest.mark.parametrize("target", build.TARGETS.get(build.machine(), ()))
def test_gcc_keeps_the_vectors_of_the_blocks_in_registers(target: str) -> None:
    """A vector that is wider than a register lives in memory, which makes the kernels several times slower."""
    command = build.compiler()
    if command is None or build.compiler_family(command, dict(os.environ)) != "gcc":
        pytest.skip("only GCC tells which vectors it splits")
    flags = [*build.FLAGS, build.TARGETS[build.machine()][target][0], '-DSTABLESSM_SOURCE=""', "-Wvector-operation-performance"]
    arguments = [*command, *flags, "-S", "-o", os.devnull, str(build.HERE / "kernels.c")]
    warnings = subprocess.run(arguments, capture_output=True, text=True, check=True).stderr
    split = set(re.findall(r"([a-z_]+\.[ch]):\d+:\d+: warning: vector", warnings))
    # in the scan, conversions of one or two columns are split; in the telemetry, the conversion of two numbers with SSE
    assert split <= {"vectors.h", "scan.h", "row.h"}
