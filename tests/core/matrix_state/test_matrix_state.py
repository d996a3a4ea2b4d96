"""The chunked products of matrix states equal the recurrence of the papers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from stablessm_core.matrix_state import delta_rule, scalar_decay, vector_decay

FORMS = {"scalar": scalar_decay, "vector": vector_decay, "shifted": vector_decay, "delta": delta_rule}


def wave(*shape: int, k: float) -> Tensor:
    return torch.sin(k * torch.arange(1, torch.Size(shape).numel() + 1, dtype=torch.float64)).view(shape)


def arguments(form: str, length: int, *, batch: int = 2, heads: int = 2, keys: int = 3, values: int = 5, decay: float = 2.0):
    """Random inputs. decay: the largest -log decay; the decays are log-uniform over the twelve powers of ten below it."""
    generator = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q, k, v = normal(batch, length, heads, keys), normal(batch, length, heads, keys), normal(batch, length, heads, values)
    shape = (batch, length, heads) if form in ("scalar", "delta") else (batch, length, heads, keys)
    log_decay = -decay * 10 ** (-12 * torch.rand(shape, generator=generator, dtype=torch.float64))
    given = {"q": q, "k": k, "v": v, "log_decay": log_decay, "initial": normal(batch, heads, keys, values)}
    if form == "shifted":
        given["bonus"] = normal(heads, keys)
    if form == "delta":
        given["k"] = functional.normalize(k, dim=-1)
        given["beta"] = 2 * torch.rand(batch, length, heads, generator=generator, dtype=torch.float64)
    return given


def agree(form: str, given: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    """Assert that the chunked form and the step-by-step form agree in outputs, final state and every gradient."""
    found = []
    for backend in ("reference", "auto"):
        inputs = {name: x.clone().requires_grad_() for name, x in given.items()}
        o, S = FORMS[form](**inputs, backend=backend)
        weights = [torch.cos(torch.arange(x.numel(), dtype=x.dtype)).view_as(x) for x in (o, S)]
        loss = (o * weights[0]).sum() + (S * weights[1]).sum()
        found.append({"o": o, "S": S, **dict(zip(inputs, torch.autograd.grad(loss, list(inputs.values())), strict=True))})
    for name, expected in found[0].items():
        scale = max(1.0, expected.abs().max().item())
        error = (found[1][name] - expected).abs().max().item()
        assert error <= tolerance * scale, f"{name}: {error} of {scale}"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [1, 2, 3, 31, 32, 33, 64, 100, 257])
@pytest.mark.slow
def test_the_chunked_form_matches_the_recurrence(form, length):
    agree(form, arguments(form, length))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow
def test_the_chunked_form_matches_the_recurrence_over_4097_steps(form):
    agree(form, arguments(form, 4097, batch=1, heads=1, keys=2, values=3, decay=0.1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("extreme", ["forget", "keep", "alternate", "random"])
@pytest.mark.slow
def test_extreme_decays_lose_no_accuracy_and_give_no_nan(form, extreme):
    given = arguments(form, 131)
    g = given["log_decay"]
    if extreme == "random":
        g = torch.where(torch.rand(g.shape, generator=torch.Generator().manual_seed(3)) < 0.3, -50.0, 0.0).double()
    else:
        g = g * 0 + {"forget": -50.0, "keep": 0.0, "alternate": 0.0}[extreme]
        if extreme == "alternate":
            g[:, ::2] = -50.0
    agree(form, given | {"log_decay": g})


@pytest.mark.parametrize("form", FORMS)
def test_a_log_decay_of_minus_infinity_clears_the_state(form):
    given = arguments(form, 70)
    given["log_decay"][:, 40] = -torch.inf
    inputs = {name: x.clone().requires_grad_() for name, x in given.items()}
    o, S = FORMS[form](**inputs)
    after = {name: x if name in ("bonus", "initial") else x[:, 40:] for name, x in given.items()}
    after["initial"] = torch.zeros_like(given["initial"])
    o_after, S_after = FORMS[form](**after)
    behind = 41 if form == "shifted" else 40  # this form reads the state before the decay is applied
    torch.testing.assert_close(o[:, behind:], o_after[:, behind - 40 :], rtol=0, atol=1e-12)
    torch.testing.assert_close(S, S_after, rtol=0, atol=1e-12)
    (o.sum() + S.sum()).backward()
    assert all(x.grad.isfinite().all() for x in inputs.values())


@pytest.mark.parametrize("form", FORMS)
def test_a_sequence_in_pieces_with_passed_on_states_matches_the_whole_sequence(form):
    given = arguments(form, 150)
    o, S = FORMS[form](**given)
    outputs, state = [], given["initial"]
    for piece in (slice(0, 1), slice(1, 65), slice(65, 150)):
        part = {name: x if name in ("bonus", "initial") else x[:, piece] for name, x in given.items()}
        o_piece, state = FORMS[form](**(part | {"initial": state}))
        outputs.append(o_piece)
    torch.testing.assert_close(torch.cat(outputs, 1), o, rtol=0, atol=1e-11)
    torch.testing.assert_close(state, S, rtol=0, atol=1e-11)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow
def test_first_and_second_order_gradients_are_exact(form):
    given = arguments(form, 7, batch=1, heads=1, keys=2, values=2)
    names = list(given)
    inputs = tuple(x.clone().requires_grad_() for x in given.values())

    def call(*args: Tensor):
        return FORMS[form](**dict(zip(names, args, strict=True)))

    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow
def test_torch_func_grad_matches_autograd(form):
    given = arguments(form, 40)

    def loss(q: Tensor, g: Tensor, initial: Tensor) -> Tensor:
        o, S = FORMS[form](**(given | {"q": q, "log_decay": g, "initial": initial}))
        return o.square().sum() + S.sum()

    args = (given["q"].requires_grad_(), given["log_decay"].requires_grad_(), given["initial"].requires_grad_())
    expected = torch.autograd.grad(loss(*args), args)
    for found, wanted in zip(torch.func.grad(loss, (0, 1, 2))(*args), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_a_missing_initial_state_is_treated_as_zeros():
    for form, function in FORMS.items():
        for length in (5, 50):
            given = arguments(form, length)
            zero = function(**(given | {"initial": torch.zeros_like(given["initial"])}))
            for backend in ("auto", "reference"):
                for a, b in zip(function(**(given | {"initial": None}), backend=backend), zero, strict=True):
                    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [7, 32, 64, 75])
def test_grouped_heads_share_queries_and_keys(length):
    given = arguments("scalar", length, heads=6)
    given["q"], given["k"] = given["q"][:, :, :2], given["k"][:, :, :2]
    agree("scalar", given)
    repeated = given | {name: given[name].repeat_interleave(3, 2) for name in ("q", "k")}
    for a, b in zip(scalar_decay(**given), scalar_decay(**repeated), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["scalar", "vector", "shifted"])
@pytest.mark.parametrize("length", [1, 7, 32, 64, 75])
def test_a_constant_decay_can_be_given_once_for_all_steps(form, length):
    given = arguments(form, length)
    given["log_decay"] = given["log_decay"][0, 0]
    agree(form, given)
    given |= {"initial": None}
    everywhere = given | {"log_decay": given["log_decay"].expand(2, length, *given["log_decay"].shape)}
    for a, b in zip(FORMS[form](**given), FORMS[form](**everywhere), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_float32_keeps_accuracy_if_large_decays_precede_small_decays(form):
    """Next to log decays of -50, one of -1e-3 still matters. A difference of float32 sums would have an error of 2e-4."""
    given = arguments(form, 64)
    given["log_decay"] = torch.full_like(given["log_decay"], -1e-3)
    given["log_decay"][:, :16] = -50.0
    exact = FORMS[form](**given)
    rounded = FORMS[form](**{name: x.float() for name, x in given.items()})
    for a, b in zip(rounded, exact, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() / b.norm() < 5e-6


@pytest.mark.parametrize("form", FORMS)
def test_memory_kept_for_the_backward_pass_grows_linearly_with_the_length(form):
    kept = []
    for length in (128, 512):
        given = {name: x.requires_grad_() for name, x in arguments(form, length, keys=4, values=4).items()}
        storages: dict[int, int] = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, storages=storages: storages.update({x.data_ptr(): x.numel()}) or x, lambda x: x
        ):
            FORMS[form](**given)
        kept.append(sum(storages.values()))
    assert kept[1] < 4.2 * kept[0]


def test_autocast_and_half_precision_inputs_are_computed_in_float32():
    for form, function in FORMS.items():
        given = {name: x.bfloat16() for name, x in arguments(form, 40).items()}
        expected = function(**{name: x.float() for name, x in given.items()})
        with torch.autocast("cpu", torch.bfloat16):
            for a, b in zip(function(**given), expected, strict=True):
                assert a.dtype == torch.float32
                torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_retention_gla_and_the_gated_delta_rule_match_published_numbers():
    """float32 outputs of the public `fla.ops` functions for the same inputs."""
    q, k, v = wave(1, 6, 2, 3, k=0.7), wave(1, 6, 2, 3, k=0.9), wave(1, 6, 2, 2, k=1.1)
    q = q * 3**-0.5

    def check(result, *expected: float) -> None:
        torch.testing.assert_close(result[0][0, 5].flatten(), torch.tensor(expected).double(), rtol=0, atol=1e-6)

    check(scalar_decay(q, k, v, torch.log(1 - torch.tensor([2.0**-5, 2.0**-6]))), -0.294631, -0.044724, 0.466566, 0.163277)
    log_decay = functional.logsigmoid(3 * wave(1, 6, 2, 3, k=0.4))
    check(vector_decay(q, k, v, log_decay), -0.668724, -0.167154, -0.125780, 0.417789)
    unit_q, unit_k = functional.normalize(wave(1, 6, 2, 3, k=0.7), dim=-1) * 3**-0.5, functional.normalize(k, dim=-1)
    beta, log_decay = wave(1, 6, 2, k=0.4).sigmoid(), -functional.softplus(wave(1, 6, 2, k=0.5))
    check(delta_rule(unit_q, unit_k, v, beta, log_decay), -0.142948, -0.019833, 0.061299, 0.129600)


def test_scalar_decay_matches_published_numbers_of_mamba_2():
    """float32 output of the public chunked scan: q = C and k = B of one group, v = dt x, log decay dt A."""
    x, dt = wave(1, 7, 2, 3, k=0.7), functional.softplus(wave(1, 7, 2, k=1.3) - 1)
    A, B, C = -torch.tensor([1.0, 4.0]).double(), wave(1, 7, 1, 4, k=0.9), wave(1, 7, 1, 4, k=0.4)
    o, _ = scalar_decay(C, B, dt[..., None] * x, dt * A)
    expected = torch.tensor([-0.520213, 0.289288, 0.962733, 0.473828, 0.165132, -0.221228]).double()
    torch.testing.assert_close(o[0, 6].flatten(), expected, rtol=0, atol=1e-6)


def test_the_error_for_an_argument_of_the_wrong_shape_names_the_argument():
    given = arguments("scalar", 5)
    with pytest.raises(ValueError, match="log_decay must be"):
        scalar_decay(**(given | {"log_decay": given["log_decay"][..., :1]}))
    with pytest.raises(ValueError, match="initial must be"):
        scalar_decay(**(given | {"initial": given["initial"][:1]}))
    with pytest.raises(ValueError, match="q and k must be"):
        scalar_decay(**(given | {"q": given["q"][:, :4]}))
    with pytest.raises(ValueError, match="v must be"):
        scalar_decay(**(given | {"v": given["v"][:, :0]}))
    with pytest.raises(ValueError, match="bonus"):
        vector_decay(**(arguments("shifted", 5) | {"bonus": torch.zeros(1)}))
    with pytest.raises(ValueError, match="beta must be"):
        delta_rule(**(arguments("delta", 5) | {"beta": torch.zeros(1)}))
