"""CIFAR-10 from its binary files, in grey and in colour: the full set if it exists, otherwise the sample."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stablessm_core.spec.data import cifar10_records as records
from stablessm_core.spec.data.cifar10_records import FOLDERS, FULL, SAMPLE
from stablessm_core.spec.data.files import DataError
from stablessm_core.spec.data_sets import available_data
from stablessm_core.spec.tasks.cifar10 import Cifar10
from stablessm_core.tasks.cifar10 import grey
from tests.core.tasks.made import made

RNG = np.random.default_rng(0)


def record_bytes(count: int) -> bytes:
    content = RNG.integers(0, 256, (count, 3073), dtype=np.uint8)
    content[:, 0] = np.arange(count) % 10
    return content.tobytes()


def write_sample(root: Path, pack: Callable[[bytes], bytes] = bytes, ending: str = "") -> None:
    (root / "cifar10-sample").mkdir(parents=True)
    for (name,), count in zip(SAMPLE.values(), (12, 5), strict=True):
        (root / (name + ending)).write_bytes(pack(record_bytes(count)))


def write_full(root: Path, folder: str) -> None:
    (root / folder).mkdir(parents=True)
    for names in FULL.values():
        for name in names:
            (root / folder / name).write_bytes(record_bytes(15))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduces the full set to 15 images per file."""
    monkeypatch.setattr(records, "IMAGES_PER_FILE", 15)


def problem(root: Path) -> str:
    return Cifar10(name="cifar10").data_problem(root) or ""


@pytest.mark.parametrize(("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_the_colour_planes_of_a_file_become_the_three_channels_of_each_pixel(
    tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]
) -> None:
    write_sample(tmp_path, pack, ending)
    images, labels = records.load_cifar10(tmp_path, "test")
    content = np.frombuffer(unpacked(tmp_path, ending), dtype=np.uint8).reshape(5, 3073)
    assert labels.tolist() == [0, 1, 2, 3, 4]
    for channel in range(3):
        np.testing.assert_array_equal(images[:, :, channel], content[:, 1 + 1024 * channel : 1 + 1024 * (channel + 1)])


def unpacked(root: Path, ending: str) -> bytes:
    unpack = {"": bytes, ".gz": gzip.decompress, ".xz": lzma.decompress}[ending]
    return unpack((root / (SAMPLE["test"][0] + ending)).read_bytes())


def test_grey_conversion_matches_pillow() -> None:
    pixels = RNG.integers(0, 256, (3, 1024, 3), dtype=np.uint8)
    for image, found in zip(pixels, grey(pixels), strict=True):
        expected = np.asarray(Image.fromarray(image.reshape(32, 32, 3)).convert("L"))
        np.testing.assert_array_equal(found.reshape(32, 32), expected)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_full_data_set_is_preferred_to_the_sample_and_the_facts_name_the_set(tmp_path: Path, folder: str) -> None:
    write_sample(tmp_path)
    assert made("cifar10", tmp_path).facts == {
        "train_images": 12, "evaluation_images": 5, "data": "sample (not comparable to published results)",
    }  # fmt: skip
    write_full(tmp_path, folder)
    assert made("cifar10", tmp_path).facts == {"train_images": 75, "evaluation_images": 15, "data": "full set"}
    assert problem(tmp_path) == ""


@pytest.mark.usefixtures("small")
def test_an_incomplete_full_data_set_is_an_error_even_if_the_sample_exists(tmp_path: Path) -> None:
    write_sample(tmp_path)
    write_full(tmp_path, "cifar10")
    path = tmp_path / "cifar10" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-3073])
    assert f"{path}: is truncated" in problem(tmp_path)
    path.unlink()
    assert f"{path}(.gz, .xz): no such file" in problem(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "truncated"),
        (bytes(3072), "truncated"),
        (bytes([10]) + bytes(3072), "label 10"),
        (bytes(3073 * 10_001), "more than"),
    ],
)
def test_the_error_for_a_damaged_file_names_the_file_and_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    write_sample(tmp_path)
    path = tmp_path / SAMPLE["train"][0]
    path.write_bytes(content)
    assert str(path) in problem(tmp_path)
    assert reason in problem(tmp_path)


def test_the_error_for_missing_files_lists_the_required_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file; cifar10 needs the six files of the binary version in cifar10/"):
        made("cifar10", tmp_path)
    write_sample(tmp_path)
    assert available_data(tmp_path)["cifar10"] == "ok"
    assert set(available_data(tmp_path)) == {"mnist", "digits", "cifar10"}  # the files make no other task available


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.slow
def test_cifar10_images_are_normalised_as_published(data_root: Path, colour: bool) -> None:
    task = made("cifar10", data_root, colour=colour)
    count = int(task.facts["train_images"])
    x, y = task.batch(1, min(count, 4000), 0, "cpu")
    assert x.shape[1:] == (1024, 3 if colour else 1)
    assert task.output_size == 10
    for channel in x.unbind(-1):
        assert channel.mean().item() == pytest.approx(0, abs=0.05)
        assert channel.std().item() == pytest.approx(1, abs=0.05)
    assert y.bincount().float().std() < 30
    _, labels = next(iter(task.evaluation_batches(10, "cpu")))
    assert labels.tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]  # cat, ship, ship, aeroplane, frog, frog, car, frog, cat, car
