"""The network has the right output for each kind of task, is deterministic and causal, and is able to learn."""

from dataclasses import dataclass

import pytest
import torch

from stablessm_core.layers import StableSSM
from stablessm_core.model import Network, build_model
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.spec.task import TaskKind


@dataclass(frozen=True)
class Shape:
    kind: TaskKind
    input_size: int | None
    vocabulary: int | None
    output_size: int


SHAPES = [
    Shape("regression", 2, None, 3),
    Shape("classification", 1, None, 10),
    Shape("next_token", None, 17, 17),
]


def make_config(seed: int = 0, **model: object) -> RunConfig:
    small = {"n_layers": 2, "d_model": 12, "d_state": 9} | model
    return parse_config({"task": {"name": "polynomial_memory"}, "model": small, "train": {"seed": seed}})


def make_input(shape: Shape, batch: int = 3, length: int = 21) -> torch.Tensor:
    random = torch.Generator().manual_seed(5)
    if shape.vocabulary is not None:
        return torch.randint(shape.vocabulary, (batch, length), generator=random)
    return torch.randn(batch, length, shape.input_size or 0, generator=random)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.kind)
@pytest.mark.parametrize("expansion", [0, 2])
@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_each_task_kind_has_its_output_shape_and_every_parameter_gets_a_gradient(shape: Shape, expansion: int, time: str) -> None:
    model = build_model(make_config(mlp_expansion=expansion, reparameterization={"time": time}), shape)
    output = model(make_input(shape))
    assert output.shape == ((3, 10) if shape.kind == "classification" else (3, 21, shape.output_size))
    output.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]], ids=lambda s: s.kind)
@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_single_steps_give_the_same_output_as_the_parallel_form(shape: Shape, time: str) -> None:
    model = build_model(make_config(reparameterization={"time": time}), shape).double()
    x = make_input(shape)
    x = x.double() if x.is_floating_point() else x
    states, outputs = model.initial_states(3), []
    for t in range(21):
        output, states = model.step(x[:, t], states)
        outputs.append(output)
    torch.testing.assert_close(torch.stack(outputs, 1), model(x), rtol=1e-9, atol=1e-10)


def test_a_classification_model_refuses_single_steps() -> None:
    model = build_model(make_config(), SHAPES[1])
    with pytest.raises(ValueError, match="whole sequences"):
        model.step(torch.zeros(1, 1), model.initial_states(1))


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]], ids=lambda s: s.kind)
def test_no_output_depends_on_future_inputs(shape: Shape) -> None:
    model = build_model(make_config(), shape)
    x = make_input(shape)
    changed = x.clone()
    changed[:, 11:] = x[:, 11:].flip(0)
    before, after = model(x), model(changed)
    torch.testing.assert_close(before[:, :11], after[:, :11])
    assert not torch.allclose(before[:, 11:], after[:, 11:])


def test_the_seed_decides_the_weights_and_the_global_random_numbers_stay_unchanged() -> None:
    torch.manual_seed(123)
    untouched = torch.rand(4)
    torch.manual_seed(123)
    first = build_model(make_config(seed=7), SHAPES[0])
    assert torch.equal(torch.rand(4), untouched)
    second, third = build_model(make_config(seed=7), SHAPES[0]), build_model(make_config(seed=8), SHAPES[0])
    for name, parameter in first.state_dict().items():
        assert torch.equal(parameter, second.state_dict()[name]), name
    assert not torch.equal(first.state_dict()["head.weight"], third.state_dict()["head.weight"])


def test_every_layer_gets_the_settings_of_the_configuration() -> None:
    config = make_config(
        n_layers=3,
        d_state=5,
        activation="gelu",
        eigenvalue_range=[-0.3, 0.25],
        dropout=0.3,
        reparameterization={"name": "best", "a": 2.0, "b": 0.75},
    )
    model = build_model(config, SHAPES[0])
    layers = [module for module in model.modules() if isinstance(module, StableSSM)]
    assert len(layers) == 3
    for layer in layers:
        assert layer.activation == "gelu"
        assert (layer.reparameterization.a, layer.reparameterization.b) == (2.0, 0.75)
        eigenvalues = layer.eigenvalues()
        assert eigenvalues[0].item() == pytest.approx(-0.3, abs=1e-6)
        assert eigenvalues[-1].item() == pytest.approx(0.25, abs=1e-6)
    assert all(module.p == 0.3 for module in model.modules() if isinstance(module, torch.nn.Dropout))


def test_a_task_shape_with_both_or_neither_kind_of_input_is_refused() -> None:
    for shape in (Shape("regression", None, None, 1), Shape("regression", 1, 5, 1)):
        with pytest.raises(ValueError, match="exactly one"):
            Network(make_config().model, shape)


@pytest.mark.parametrize("time", ["continuous", "discrete"])
@pytest.mark.slow
def test_a_small_network_learns_an_exponential_memory(time: str) -> None:
    model = build_model(
        make_config(n_layers=1, mlp_expansion=0, reparameterization={"time": time}), Shape("regression", 1, None, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    x = torch.randn(64, 40, 1, generator=torch.Generator().manual_seed(1))
    y, h = [], torch.zeros(64, 1)
    for t in range(40):
        h = 0.9 * h + 0.3 * x[:, t]
        y.append(h)
    target = torch.stack(y, 1)
    losses = []
    for _ in range(200):
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * target.square().mean().item()
    assert losses[-1] < 0.1 * losses[0]
