"""The kernels are built by the compiler that is named or found; without one, or with a broken one, the reason is kept."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from stablessm_core.compiled import build

pytestmark = pytest.mark.skipif(build.machine() not in build.TARGETS, reason="no kernels for this family of processors")


@pytest.fixture
def nothing_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with one empty folder, which is returned; no variable names a compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CC", "STABLESSM_COMPILER"):
        monkeypatch.delenv(name, raising=False)
    return folder


def program(path: Path, says: str) -> str:
    """A compiler that compiles nothing."""
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 1\n")
    path.chmod(0o755)
    return str(path)


def test_a_compiler_that_is_named_goes_before_all_others(nothing_found: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "ccache 'my gcc' -m64")
    assert build.compiler() == ["ccache", "my gcc", "-m64"]
    monkeypatch.setenv("STABLESSM_COMPILER", "clang-19")
    assert build.compiler() == ["clang-19"]


def test_a_compiler_that_cannot_compile_is_not_found(nothing_found: Path) -> None:
    program(nothing_found / "cc", "stdlib.h: No such file or directory")
    assert build.compiler() is None or "ziglang" in build.compiler()


def test_what_a_broken_compiler_said_is_kept_and_nothing_older_stays(
    nothing_found: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = build.library(next(iter(build.TARGETS[build.machine()])), tmp_path)
    old.write_bytes(b"of an earlier build")
    monkeypatch.setenv("CC", program(tmp_path / "mycc", "internal compiler error: it rained"))
    reason = build.try_to_build(tmp_path)
    assert reason is not None
    assert "mycc could not build kernels-" in reason
    assert "it rained" in reason
    assert build.reason_file(tmp_path).read_text().strip() == reason
    assert not old.exists()


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is not None, reason="ziglang is installed")
def test_without_a_compiler_the_reason_says_what_to_install(nothing_found: Path, tmp_path: Path) -> None:
    assert build.needs_compiler()
    assert "there was no C compiler" in str(build.try_to_build(tmp_path))
    assert "there was no C compiler" in build.reason_file(tmp_path).read_text()


def test_a_compiler_that_is_not_there_is_named(nothing_found: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-cc")
    assert "no compiler no-such-cc" in str(build.try_to_build(tmp_path))


def test_none_builds_nothing_and_asks_for_no_compiler(
    nothing_found: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABLESSM_COMPILER", "none")
    assert not build.needs_compiler()
    assert "STABLESSM_COMPILER" in str(build.try_to_build(tmp_path))
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [build.reason_file(tmp_path).name]


def test_other_flags_make_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.source_hash()
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    assert build.source_hash() != before


@pytest.mark.slow
def test_the_compiler_at_hand_builds_a_library_that_is_marked_with_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if build.compiler() is None:
        pytest.skip("no C compiler here")
    monkeypatch.setattr(build, "OPTIMISED", dict.fromkeys(build.OPTIMISED, ("-O0",)))  # optimising takes most of the time
    target = next(reversed(build.TARGETS[build.machine()]))
    [made] = build.build(tmp_path, targets=[target])
    assert made == build.library(target, tmp_path)
    assert build.source_hash().encode() in made.read_bytes()
    assert os.listdir(tmp_path) == [made.name]
