"""Intact, missing, damaged and hostile data files. Every error names the path and the reason."""

import gzip
import lzma
import os
import struct
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from stablessm_core.spec.config import parse_config
from stablessm_core.spec.data import files, text
from stablessm_core.spec.data import mnist_idx as idx
from stablessm_core.spec.data.files import DataError, chunks, locate
from stablessm_core.spec.data_sets import available_data
from stablessm_core.spec.tasks import TASKS
from stablessm_core.spec.tasks.cifar10 import Cifar10
from stablessm_core.spec.tasks.mnist import Mnist
from stablessm_core.tasks import cifar10, mnist
from tests.core.tasks.made import made

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)


def idx_bytes(magic: int, *shape: int, content: bytes | None = None) -> bytes:
    body = RNG.integers(0, 10, int(np.prod(shape)), dtype=np.uint8).tobytes() if content is None else content
    return struct.pack(f">{1 + len(shape)}I", magic, *shape) + body


def write_mnist(root: Path, count: int = 20, suffix: str = "") -> Path:
    folder = root / "mnist"
    folder.mkdir(parents=True, exist_ok=True)
    for images, labels in idx.SPLITS.values():
        for name, data in ((images, idx_bytes(2051, count, 28, 28)), (labels, idx_bytes(2049, count))):
            (folder / (name + suffix)).write_bytes(gzip.compress(data) if suffix else data)
    return folder


def mnist_problem(root: Path) -> str | None:
    return Mnist(name="mnist").data_problem(root)


def char_problem(root: Path, file: str, length: int = 4) -> str | None:
    return parse_config({"task": {"name": "char_lm", "file": file, "length": length}}).task.data_problem(root)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_read_from_plain_and_compressed_files(tmp_path: Path, suffix: str) -> None:
    write_mnist(tmp_path, 20, suffix)
    assert mnist_problem(tmp_path) is None
    images, labels = idx.load_mnist(tmp_path, "test")
    assert images.shape == (20, 784)
    assert labels.shape == (20,)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "truncated"),
        (b"\0\0\x08", "truncated"),
        (b"<html>not found</html> and so on", "magic number"),
        (idx_bytes(2049, 20), "magic number 2049, expected 2051"),
        (idx_bytes(2051, 20, 28, 28)[:-1], "the file holds only 15,679 bytes"),
        (idx_bytes(2051, 20, 28, 28) + b"x", "the file holds more"),
        (idx_bytes(2051, 20, 28, 27), "28 x 27 pixels"),
        (idx_bytes(2051, 19, 28, 28), "20 labels for 19 images"),
        (struct.pack(">4I", 2051, 2**32 - 1, 2**32 - 1, 2**32 - 1), "more than the"),
    ],
)
def test_the_error_for_a_damaged_image_file_names_the_file_and_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = write_mnist(tmp_path) / "train-images-idx3-ubyte"
    path.write_bytes(content)
    problem = mnist_problem(tmp_path)
    assert problem is not None
    assert "train-" in problem
    assert reason in problem
    with pytest.raises(DataError, match="train-"):
        idx.load_mnist(tmp_path, "train")


def test_labels_above_nine_and_empty_files_are_refused(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(2049, 20, content=bytes([3] * 19 + [10])))
    assert "label 10" in (mnist_problem(tmp_path) or "")
    write_mnist(tmp_path, 0)
    assert "no examples" in (mnist_problem(tmp_path) or "")


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_a_truncated_archive_is_refused(tmp_path: Path, cut: int) -> None:
    path = write_mnist(tmp_path, suffix=".gz") / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-cut])
    problem = mnist_problem(tmp_path)
    assert problem is not None
    assert str(path) in problem
    assert "truncated" in problem


def test_a_flipped_bit_in_an_archive_is_refused(tmp_path: Path) -> None:
    path = write_mnist(tmp_path, suffix=".gz") / "t10k-images-idx3-ubyte.gz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))
    assert str(path) in (mnist_problem(tmp_path) or "")


def test_a_header_that_announces_a_huge_shape_allocates_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    for shape in ((2**32 - 1, 28, 28), (300_000, 28, 28)):
        path.write_bytes(struct.pack(">4I", 2051, *shape) + b"\0" * 100)
        tracemalloc.start()
        with pytest.raises(DataError):
            idx.read_idx(path, magic=2051)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 << 20


def test_an_archive_larger_than_announced_is_not_fully_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(struct.pack(">2I", 2049, 10) + bytes(200 << 20), compresslevel=1))
    tracemalloc.start()
    with pytest.raises(DataError, match="holds more"):
        idx.read_idx(path, magic=2049)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
    with pytest.raises(DataError, match="more than 1,000 bytes"):
        list(chunks(path, limit=1000))


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_text_is_read_from_plain_and_compressed_files(tmp_path: Path, suffix: str, pack: object) -> None:
    content = "zwölf Boxkämpfer ∎ 𝄞\r\n" * 60_000
    path = tmp_path / f"t.txt{suffix}"
    path.write_bytes(pack(content.encode()))  # type: ignore[operator]
    loaded = text.load_text(path)
    assert loaded.vocabulary == "".join(sorted(set(content)))
    assert loaded.ids.dtype == np.uint8
    assert "".join(np.array(list(loaded.vocabulary))[loaded.ids]) == content
    assert char_problem(tmp_path, path.name) is None


def test_a_byte_order_mark_is_not_read_as_a_character(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"\xef\xbb\xbfabcabc")
    assert text.load_text(tmp_path / "t.txt").vocabulary == "abc"


@pytest.mark.parametrize(("count", "dtype"), [(200, np.uint8), (300, np.int16), (40_000, np.int32)])
def test_token_ids_use_the_smallest_integer_type_that_holds_the_vocabulary(tmp_path: Path, count: int, dtype: type) -> None:
    alphabet = "".join(chr(0x10000 + i) for i in range(count))
    (tmp_path / "t.txt").write_text(alphabet, encoding="utf-8")
    loaded = text.load_text(tmp_path / "t.txt")
    assert loaded.ids.dtype == dtype
    assert loaded.ids.tolist() == list(range(count))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("t.txt", b"", "is empty"),
        ("t.txt", b"\xff\xfe binary", "not UTF-8 text"),
        ("t.txt", "abc€".encode()[:-1], "not UTF-8 text"),
        ("t.txt", b"short", "has 5 characters; length 4 needs 50"),
        ("t.txt.gz", b"not packed at all", "damaged"),
        ("t.txt.xz", b"not packed at all", "damaged"),
        ("t.txt.gz", gzip.compress(b"abc" * 1000, mtime=0)[:-9], "truncated"),
        ("t.txt.xz", lzma.compress(b"abc" * 1000)[:-9], "truncated"),
        ("t.txt", "".join(chr(0x10000 + i) for i in range(70_000)).encode(), "distinct characters"),
    ],
)
def test_the_error_for_a_damaged_text_file_names_the_file_and_the_reason(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    problem = char_problem(tmp_path, name)
    assert problem is not None
    assert str(path) in problem
    assert reason in problem


def test_only_regular_files_inside_the_data_directory_are_read(tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "folder").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret " * 100)
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "inner.txt").write_text("public " * 100)
    (root / "alias.txt").symlink_to(root / "inner.txt")
    os.mkfifo(root / "pipe")
    assert "outside the data directory" in (char_problem(root, "link.txt") or "")
    assert "not a regular file" in (char_problem(root, "folder") or "")
    assert "not a regular file" in (char_problem(root, "pipe") or "")
    assert char_problem(root, "alias.txt") is None
    for outside in ("../secret.txt", str(tmp_path / "secret.txt")):
        with pytest.raises(DataError, match="outside"):
            locate(root, outside)


def test_a_replaced_file_is_read_again_and_an_unchanged_file_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, reads = tmp_path / "t.txt", []
    read = text.characters
    monkeypatch.setattr(text, "characters", lambda p: (reads.append(p), read(p))[1])
    path.write_bytes(b"\xff")
    assert char_problem(tmp_path, "t.txt") is not None
    assert char_problem(tmp_path, "t.txt") is not None
    assert len(reads) == 1
    path.write_text("good text " * 10)
    assert char_problem(tmp_path, "t.txt") is None
    assert char_problem(tmp_path, "t.txt", length=5) is None
    assert len(reads) == 2


def write_cifar10(root: Path, count: int) -> Path:
    folder = root / "cifar10-sample"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train-first4000.bin", "test-first1000.bin"):
        records = RNG.integers(0, 10, (count, 3073), dtype=np.uint8)
        (folder / name).write_bytes(records.tobytes())
    return folder


@pytest.mark.parametrize(("name", "write"), [("mnist", write_mnist), ("cifar10", write_cifar10)])
def test_runs_on_the_same_images_read_them_once_until_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, write: Callable[[Path, int], Path]
) -> None:
    reads: list[str] = []
    loader = mnist if name == "mnist" else cifar10
    load = getattr(loader, f"load_{name}")
    monkeypatch.setattr(loader, f"load_{name}", lambda root, split: (reads.append(split), load(root, split))[1])

    def images(**options: object) -> torch.Tensor:
        task = made(name, tmp_path, **options)
        return torch.cat([x for x, _ in task.evaluation_batches(100, "cpu")])

    folder = write(tmp_path, 40)
    first = images()
    assert torch.equal(images(), first)
    assert torch.equal(images(permuted=True).sort(1)[0], first.sort(1)[0])  # the order of the pixels is the run's own
    assert torch.equal(images(), first)
    assert reads == ["train", "test"]
    images(split="pooled")  # other images
    assert len(reads) == 4
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(DataError, match="no such file"):
        images(split="pooled")
    write(tmp_path, 40)
    assert not torch.equal(images(), first)


def test_the_images_of_the_last_run_can_be_forgotten(tmp_path: Path) -> None:
    read = [np.zeros(3)]
    kept = weakref.ref(files.read_unless_last(("zeros",), [], read.pop))
    assert kept() is not None
    files.forget_last()
    assert kept() is None


def test_a_worker_reports_every_task_and_text_it_can_train_on(tmp_path: Path) -> None:
    write_mnist(tmp_path, suffix=".gz")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "good.txt").write_text("text")
    (tmp_path / "bad.txt.gz").write_bytes(b"\x1f\x8b broken")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\xff")
    (tmp_path / ".hidden").write_text("text")
    found = available_data(tmp_path)
    assert found.pop("bad.txt.gz").startswith(str(tmp_path / "bad.txt.gz"))
    assert "no such file" in found.pop("cifar10")
    assert found == {"mnist": "ok", "digits": "ok", "a/good.txt": "ok"}


def test_the_report_names_the_missing_files_of_a_missing_data_directory(tmp_path: Path) -> None:
    found = available_data(tmp_path / "none")
    assert "no such file" in found.pop("mnist")
    assert "no such file" in found.pop("cifar10")
    assert found == {"digits": "ok"}


def test_generated_tasks_need_no_data_files(tmp_path: Path) -> None:
    sections = [parse_config({"task": {"name": name}}).task for name in TASKS]
    need_nothing = [section for section in sections if not section.data_needed()]
    assert len(need_nothing) > 3
    assert all(section.data_problem(tmp_path) is None for section in need_nothing)


def test_the_real_data_files_are_complete(data_root: Path) -> None:
    assert mnist_problem(data_root) is None
    assert Cifar10(name="cifar10").data_problem(data_root) is None
    assert char_problem(data_root, "tinyshakespeare/input.txt.xz", 256) is None
