"""Post-norm blocks and bare models compute their published formulas, outside and inside of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from stablessm_core.model import Network, build_model
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.tasks.loading import get_task
from stablessm_core.telemetry.stability import layer_limits, overflow_eigenvalue
from tests.core.test_model import SHAPES, Shape, make_input


def configured(**model: Any) -> RunConfig:
    small = {"n_layers": 2, "d_model": 12, "d_state": 9} | model
    return parse_config({"task": {"name": "polynomial_memory"}, "model": small})


def built(shape: Shape, **model: Any) -> Network:
    network = build_model(configured(**model), shape)
    with torch.no_grad():
        for p in network.parameters():
            p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))  # no bias and no gain is trivial
    return network.double()


def normed(x: Tensor, at: str, weights: dict[str, Tensor]) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weights[f"{at}.weight"], weights[f"{at}.bias"])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.kind)
@pytest.mark.parametrize("expansion", [0, 2])
@pytest.mark.parametrize("layer", ["stable_ssm", "s4d"])
def test_a_post_norm_block_normalises_the_sum_of_its_input_and_its_layer(shape: Shape, expansion: int, layer: str) -> None:
    own = {} if layer == "s4d" else {"d_state": 9}
    network = build_model(
        parse_config({
            "task": {"name": "polynomial_memory"},
            "model": {"n_layers": 2, "d_model": 12, "layer": layer, "block": "post_norm", "mlp_expansion": expansion} | own,
        }),
        shape,
    ).double()  # fmt: skip
    x, weights = make_input(shape), dict(network.named_parameters())
    x = x.double() if x.is_floating_point() else x
    features = network.encoder(x)
    for i, block in enumerate(network.blocks):
        features = normed(features + block.ssm(features), f"blocks.{i}.norm", weights)  # type: ignore[operator]
        if expansion:
            gate, up, down = (weights[f"blocks.{i}.mlp.{name}.weight"] for name in ("gate", "up", "down"))
            hidden = functional.silu(features @ gate.T) * (features @ up.T)
            features = normed(features + hidden @ down.T, f"blocks.{i}.mlp.norm", weights)
    features = features.mean(1) if shape.kind == "classification" else features
    expected = features @ weights["head.weight"].T + weights["head.bias"]
    torch.testing.assert_close(network(x), expected, rtol=1e-10, atol=1e-12)
    assert not any(name.startswith("norm.") for name in weights), "there is no norm before the head"


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.kind)
@pytest.mark.parametrize("time", ["discrete", "continuous"])
@pytest.mark.parametrize("activation", ["tanh", "identity"])
def test_a_bare_model_is_the_recurrence_its_activation_and_a_linear_read_out(shape: Shape, time: str, activation: str) -> None:
    network = built(shape, block="bare", activation=activation, reparameterization={"name": "exp", "time": time})
    x, weights = make_input(shape), {path: p.detach().numpy() for path, p in network.named_parameters()}
    act = np.tanh if activation == "tanh" else lambda h: h
    signal = weights["encoder.weight"][x.numpy()] if shape.vocabulary else x.double().numpy()
    for i, block in enumerate(network.blocks):
        rate = -np.exp(weights[f"blocks.{i}.ssm.w"])  # lambda = e^(-e^w) in discrete time, e^(-dt e^w) in continuous time
        dt = np.exp(weights[f"blocks.{i}.ssm.log_dt"]) if time == "continuous" else 1.0
        gain = np.expm1(dt * rate) / rate if time == "continuous" else block.ssm.gamma.numpy()  # type: ignore[union-attr,operator]
        U = gain[:, None] * weights[f"blocks.{i}.ssm.B"]
        h, states = np.zeros((len(x), 9)), []
        for t in range(x.shape[1]):
            h = np.exp(dt * rate) * h + signal[:, t] @ U.T
            states.append(h)
        signal = act(np.stack(states, 1))
    signal = signal.mean(1) if shape.kind == "classification" else signal
    expected = signal @ weights["head.weight"].T
    np.testing.assert_allclose(
        network(x.double() if x.is_floating_point() else x).detach().numpy(), expected, rtol=1e-9, atol=1e-12
    )
    assert weights.keys() <= {"encoder.weight", "head.weight"} | {
        f"blocks.{i}.ssm.{name}" for i in range(2) for name in ("w", "log_dt", "B")
    }, "nothing else is trained"


@pytest.mark.parametrize("block", ["post_norm", "bare"])
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]], ids=lambda s: s.kind)
def test_single_steps_give_the_same_output_as_the_parallel_form(block: str, shape: Shape) -> None:
    network = built(shape, block=block)
    x = make_input(shape)
    x = x.double() if x.is_floating_point() else x
    states, outputs = network.initial_states(3), []
    for t in range(21):
        output, states = network.step(x[:, t], states)
        outputs.append(output)
    torch.testing.assert_close(torch.stack(outputs, 1), network(x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("block", ["post_norm", "bare"])
def test_the_compiled_network_leaves_other_blocks_to_pytorch(block: str) -> None:
    for kind, taken in (("pre_norm", True), (block, False)):
        network = build_model(configured(block=kind, d_model=16, d_state=16), SHAPES[0], scan_backend="cpu")
        assert (network._in_one_node(make_input(SHAPES[0])) is not None) == taken


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"layer": "s4d", "block": "bare"}, "model.block: is 'bare'; allowed: pre_norm or post_norm with layer 's4d'"),
        ({"layers": ["stable_ssm", "lru"], "block": "bare"}, "model.block: is 'bare'; allowed: pre_norm or post_norm"),
        ({"block": "bare", "mlp_expansion": 2}, "model.mlp_expansion: is 2; allowed: 0 with block 'bare'"),
        ({"block": "bare", "dropout": 0.1}, "model.dropout: is 0.1; allowed: 0 with block 'bare'"),
        ({"block": "nude"}, "model.block"),
    ],
)
def test_options_that_a_bare_model_lacks_are_refused(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config({"task": {"name": "polynomial_memory"}, "model": model})
    assert message in str(refused.value)


def test_a_bare_model_has_no_mlp_unless_somebody_asks_for_one() -> None:
    assert parse_config({"task": {"name": "digits"}, "model": {"block": "bare"}}).model.mlp_expansion == 0
    assert parse_config({"task": {"name": "digits"}, "model": {"block": "post_norm"}}).model.mlp_expansion == 2
    stored = configured(block="bare").model_dump(mode="json")
    assert parse_config(stored).model_dump(mode="json") == stored


@pytest.mark.parametrize(
    ("activation", "task"),
    [
        ("tanh", {"name": "polynomial_memory"}),
        ("identity", {"name": "polynomial_memory"}),
        ("tanh", {"name": "copying", "noise_length": 80}),
        ("identity", {"name": "copying", "noise_length": 80}),
    ],
)
def test_a_bare_model_overflows_at_the_limit_of_its_layer(activation: str, task: dict[str, Any]) -> None:
    model = {"block": "bare", "d_state": 8, "activation": activation, "reparameterization": {"name": "direct"}}
    config = parse_config({"task": task, "model": model})
    made = get_task(config.task, Path("/nonexistent"))
    assert made.length == 100
    (limit,) = layer_limits(config.model.model_dump(mode="json"), made.kind)
    assert limit == (0.5 if (activation, made.kind) == ("identity", "regression") else 1.0)
    x, y = made.batch(1, 32, 0, "cpu")
    finite = []
    for share in (0.93, 1.07):
        network = build_model(config, made)
        (layer,) = (block.ssm for block in network.blocks)
        with torch.no_grad():
            layer.w[0] = overflow_eigenvalue(100, share * limit)  # type: ignore[index,operator,union-attr]
        loss = made.loss(network(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        results = [loss, layer.last_state, *(p.grad for p in network.parameters())]
        finite.append(all(bool(t.isfinite().all()) for t in results))  # type: ignore[union-attr]
    assert finite == [True, False]
