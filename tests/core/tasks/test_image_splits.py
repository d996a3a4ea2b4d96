"""MNIST and CIFAR-10: pooled pixels, subsets of the training images, and splits with validation and test images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stablessm_core.spec.data.mnist_idx import load_mnist
from stablessm_core.spec.errors import ConfigError
from stablessm_core.tasks.base import Task
from stablessm_core.tasks.splits import divide
from tests.core.tasks.made import made


def numbered(first: int, count: int) -> tuple[Any, Any]:
    """Images whose single pixel is their number."""
    images = np.arange(first, first + count, dtype=np.int32)[:, None]
    return images, (images[:, 0] % 10).astype(np.uint8)


def test_the_pooled_split_is_the_authors_random_split_of_all_images() -> None:
    train, validation, test = divide(numbered(0, 60_000), numbered(60_000, 10_000), "pooled", full=70_000)
    assert test is not None
    generator = torch.Generator().manual_seed(42)
    theirs = torch.utils.data.random_split(range(70_000), (55_000, 5_000, 10_000), generator=generator)  # type: ignore[arg-type]
    for ours, part in zip((train, validation, test), theirs, strict=True):
        assert ours[0][:, 0].tolist() == list(part)
        assert (ours[1] == ours[0][:, 0] % 10).all()


def test_the_validation_split_leaves_the_standard_test_images_alone() -> None:
    standard = numbered(60_000, 10_000)
    train, validation, test = divide(numbered(0, 60_000), standard, "validation", full=70_000)
    assert test is standard
    assert (len(train[1]), len(validation[1])) == (55_000, 5_000)
    assert sorted(np.concatenate([train[0], validation[0]])[:, 0].tolist()) == list(range(60_000))


def test_a_smaller_set_is_divided_in_the_same_ratios() -> None:
    for split, sizes in (("pooled", (3_751, 416, 833)), ("validation", (3_600, 400, 1_000))):
        parts = divide(numbered(0, 4_000), numbered(4_000, 1_000), split, full=60_000)  # type: ignore[arg-type]
        assert tuple(len(part[1]) for part in parts if part is not None) == sizes
        assert len({int(i) for part in parts if part is not None for i in part[0][:, 0]}) == 5_000


def everything(batches: Any) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return x, y


@pytest.fixture(scope="module")
def pooled(data_root: Path) -> Task:
    return made("mnist", data_root, pool=2, split="pooled")


@pytest.mark.slow
def test_pooled_mnist_has_the_sizes_of_the_authors_and_196_steps(pooled: Task) -> None:
    assert pooled.facts == {"train_images": 55_000, "evaluation_images": 5_000, "test_images": 10_000, "split": "pooled"}
    assert pooled.train_examples == 55_000
    tested = pooled.test_batches(1000, "cpu")
    assert tested is not None
    evaluated, test = everything(pooled.evaluation_batches(1000, "cpu")), everything(tested)
    assert (evaluated[0].shape, test[0].shape) == ((5_000, 196, 1), (10_000, 196, 1))
    assert pooled.batch(1, 7, 0, "cpu")[0].shape == (7, 196, 1)
    assert pooled.length == 196


@pytest.mark.slow
def test_a_pooled_pixel_is_the_mean_of_the_normalised_pixels(data_root: Path) -> None:
    images, labels = load_mnist(data_root, "test")
    x, y = next(made("mnist", data_root, pool=2).evaluation_batches(50, "cpu"))
    pixels = (images[:50].reshape(50, 28, 28) / 255 - 0.1307) / 0.3081
    means = np.stack([[[one[r : r + 2, c : c + 2].mean() for c in range(0, 28, 2)] for r in range(0, 28, 2)] for one in pixels])
    np.testing.assert_allclose(x[..., 0].numpy(), means.reshape(50, 196), rtol=1e-5, atol=1e-6)
    assert y.tolist() == labels[:50].tolist()


@pytest.mark.slow
def test_a_subset_is_drawn_by_the_seed_and_visited_once_per_epoch(data_root: Path) -> None:
    task = made("mnist", data_root, pool=2, subset=60)
    assert (task.facts["train_images"], task.train_examples) == (60, 60)

    def epoch(number: int, seed: int) -> set[bytes]:
        x = torch.cat([task.batch(step, 20, seed, "cpu")[0] for step in range(1 + 3 * number, 4 + 3 * number)])
        return {image.numpy().tobytes() for image in x}

    assert len(epoch(0, 1)) == 60
    assert epoch(0, 1) == epoch(1, 1) == epoch(7, 1)
    assert len(epoch(0, 1) & epoch(0, 2)) < 10
    assert not torch.equal(task.batch(1, 20, 1, "cpu")[0], task.batch(4, 20, 1, "cpu")[0]), "each epoch has a new order"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"name": "mnist", "subset": 60_001}, "task.subset: 60001 is not allowed (allowed: <= 60000)"),
        ({"name": "mnist", "subset": 0}, "task.subset: 0 is not allowed (allowed: >= 1)"),
        ({"name": "mnist", "subset": 55_001, "split": "pooled"}, "task.subset: is 55001; allowed: at most 55000"),
        ({"name": "mnist", "pool": 3}, "task.pool: 3 is unknown (allowed: 1 or 2)"),
        ({"name": "mnist", "split": "random"}, "task.split: 'random' is unknown (allowed: standard, validation, pooled)"),
        ({"name": "cifar10", "subset": 45_001, "split": "validation"}, "task.subset: is 45001; allowed: at most 45000"),
    ],
)
def test_impossible_splits_and_subsets_are_refused(task: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        made(**task)
    assert message in str(refused.value)


@pytest.mark.slow
def test_a_subset_larger_than_the_sample_is_refused_when_the_data_is_loaded(data_root: Path) -> None:
    if "full" in str(made("cifar10", data_root).facts["data"]):
        pytest.skip("the full CIFAR-10 is installed")
    with pytest.raises(ValueError, match=r"task.subset is 4,001; the training set has only 4,000 images"):
        made("cifar10", data_root, subset=4_001)
    facts = made("cifar10", data_root, subset=100, split="pooled").facts
    assert facts == {
        "train_images": 100, "evaluation_images": 416, "test_images": 833, "split": "pooled",
        "data": "sample (not comparable to published results)",
    }  # fmt: skip
