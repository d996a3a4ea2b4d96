"""Checkpoints in a store: a shared folder, and a bucket on a real S3 server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.checkpoint_store import CheckpointStore, NotStored, StoreError
from server.settings import Settings
from tests.s3 import BUCKET, s3_server

pytestmark = pytest.mark.slow
CONTENT = bytes(range(256)) * 5000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NAME = "runs/7/checkpoints/attempt-1/step-0000000020.safetensors"


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    if request.param == "file":
        yield CheckpointStore(f"file://{tmp_path / 'shared disk'}")
        return
    with s3_server():
        yield CheckpointStore(f"s3://{BUCKET}/some/prefix")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint"
    path.write_bytes(CONTENT)
    return path


def test_a_stored_checkpoint_is_fetched_unchanged(store: CheckpointStore, file: Path, tmp_path: Path) -> None:
    store.put(file, NAME)
    store.put(file, NAME)  # a second `put` replaces the file
    assert store.stored(7) == [NAME]
    assert store.stored(77) == []
    assert store.sizes() == {NAME: len(CONTENT)}
    target = tmp_path / "other machine" / "checkpoint"
    store.fetch(NAME, target, SHA256)
    assert target.read_bytes() == CONTENT
    with store.open(NAME) as opened:
        assert opened.read() == CONTENT


def test_a_missing_or_changed_checkpoint_is_never_written_to_disk(store: CheckpointStore, file: Path, tmp_path: Path) -> None:
    target = tmp_path / "other" / "checkpoint"
    with pytest.raises(NotStored, match="not in the checkpoint store"):
        store.fetch(NAME, target, SHA256)
    file.write_bytes(CONTENT[:-1])
    store.put(file, NAME)
    with pytest.raises(StoreError, match=f"expected {SHA256}"):
        store.fetch(NAME, target, SHA256)
    assert list(target.parent.iterdir()) == []


def test_removing_a_run_removes_only_its_own_checkpoints(store: CheckpointStore, file: Path) -> None:
    other = NAME.replace("runs/7/", "runs/70/")
    store.put(file, NAME)
    store.put(file, other)
    store.remove_run(7)
    store.remove_run(7)
    assert (store.stored(7), store.stored(70)) == ([], [other])


@pytest.mark.parametrize("name", ["/etc/passwd", "runs/../../secret", "elsewhere/7/x", ".."])
def test_paths_outside_of_run_folders_are_refused(store: CheckpointStore, file: Path, name: str) -> None:
    with pytest.raises(StoreError, match="is not the path of a checkpoint"):
        store.put(file, name)


def test_an_unreachable_bucket_gives_a_store_error(file: Path, free_port: int) -> None:
    with s3_server() as port:
        store = CheckpointStore(f"s3://{BUCKET}")
        store.put(file, NAME)
    assert port
    with pytest.raises(StoreError, match="cannot write"):
        store.put(file, NAME)


@pytest.mark.parametrize("url", ["", "s3:/bucket", "s3://", "ftp://host/x", "file://relative", "/a/path"])
def test_an_invalid_store_url_is_refused_with_the_allowed_forms(url: str) -> None:
    with pytest.raises(ValueError, match="allowed: s3://bucket/prefix and file:///folder"):
        Settings.from_environment(checkpoint_store=url)
