"""The tasks: correct targets, batches that depend only on seed and step, and disjoint splits."""

from pathlib import Path

import numpy as np
import pytest
import torch

from stablessm_core.spec.config import parse_config
from stablessm_core.spec.data.files import DataError
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.tasks import TASKS
from stablessm_core.tasks.base import IGNORED, Task, mixed_seed
from stablessm_core.tasks.loading import get_task

pytestmark = pytest.mark.slow

OF_FILES = {"mnist", "cifar10"}  # tasks that read files from the real data directory


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    (root / "story.txt").write_text("Der Käfer kroch über den Weg. " * 120 + "Ende – ∎\n" * 30, encoding="utf-8")
    return root


def make(name: str, root: Path = Path("nowhere"), **options: object) -> Task:
    return get_task(parse_config({"task": {"name": name} | options}).task, root)


@pytest.fixture(params=sorted(TASKS))
def any_task(request: pytest.FixtureRequest, texts: Path) -> Task:
    if request.param in OF_FILES:
        return make(request.param, request.getfixturevalue("data_root"))
    return make(request.param, texts, **({"file": "story.txt", "length": 30} if request.param == "char_lm" else {}))


def test_batches_are_pure_functions_of_seed_and_step(any_task: Task) -> None:
    def batch(step: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        return any_task.batch(step, 16, seed, "cpu")

    first = [batch(step, 3) for step in (1, 2, 40_000)]
    torch.manual_seed(99)
    again = [batch(step, 3) for step in (40_000, 2, 1)][::-1]
    for (x, y), (x_again, y_again) in zip(first, again, strict=True):
        assert torch.equal(x, x_again)
        assert torch.equal(y, y_again)
    assert not torch.equal(first[0][0], first[1][0])
    assert not torch.equal(first[0][0], batch(1, 4)[0])


def test_batches_have_the_declared_shapes_and_give_a_model_a_loss(any_task: Task) -> None:
    trained, evaluated = any_task.batch(5, 7, 0, "cpu"), next(iter(any_task.evaluation_batches(7, "cpu")))
    for (x, y), length in ((trained, any_task.length), (evaluated, any_task.evaluation_length)):
        assert x.shape[:2] == (7, length)
        assert x.is_contiguous()
        assert y.is_contiguous()
        if any_task.vocabulary is None:
            assert x.shape[2] == any_task.input_size
            assert x.dtype == torch.float32
        else:
            assert x.dtype == torch.int64
            assert 0 <= int(x.min()) <= int(x.max()) < any_task.vocabulary
        steps = () if any_task.kind == "classification" else (length,)
        output = torch.randn(7, *steps, any_task.output_size, requires_grad=True)
        loss, accuracy = any_task.loss(output, y), any_task.accuracy(output, y)
        loss.backward()
        assert loss.shape == ()
        assert loss.isfinite()
        assert (accuracy is None) is (any_task.kind == "regression")
    assert any_task.tokens_per_batch(7) == 7 * any_task.length


def test_evaluation_data_does_not_depend_on_the_batch_size(any_task: Task) -> None:
    whole = [torch.cat(parts) for parts in zip(*any_task.evaluation_batches(10_000, "cpu"), strict=True)]
    cut = [torch.cat(parts) for parts in zip(*any_task.evaluation_batches(333, "cpu"), strict=True)]
    for a, b in zip(whole, cut, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kernel", ["paper", "authors"])
@pytest.mark.parametrize("length", [1, 2, 37, 100])
def test_polynomial_memory_targets_are_the_causal_convolution_with_rho(kernel: str, length: int) -> None:
    task = make("polynomial_memory", kernel=kernel, length=length)
    x, y = task.batch(1, 3, 0, "cpu")
    t = np.arange(length)
    rho = 1 / (t + 1) ** 1.1 if kernel == "paper" else 1 / (1 + 0.1 * t) ** 1.1
    for sequence, target in zip(x.double().numpy()[..., 0], y.numpy()[..., 0], strict=True):
        np.testing.assert_allclose(target, np.convolve(sequence, rho)[:length], rtol=1e-5, atol=3e-6)


def test_polynomial_memory_inputs_are_standard_normal_and_new_at_each_step() -> None:
    task = make("polynomial_memory")
    x = torch.cat([task.batch(step, 128, 0, "cpu")[0] for step in range(1, 21)])
    assert x.mean().item() == pytest.approx(0, abs=0.01)
    assert x.std().item() == pytest.approx(1, abs=0.01)
    assert len(x.flatten(1).unique(dim=0)) == len(x)
    evaluation = torch.cat([x for x, _ in task.evaluation_batches(512, "cpu")])
    assert len(evaluation) == 2048
    assert len(torch.cat([x, evaluation]).flatten(1).unique(dim=0)) == len(x) + 2048


def test_an_epoch_visits_every_image_once_in_a_new_order() -> None:
    task = make("digits")
    assert task.facts == {"train_images": 1437, "evaluation_images": 360}
    epochs = []
    for epoch in range(2):
        seen = [task.batch(step, 479, 0, "cpu")[0] for step in range(1 + 3 * epoch, 4 + 3 * epoch)]
        epochs.append(torch.cat(seen).flatten(1))
    assert not torch.equal(*epochs)
    for epoch in epochs:
        torch.testing.assert_close(epoch.unique(dim=0), epochs[0].unique(dim=0))
    wide, _ = task.batch(1, 1437 * 3 + 5, 0, "cpu")
    torch.testing.assert_close(wide[: 2 * 1437].flatten(1), torch.cat(epochs))


def test_the_digits_task_uses_the_images_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    source, task = load_digits(), make("digits")
    parts = [task.batch(1, 1437, 0, "cpu"), *task.evaluation_batches(360, "cpu")]
    x, y = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    assert parts[0][0].mean().item() == pytest.approx(0, abs=1e-5)
    assert parts[0][0].std().item() == pytest.approx(1, abs=1e-3)
    pixels = (x.flatten(1) - x.min()) / (x.max() - x.min()) * 16
    rows, expected = np.column_stack([pixels.round(), y]), np.column_stack([source.data, source.target])
    np.testing.assert_array_equal(rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)])


def test_permuted_pixels_follow_one_fixed_order_in_both_splits() -> None:
    plain, permuted, again = make("digits"), make("digits", permuted=True), make("digits", permuted=True)
    train = [task.batch(1, 1437, 0, "cpu") for task in (plain, permuted, again)]
    evaluation = [next(iter(task.evaluation_batches(360, "cpu"))) for task in (plain, permuted, again)]
    order = torch.from_numpy(np.random.default_rng(0).permutation(64))
    for one in (train, evaluation):
        assert torch.equal(one[1][0], one[2][0])
        assert torch.equal(one[0][0][:, order], one[1][0])
        assert torch.equal(one[0][1], one[1][1])
    assert not torch.equal(train[0][0], train[1][0])


def test_mnist_is_the_normalised_standard_split(data_root: Path) -> None:
    task = make("mnist", data_root)
    x, y = task.batch(1, 60_000, 0, "cpu")
    assert x.shape == (60_000, 784, 1)
    assert x.mean().item() == pytest.approx(0, abs=1e-3)
    assert x.std().item() == pytest.approx(1, abs=1e-3)
    assert y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    first, labels = next(iter(task.evaluation_batches(10, "cpu")))
    assert labels.tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert first.min().item() == pytest.approx(-0.1307 / 0.3081, abs=1e-5)


def test_associative_recall_sequences_contain_their_answer() -> None:
    task = make("associative_recall", length=20, vocabulary_size=11)
    assert task.facts == {"pairs": 10, "keys": 4, "values": 5, "evaluation_sequences": 500}
    x, y = task.batch(1, 256, 0, "cpu")
    assert x.shape == y.shape == (256, 22)
    assert torch.equal(x[:, 1:], y[:, :-1])
    for tokens, answer in zip(x.tolist(), y[:, -1].tolist(), strict=True):
        keys, values, prefix, query = tokens[:20:2], tokens[1:20:2], tokens[20], tokens[21]
        assert set(keys) <= set(range(4))
        assert set(values) <= set(range(4, 9))
        assert prefix == 9
        recalled = {value for key, value in zip(keys, values, strict=True) if key == query}
        assert recalled == {answer}
    assert len({tuple(row) for row in x.tolist()}) == 256


def test_associative_recall_is_evaluated_only_on_the_answer() -> None:
    task = make("associative_recall")
    for x, y in task.evaluation_batches(100, "cpu"):
        assert (y[:, :-1] == IGNORED).all()
        output = torch.zeros(len(x), task.length, task.output_size)
        output[torch.arange(len(x)), -1, y[:, -1]] = 5.0
        assert task.accuracy(output, y) == 1.0
        assert task.loss(output, y) < 0.2
        output[::2, -1] = 0.0
        output[::2, -1, 0] = 9.0  # the largest output is at a key, which is never an answer
        assert task.accuracy(output, y).item() == pytest.approx(0.5)


def test_char_lm_targets_are_shifted_by_one_and_evaluation_uses_separate_text(texts: Path) -> None:
    task = make("char_lm", texts, file="story.txt", length=30)
    text = (texts / "story.txt").read_text(encoding="utf-8")
    characters = "".join(sorted(set(text)))
    assert task.vocabulary == len(characters)

    def read(ids: torch.Tensor) -> str:
        return "".join(characters[i] for i in ids.tolist())

    split = len(text) * 9 // 10
    x, y = task.batch(1, 500, 0, "cpu")
    assert torch.equal(x[:, 1:], y[:, :-1])
    for window in torch.cat([x, y[:, -1:]], 1):
        assert read(window) in text[:split]
    evaluation = [(read(a), read(b)) for xs, ys in task.evaluation_batches(4, "cpu") for a, b in zip(xs, ys, strict=True)]
    assert "".join(a for a, _ in evaluation) == text[split : split + 30 * len(evaluation)]
    assert "".join(b for _, b in evaluation) == text[split + 1 : split + 1 + 30 * len(evaluation)]
    assert len(text) - split - 1 - 30 * len(evaluation) < 30


def test_the_first_and_last_training_window_can_be_drawn(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("".join(chr(0x100 + i) for i in range(60)), encoding="utf-8")
    task = make("char_lm", tmp_path, file="t.txt", length=4)
    x, _ = task.batch(1, 2000, 0, "cpu")
    assert task.facts["train_characters"] == 54
    assert sorted(set(x[:, 0].tolist())) == list(range(54 - 4))


def test_tiny_shakespeare_has_its_65_characters(data_root: Path) -> None:
    task = make("char_lm", data_root)
    assert task.vocabulary == 65
    assert task.facts["train_characters"] == 1_115_394 * 9 // 10


def test_the_error_for_missing_data_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mnist/train-images-idx3-ubyte\(.gz\): no such file"):
        make("mnist", tmp_path)
    with pytest.raises(DataError, match=r"none\.txt: no such file"):
        make("char_lm", tmp_path, file="none.txt")


def test_mixed_seeds_differ_in_their_low_bits() -> None:
    low = {mixed_seed(seed, step) & 0xFFFFFFFF for seed in range(30) for step in range(1000)}
    assert len(low) > 29_990
    assert mixed_seed(1, 2) != mixed_seed(2, 1)
    assert all(0 <= mixed_seed(seed) < 2**63 for seed in range(100))


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_can_be_created_and_has_the_sequence_length_of_its_configuration(name: str, data_root: Path) -> None:
    parsed = parse_config({"task": {"name": name}}).task
    task = get_task(parsed, data_root)
    assert task.length == parsed.sequence_length()
    assert task.facts


@pytest.mark.parametrize("fixed", [None, 20_000])
def test_associative_recall_queries_distinct_keys_uniformly_however_often_they_occur(fixed: int | None) -> None:
    """In the published generator a queried key occurs 2.69 times among 10 pairs of 4 keys; drawn by pair, 3.24 times."""
    x, _ = make("associative_recall", length=20, vocabulary_size=10, train_sequences=fixed).batch(1, 20_000, 0, "cpu")
    keys, query = x[:, :20:2], x[:, 21:]
    times = (keys == query).sum(1)
    assert times.min() >= 1
    assert times.float().mean().item() == pytest.approx(2.69, abs=0.05)


def test_associative_recall_can_draw_from_a_fixed_training_set() -> None:
    task = make("associative_recall", train_sequences=40)
    seen = [task.batch(step, 64, 3, "cpu") for step in range(1, 9)]
    assert len({tuple(row) for x, _ in seen for row in x.tolist()}) == 40
    again = make("associative_recall", train_sequences=40).batch(5, 64, 3, "cpu")
    assert all(torch.equal(a, b) for a, b in zip(again, seen[4], strict=True))
    other = {tuple(row) for row in task.batch(1, 64, 4, "cpu")[0].tolist()}
    assert not other & {tuple(row) for x, _ in seen for row in x.tolist()}


def test_a_fixed_training_set_that_exceeds_the_token_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="allowed: 536,870,912 tokens in total"):
        parse_config({"task": {"name": "associative_recall", "length": 131_072, "train_sequences": 5000}})
