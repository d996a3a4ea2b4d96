"""Products by oneDNN: the values match float64, `mm` is used where a guard requires it, and a process keeps its choice."""

from __future__ import annotations

import json
import math

import pytest
import torch

from stablessm_core.numerics import products

ONEDNN = products._why_not_onednn() is None
needs_onednn = pytest.mark.skipif(not ONEDNN, reason="this PyTorch has no usable oneDNN operator")
SHAPES = [(4, 10, 8), (97, 7, 5), (97, 2, 32), (1237, 33, 65), (512, 32, 128), (3136, 128, 64), (20001, 40, 64), (20001, 64, 40)]


@pytest.fixture(autouse=True)
def _restore_library(monkeypatch):
    monkeypatch.setattr(products, "_onednn", None)
    monkeypatch.setattr(products, "_facts", {})


@pytest.fixture(params=["mm", pytest.param("onednn", marks=needs_onednn)])
def library(request):
    assert products.use(request.param) == request.param
    return request.param


@pytest.fixture
def calls(monkeypatch):
    """Records every call of oneDNN's operator in the returned list."""
    made, operator = [], products._linear_pointwise
    monkeypatch.setattr(products, "_linear_pointwise", lambda *a: made.append(1) or operator(*a))
    return made


def matrices(rows, k, n, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rows + k + n)
    made = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((rows, k), (n, k), (rows, n), (rows, k))]
    return [m.to(dtype) for m in made]


def close(found, exact):
    assert found.shape == exact.shape
    assert (found.double() - exact).abs().max() <= 4e-6 * exact.abs().max()


@pytest.mark.parametrize(("rows", "k", "n"), SHAPES)
@pytest.mark.slow
def test_the_three_products_match_float64(library, rows, k, n):
    x, w, dy, dx = matrices(rows, k, n)
    kept = [m.clone() for m in (x, w, dy, dx)]
    X, W, DY, DX = (m.double() for m in (x, w, dy, dx))
    close(products.linear(x, w), X @ W.t())
    close(products.linear(x, w, add=dy), DY + X @ W.t())
    close(products.grad_input(dy, w), DY @ W)
    close(products.grad_input(dy, w, add=dx), DX + DY @ W)
    found = products.grad_weight(dy, x)
    close(found, DY.t() @ X)
    assert found.is_contiguous()
    assert all(torch.equal(a, b) for a, b in zip((x, w, dy, dx), kept, strict=True))


@pytest.mark.parametrize("shape", [(0, 4, 3), (3, 0, 2), (3, 4, 0)])
def test_an_empty_product_matches_torch_mm(library, shape):
    x, w, dy, _ = matrices(*shape)
    assert torch.equal(products.linear(x, w), x @ w.t())
    assert torch.equal(products.grad_input(dy, w), dy @ w)
    assert torch.equal(products.grad_weight(dy, x), dy.t() @ x)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_value_affects_only_its_row_or_column(library, value):
    x, w, dy, _ = matrices(3136, 64, 64)
    x[17, 5], w[3, 9] = value, value
    y = products.linear(x, w)
    assert torch.equal(y.isfinite(), (x @ w.t()).isfinite())
    assert torch.equal(y.isnan(), (x @ w.t()).isnan())
    assert not y[17].isfinite().any()
    assert not y[:, 3].isfinite().any()
    assert y[18, :3].isfinite().all()
    dw = products.grad_weight(dy, x)
    assert not dw[:, 5].isfinite().any()
    assert dw[:, 6:].isfinite().all()


@needs_onednn
def test_large_products_use_onednn_and_small_products_use_mm(calls):
    products.use("onednn")
    calls.clear()
    x, w, dy, _ = matrices(3136, 64, 64)
    for product in (lambda: products.linear(x, w), lambda: products.grad_input(dy, w), lambda: products.grad_weight(dy, x)):
        calls.clear()
        product()
        assert calls
    calls.clear()
    x, w, dy, _ = matrices(512, 32, 64)
    products.linear(x, w), products.grad_input(dy, w), products.grad_weight(dy, x)
    assert not calls


@needs_onednn
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda m: m.double(), id="float64"),
        pytest.param(lambda m: m.bfloat16(), id="bfloat16"),
        pytest.param(lambda m: m.clone().requires_grad_(), id="requires gradients"),
        pytest.param(
            lambda m: m.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2], id="neither row-major nor column-major"
        ),
        pytest.param(lambda m: m.to("meta"), id="another device"),
    ],
)
def test_any_input_other_than_plain_float32_matrices_uses_mm(calls, other):
    products.use("onednn")
    calls.clear()
    x, w, dy, _ = (other(m) for m in matrices(3136, 64, 64))
    for found, expected in (
        (products.linear(x, w), x @ w.t()),
        (products.grad_input(dy, w), dy @ w),
        (products.grad_weight(dy, x), dy.t() @ x),
    ):
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        assert found.is_meta or torch.equal(found, expected)
    assert not calls


def test_products_of_tensors_that_require_gradients_keep_their_gradients(library):
    x, w, _, _ = matrices(3136, 64, 64)
    w.requires_grad_()
    products.linear(x, w).sum().backward()
    close(w.grad, x.double().sum(0).expand(64, 64))


@needs_onednn
@pytest.mark.slow
def test_onednn_accepts_views_of_larger_matrices_and_transposes(calls):
    products.use("onednn")
    calls.clear()
    x, w, dy, _ = matrices(3136, 256, 64)
    left, gate = x[:, 3:67], w.t()[128:192].t()
    close(products.linear(left, gate), left.double() @ gate.double().t())
    close(products.grad_weight(dy, left), dy.double().t() @ left.double())
    assert len(calls) == 2


def test_the_library_is_chosen_once_and_the_choice_can_be_recorded(monkeypatch):
    first = products.choice_facts()
    assert first["library"] in products.LIBRARIES
    assert first["reason"]
    assert set(first.get("gflops", {})) <= set(products.LIBRARIES)
    assert json.loads(json.dumps(first)) == first
    monkeypatch.setattr(products, "_probe", lambda: pytest.fail("the libraries were probed again"))
    assert products.choice_facts() == first
    x, w, _, _ = matrices(3136, 64, 64)
    products.linear(x, w)
    assert products.choose() == first["library"]


def test_a_recorded_choice_is_used_without_a_new_probe(library, monkeypatch):
    monkeypatch.setattr(products, "_probe", lambda: pytest.fail("the libraries were probed"))
    assert products.choice_facts() == {"library": library, "reason": "asked for"}
    x, w, _, _ = matrices(3136, 128, 64)
    first = products.linear(x, w)
    products.use(library)
    assert torch.equal(products.linear(x, w), first)


def test_an_unknown_library_is_refused():
    with pytest.raises(ValueError, match="one of mm, onednn, got 'blis'"):
        products.use("blis")


def absent(*_):
    raise TypeError("_linear_pointwise() takes 7 positional arguments\nand more")


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        pytest.param(None, "no mkldnn._linear_pointwise", id="absent"),
        pytest.param(absent, "refuses: _linear_pointwise() takes 7 positional arguments", id="different signature"),
        pytest.param(
            lambda x, w, *_: (x.bfloat16() @ w.bfloat16().t()).float(), "differ from those in float64", id="lower precision"
        ),
        pytest.param(lambda x, w, *_: torch.nan_to_num(x) @ w.t(), "lose NaN or infinity", id="loses NaN"),
        pytest.param(lambda x, w, *_: (x.double() @ w.double().t()).float(), "times as fast, not 1.2", id="not faster"),
    ],
)
def test_an_operator_that_fails_its_probe_is_replaced_by_mm(monkeypatch, operator, reason):
    monkeypatch.setattr(products, "_linear_pointwise", operator)
    monkeypatch.setattr(products, "MARGIN", 1.2)
    facts = products.choice_facts()
    assert facts["library"] == "mm"
    assert reason in facts["reason"]
    x, w, _, _ = matrices(3136, 64, 64)
    assert torch.equal(products.linear(x, w), x @ w.t())


def test_a_recorded_but_unavailable_onednn_is_replaced_by_mm_with_a_reason(monkeypatch):
    monkeypatch.setattr(products, "_linear_pointwise", None)
    assert products.use("onednn") == "mm"
    assert "onednn was asked for, but this PyTorch has no" in products.choice_facts()["reason"]


def test_the_probe_does_not_use_the_global_random_number_generator():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    products.choose()
    assert torch.equal(torch.get_rng_state(), before)


@needs_onednn
@pytest.mark.parametrize(("rows", "k", "n"), [(39200, 64, 128), (3136, 128, 64), (2048, 64, 64)])
@pytest.mark.slow
def test_onednn_products_have_the_same_bits_with_any_number_of_threads(rows, k, n):
    products.use("onednn")
    x, w, dy, _ = matrices(rows, k, n)
    found, threads = {}, torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found[count] = products.linear(x, w), products.grad_input(dy, w), products.grad_weight(dy, x)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(found[1], found[2], strict=True))
