"""The files that the tools themselves wrote (samples/write.py), unpacked."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.database.connection import Database
from tests.server.http_service import BEARER, running

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


@pytest.fixture
def server(sqlite: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    """A running server, which the environment names."""
    with running(sqlite.url, tmp_path) as (address, _), httpx.Client(base_url=address, headers=BEARER, timeout=60) as client:
        yield client
