"""The whole network: an encoder, blocks (each a state-space layer, and usually a gated MLP), and a head that fits the task.

`model.block` chooses the kind of block: `Block` (pre-norm), `PostNormBlock`, or `BareBlock` with nothing around the layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.layers import bare_ssm
from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.form_probe import probe_form
from stablessm_core.layers.stable_ssm import StableSSM
from stablessm_core.network import blocks, network
from stablessm_core.network.step_buffers import StepBuffers
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.config import RunConfig
from stablessm_core.spec.layer import LayerSection
from stablessm_core.spec.model import Model as ModelConfig
from stablessm_core.spec.task import TaskKind


class TaskShape(Protocol):
    """The facts about a task that a model needs. Every Task implements this protocol."""

    @property
    def kind(self) -> TaskKind: ...
    @property
    def input_size(self) -> int | None:
        """Number of features of a real-valued input; None for tokens."""

    @property
    def vocabulary(self) -> int | None:
        """Number of different tokens; None for real-valued input."""

    @property
    def output_size(self) -> int: ...


def build_model(config: RunConfig, task_shape: TaskShape, *, scan_backend: str | None = None) -> Network:
    """The network of a run, on the CPU. The same `train.seed` gives the same weights. The caller's random state is unchanged.

    scan_backend: overrides `train.scan_backend`. The weights do not depend on devices or telemetry, so a run starts from the
    same weights on a GPU and on a CPU. Raises FormError if the recorded form of a layer does not match the layer's recurrence
    (`layers.form_probe`).
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.train.seed)
        backend = scan_backend or config.train.scan_backend
        network = Network(config.model, task_shape, scan_backend=backend, fused=config.train.fused)
    _probe_forms(network, config.model)
    return network


def _probe_forms(network: Network, config: ModelConfig) -> None:
    """Raise FormError if a layer's recorded form does not match its recurrence. Layers with equal sections are probed once."""
    probed: list[LayerSection] = []
    for section, (layer, width) in zip(config.sections(), probed_layers(network, config), strict=True):
        if section not in probed:
            probed.append(section)
            probe_form(layer, section.name, width)


def probed_layers(network: Network, config: ModelConfig) -> list[tuple[WatchedLayer, int]]:
    """Each layer of the network with the number of features of its input, as `layers.form_probe` needs them."""
    return [
        (block.ssm, block.ssm.B.shape[1] if isinstance(block, BareBlock) else config.d_model)  # type: ignore[misc]
        for block in network.blocks
    ]


class Network(nn.Module):
    """The model of a run. Its input is x (batch, length, input_size), or tokens (batch, length) int64.

    The output depends on the kind of task. regression, next_token: (batch, length, output_size); the output at step t depends
    only on the inputs up to step t. classification: (batch, output_size), logits computed from the mean over time of the last
    block's features, as in the image models of the StableSSM authors. The mean reflects states with short and with long memory;
    the last step alone would reflect the early input only through states with long memory.

    Networks of post-norm and of bare blocks have no norm before the head. A bare network has no encoder of real numbers, and its
    head has no bias: it is y = C act(h), with one recurrence h_t = Lambda h_{t-1} + U x_t per block.
    """

    def __init__(self, config: ModelConfig, task: TaskShape, *, scan_backend: str = "auto", fused: str = "auto") -> None:
        super().__init__()
        if (task.input_size is None) == (task.vocabulary is None):
            raise ValueError(f"input_size is {task.input_size} and vocabulary {task.vocabulary}; exactly one of them is needed")
        self.kind = task.kind
        self.scan_backend = scan_backend
        self._weight_slots: network.WeightSlots | None = None
        bare, width = config.block == "bare", config.d_model
        if task.vocabulary is not None:
            self.encoder: nn.Module = nn.Embedding(task.vocabulary, config.d_model)
        else:
            self.encoder = nn.Identity() if bare else nn.Linear(task.input_size or 0, config.d_model)
        self.blocks = nn.ModuleList()
        if bare:
            for block in bare_blocks(config, task.input_size or config.d_model, scan_backend):
                self.blocks.append(block)
                width = block.ssm.w.numel()
        else:
            kind = Block if config.block == "pre_norm" else PostNormBlock
            for index, section in enumerate(config.sections()):
                self.blocks.append(kind(config, section, index, scan_backend=scan_backend, fused=fused))
        self.norm = nn.LayerNorm(config.d_model) if config.block == "pre_norm" else nn.Identity()
        self.head = nn.Linear(width, task.output_size, bias=not bare)
        self._features_of_a_number = config.d_model // (task.input_size or 1)

    def forward(self, x: Tensor) -> Tensor:
        if (made := self._in_one_node(x)) is not None:
            return made
        features: Tensor = self.encoder(x)
        for block in self.blocks:
            features = block(features)
        features = self.norm(features)
        if self.kind == "classification":
            features = features.mean(dim=1)
        output: Tensor = self.head(features)
        return output

    def _in_one_node(self, x: Tensor) -> Tensor | None:
        """The output of a small network, computed by the compiled CPU kernels; None if the kernels do not support this case."""
        tokens = x.dim() == 2
        if (
            not isinstance(self.norm, nn.LayerNorm)  # the kernels have no other blocks than pre-norm blocks
            or torch.compiler.is_compiling()
            or not 0 < x.numel() * self._features_of_a_number <= network.MAX_FEATURES
            or x.requires_grad
        ):
            return None
        if self._weight_slots is None or not self._weight_slots.valid():
            self._weight_slots = network.WeightSlots.find(self, self._weights())
        parts: list[tuple[nn.Module, blocks.Half]] = []
        for block in self.blocks:
            halves = block.halves()  # type: ignore[operator]
            if halves is None:
                return None
            parts += halves
        plan = network.Plan([half for _, half in parts], self.norm.eps, tokens=tokens, pooled=self.kind == "classification")
        weights = self._weight_slots.weights()
        if not network.can_run(plan, self._weight_slots, weights, x, self.scan_backend):
            return None
        buffers = StepBuffers.active()
        output, states = (network if buffers is None else buffers).apply(plan, x, *weights)
        layers = [module for module, half in parts if isinstance(half, blocks.StateSpace)]
        for layer, last in zip(layers, states, strict=True):
            layer.last_state = last
        return output

    def _weights(self) -> list[tuple[nn.Module, str]]:
        """Every weight in the order of `network.Plan`, as (module, name of the weight in the module)."""
        found = [(self.encoder, name) for name, _ in self.encoder.named_parameters()]
        for block in self.blocks:
            found += block.weights()  # type: ignore[operator]
        return found + [(module, name) for module in (self.norm, self.head) for name in ("weight", "bias")]

    def step(self, x_t: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        """Advance one time step. Returns the output (batch, output_size) and the next states.

        x_t: (batch, input_size), or tokens (batch,). states: from `initial_states` or from the previous step. Raises ValueError
        for classification, which scores a whole sequence.
        """
        if self.kind == "classification":
            raise ValueError("kind is 'classification': it scores whole sequences; step needs 'regression' or 'next_token'")
        features, following = self.encoder(x_t), []
        for block, state in zip(self.blocks, states, strict=True):
            features, state = block.step(features, state)  # type: ignore[operator]
            following.append(state)
        return self.head(self.norm(features)), following

    def initial_states(self, batch: int) -> list[Any]:
        """The initial state of each block's layer."""
        return [block.ssm.initial_state(batch) for block in self.blocks]  # type: ignore[operator,union-attr]


class Block(nn.Module):
    """x + ssm(norm(x)), then x + mlp(norm(x)) unless mlp_expansion is 0. Input and output are (batch, length, d_model)."""

    def __init__(
        self, config: ModelConfig, section: LayerSection | None = None, index: int = 0, *, scan_backend: str, fused: str
    ) -> None:
        super().__init__()
        section = config.sections()[index] if section is None else section
        map_ = config.map_of(section)
        made = None if map_ is None else get_reparameterization(map_.name, time=map_.time, a=map_.a, b=map_.b)
        self.norm = nn.LayerNorm(config.d_model)
        self.ssm = build_layer(section, Surroundings(config.d_model, made, index, config.n_layers, scan_backend, fused))
        self.mlp = GatedMLP(config.d_model, config.mlp_expansion * config.d_model) if config.mlp_expansion else None
        self.dropout = nn.Dropout(config.dropout)
        self.scan_backend = scan_backend

    def forward(self, x: Tensor) -> Tensor:
        if self._drops or not isinstance(self.ssm, StableSSM) or (mixed := self.ssm.residual(x, self.norm)) is None:
            mixed = x + self.dropout(self.ssm(self.norm(x)))
        return self._mix(mixed)

    def halves(self) -> list[tuple[nn.Module, blocks.Half]] | None:
        """The block's halves for the compiled kernels, each with its module; None if the kernels do not support the block."""
        ssm, mlp = self.ssm, self.mlp
        if self._drops or not isinstance(ssm, StableSSM) or ssm.fused == "on" or ssm.log_dt is not None:
            return None
        first = ssm, ssm.first_half(self.norm)
        return [first] if mlp is None else [first, (mlp, blocks.GatedMLP(mlp.norm.eps))]

    def weights(self) -> list[tuple[nn.Module, str]]:
        """The weights of the block's halves in order, as (module, name of the weight in the module)."""
        found = [(self.norm, "weight"), (self.norm, "bias"), *((self.ssm, name) for name in ("w", "B", "C", "D"))]
        if (mlp := self.mlp) is not None:
            found += [(mlp.norm, "weight"), (mlp.norm, "bias"), *((m, "weight") for m in (mlp.gate, mlp.up, mlp.down))]
        return found

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self.ssm.step(self.norm(x_t), state)
        return self._mix(x_t + self.dropout(y)), state

    def _mix(self, x: Tensor) -> Tensor:
        if self.mlp is None:
            return x
        mlp = self.mlp
        if not self._drops and blocks.can_run(self.scan_backend, x, mlp.gate.weight):
            return blocks.apply(blocks.GatedMLP(mlp.norm.eps), x, *mlp.weights)[0]
        mixed: Tensor = x + self.dropout(mlp(x))
        return mixed

    @property
    def _drops(self) -> bool:
        return self.training and self.dropout.p > 0


class PostNormBlock(Block):
    """norm(x + ssm(x)), then norm(x + mlp(x)) unless mlp_expansion is 0. Input and output are (batch, length, d_model).

    This is the block of the StableSSM authors' image models (S4D with `prenorm` switched off).
    """

    def forward(self, x: Tensor) -> Tensor:
        return self._mix(self.norm(x + self.dropout(self.ssm(x))))

    def halves(self) -> None:
        """None: the compiled kernels do not support the block."""

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self.ssm.step(x_t, state)
        return self._mix(self.norm(x_t + self.dropout(y))), state

    def _mix(self, x: Tensor) -> Tensor:
        if self.mlp is None:
            return x
        mixed: Tensor = self.mlp.norm(x + self.dropout(self.mlp.gated(x)))
        return mixed


class BareBlock(nn.Module):
    """act(h) alone, from (batch, length, inputs) to (batch, length, d_state): see `layers.bare_ssm`."""

    def __init__(self, ssm: bare_ssm.BareSSM) -> None:
        super().__init__()
        self.ssm = ssm

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.ssm(x)
        return y

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.ssm.step(x_t, state)


def bare_blocks(config: ModelConfig, inputs: int, scan_backend: str) -> Iterator[BareBlock]:
    """The blocks of a bare model. The activated states of a block are the inputs of the next block."""
    for index, section in enumerate(config.sections()):
        map_ = config.map_of(section)
        assert map_ is not None
        made = get_reparameterization(map_.name, time=map_.time, a=map_.a, b=map_.b)
        layer = bare_ssm.build(section, Surroundings(inputs, made, index, config.n_layers, scan_backend))  # type: ignore[arg-type]
        yield BareBlock(layer)
        inputs = layer.w.numel()


class GatedMLP(nn.Module):
    """down(silu(gate(z)) * up(z)) with z = norm(x), without biases (SwiGLU, arXiv 2002.05202)."""

    def __init__(self, d_model: int, d_hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.gate = nn.Linear(d_model, d_hidden, bias=False)
        self.up = nn.Linear(d_model, d_hidden, bias=False)
        self.down = nn.Linear(d_hidden, d_model, bias=False)

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return self.norm.weight, self.norm.bias, self.gate.weight, self.up.weight, self.down.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.gated(self.norm(x))

    def gated(self, z: Tensor) -> Tensor:
        """down(silu(gate(z)) * up(z)), without the norm."""
        out: Tensor = self.down(functional.silu(self.gate(z)) * self.up(z))
        return out
