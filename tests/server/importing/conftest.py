"""The files that the tools themselves wrote (samples/write.py), unpacked."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture(scope="session")
def _unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    for packed in SAMPLES.rglob("*.gz"):
        path = folder / packed.relative_to(SAMPLES).with_suffix("")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.decompress(packed.read_bytes()))
    return folder


@pytest.fixture
def samples(_unpacked: Path, tmp_path: Path) -> Path:
    """A folder with one folder for each tool, which the test may change."""
    folder = tmp_path / "samples"
    for path in _unpacked.rglob("*"):
        if path.is_file():
            copy = folder / path.relative_to(_unpacked)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return folder
