"""Products by oneDNN: the values of float64, mm wherever a guard says so, one choice in a process."""

from __future__ import annotations

import json
import math

import pytest
import torch

from stablessm_core import products

ONEDNN = products._why_not_onednn() is None
needs_onednn = pytest.mark.skipif(not ONEDNN, reason="this PyTorch has no usable oneDNN operator")
SHAPES = [(4, 10, 8), (97, 7, 5), (97, 2, 32), (1237, 33, 65), (512, 32, 128), (3136, 128, 64), (20001, 40, 64), (20001, 64, 40)]


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    monkeypatch.setattr(products, "_onednn", None)
    monkeypatch.setattr(products, "_facts", {})


@pytest.fixture(params=["mm", pytest.param("onednn", marks=needs_onednn)])
def library(request):
    assert products.use(request.param) == request.param
    return request.param


@pytest.fixture
def calls(monkeypatch):
    """How often oneDNN was called."""
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
def test_the_three_products_are_those_of_float64(library, rows, k, n):
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
def test_an_empty_product_is_mms(library, shape):
    x, w, dy, _ = matrices(*shape)
    assert torch.equal(products.linear(x, w), x @ w.t())
    assert torch.equal(products.grad_input(dy, w), dy @ w)
    assert torch.equal(products.grad_weight(dy, x), dy.t() @ x)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_in_its_row_and_column(library, value):
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
def test_large_products_are_onednns_and_small_ones_mms(calls):
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
        pytest.param(lambda m: m.clone().requires_grad_(), id="within autograd"),
        pytest.param(lambda m: m.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2], id="strides of neither order"),
        pytest.param(lambda m: m.to("meta"), id="another device"),
    ],
)
def test_whatever_is_no_plain_float32_matrix_is_mms(calls, other):
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


def test_gradients_are_not_lost_within_autograd(library):
    x, w, _, _ = matrices(3136, 64, 64)
    w.requires_grad_()
    products.linear(x, w).sum().backward()
    close(w.grad, x.double().sum(0).expand(64, 64))


@needs_onednn
def test_rows_of_a_larger_matrix_and_transposes_are_taken(calls):
    products.use("onednn")
    calls.clear()
    x, w, dy, _ = matrices(3136, 256, 64)
    left, gate = x[:, 3:67], w.t()[128:192].t()
    close(products.linear(left, gate), left.double() @ gate.double().t())
    close(products.grad_weight(dy, left), dy.double().t() @ left.double())
    assert len(calls) == 2


def test_the_choice_is_made_once_and_can_be_recorded(monkeypatch):
    first = products.chosen()
    assert first["library"] in products.LIBRARIES
    assert first["reason"]
    assert set(first.get("gflops", {})) <= set(products.LIBRARIES)
    assert json.loads(json.dumps(first)) == first
    monkeypatch.setattr(products, "_probe", lambda: pytest.fail("probed again"))
    assert products.chosen() == first
    x, w, _, _ = matrices(3136, 64, 64)
    products.linear(x, w)
    assert products.choose() == first["library"]


def test_a_recorded_choice_is_taken_without_a_probe(library, monkeypatch):
    monkeypatch.setattr(products, "_probe", lambda: pytest.fail("probed"))
    assert products.chosen() == {"library": library, "reason": "asked for"}
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
        pytest.param(absent, "refuses: _linear_pointwise() takes 7 positional arguments", id="another signature"),
        pytest.param(lambda x, w, *_: (x.bfloat16() @ w.bfloat16().t()).float(), "differ from those in float64", id="fewer bits"),
        pytest.param(lambda x, w, *_: torch.nan_to_num(x) @ w.t(), "lose NaN or infinity", id="without NaN"),
        pytest.param(lambda x, w, *_: (x.double() @ w.double().t()).float(), "times as fast, not 1.2", id="no faster"),
    ],
)
def test_an_operator_that_fails_its_probe_leaves_mm(monkeypatch, operator, reason):
    monkeypatch.setattr(products, "_linear_pointwise", operator)
    monkeypatch.setattr(products, "MARGIN", 1.2)
    facts = products.chosen()
    assert facts["library"] == "mm"
    assert reason in facts["reason"]
    x, w, _, _ = matrices(3136, 64, 64)
    assert torch.equal(products.linear(x, w), x @ w.t())


def test_a_recorded_onednn_that_is_not_here_becomes_mm_and_says_so(monkeypatch):
    monkeypatch.setattr(products, "_linear_pointwise", None)
    assert products.use("onednn") == "mm"
    assert "onednn was asked for, but this PyTorch has no" in products.chosen()["reason"]


def test_the_probe_draws_nothing_from_the_runs_generator():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    products.choose()
    assert torch.equal(torch.get_rng_state(), before)


@needs_onednn
@pytest.mark.parametrize(("rows", "k", "n"), [(39200, 64, 128), (3136, 128, 64), (2048, 64, 64)])
def test_onednns_bits_do_not_depend_on_the_threads(rows, k, n):
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
