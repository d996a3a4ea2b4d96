"""The whole network: encoder, residual blocks of a state-space layer and a gated MLP, one head per kind of task."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.compiled import blocks, network
from stablessm_core.config import Model as ModelConfig
from stablessm_core.config import RunConfig
from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.section import LayerSection
from stablessm_core.layers.stable_ssm.layer import StableSSM
from stablessm_core.reparameterization import get_reparameterization

Kind = Literal["regression", "classification", "next_token"]


class TaskShape(Protocol):
    """What a model must know of its task; every Task has it."""

    @property
    def kind(self) -> Kind: ...
    @property
    def input_size(self) -> int | None:
        """Features of a real-valued input; None for tokens."""

    @property
    def vocabulary(self) -> int | None:
        """Number of tokens; None for real-valued input."""

    @property
    def output_size(self) -> int: ...


def build_model(config: RunConfig, task_shape: TaskShape, *, scan_backend: str | None = None) -> Network:
    """The network of a run on the CPU; the same weights for the same `train.seed`, the caller's random state untouched.

    scan_backend: in place of the configuration's, where that was resolved. `telemetry` and devices are the trainer's business:
    nothing here depends on them, so a GPU run starts as a CPU run does.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.train.seed)
        return Network(config.model, task_shape, scan_backend=scan_backend or config.train.scan_backend, fused=config.train.fused)


class Network(nn.Module):
    """x (batch, length, input_size) real or (batch, length) int64 tokens -> the output its kind of task scores.

    regression, next_token: (batch, length, output_size), step t from inputs up to t. classification:
    (batch, output_size), logits of the mean over time of the last features (the authors' image models pool the same way; a
    mean keeps short-memory states useful, where the last step alone would see only long ones).
    """

    def __init__(self, config: ModelConfig, task: TaskShape, *, scan_backend: str = "auto", fused: str = "auto") -> None:
        super().__init__()
        if (task.input_size is None) == (task.vocabulary is None):
            raise ValueError(f"input_size is {task.input_size} and vocabulary {task.vocabulary}; exactly one of them is needed")
        self.kind = task.kind
        self.scan_backend = scan_backend
        self._places: network.Places | None = None
        if task.vocabulary is not None:
            self.encoder: nn.Module = nn.Embedding(task.vocabulary, config.d_model)
        else:
            self.encoder = nn.Linear(task.input_size or 0, config.d_model)
        self.blocks = nn.ModuleList(
            Block(config, section, index, scan_backend=scan_backend, fused=fused)
            for index, section in enumerate(config.sections())
        )
        self.norm = nn.LayerNorm(config.d_model)
        self.head = nn.Linear(config.d_model, task.output_size)
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
        """The output of a small network by the compiled kernels of a CPU, or None where those do not serve."""
        tokens = x.dim() == 2
        if torch.compiler.is_compiling() or not 0 < x.numel() * self._features_of_a_number <= network.MOST or x.requires_grad:
            return None
        if self._places is None or not self._places.hold():
            self._places = network.Places.of(self, self._weights())
        parts: list[tuple[nn.Module, blocks.Half]] = []
        for block in self.blocks:
            halves = block.halves()  # type: ignore[operator]
            if halves is None:
                return None
            parts += halves
        plan = network.Plan([half for _, half in parts], self.norm.eps, tokens=tokens, pooled=self.kind == "classification")
        weights = self._places.weights()
        if not network.serves(plan, self._places, weights, x, self.scan_backend):
            return None
        memory = network.Memory.at_hand()
        output, states = (network if memory is None else memory).apply(plan, x, *weights)
        layers = [module for module, half in parts if isinstance(half, blocks.StateSpace)]
        for layer, last in zip(layers, states, strict=True):
            layer.last_state = last
        return output

    def _weights(self) -> list[tuple[nn.Module, str]]:
        """Every weight in the order in which `network.Plan` has them, as a module and the weight's name in it."""
        found = [(self.encoder, name) for name, _ in self.encoder.named_parameters()]
        for block in self.blocks:
            found += block.weights()  # type: ignore[operator]
        return found + [(module, name) for module in (self.norm, self.head) for name in ("weight", "bias")]

    def step(self, x_t: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        """One step in time: x_t (batch, input_size) or (batch,) tokens -> (output (batch, output_size), next states).

        Start from `initial_states`. Raises ValueError for classification, which scores a whole sequence.
        """
        if self.kind == "classification":
            raise ValueError("kind is 'classification': it scores whole sequences; step needs 'regression' or 'next_token'")
        features, following = self.encoder(x_t), []
        for block, state in zip(self.blocks, states, strict=True):
            features, state = block.step(features, state)  # type: ignore[operator]
            following.append(state)
        return self.head(self.norm(features)), following

    def initial_states(self, batch: int) -> list[Any]:
        """What each block's layer begins with."""
        return [block.ssm.initial_state(batch) for block in self.blocks]  # type: ignore[operator,union-attr]


class Block(nn.Module):
    """x + ssm(norm(x)), then x + mlp(norm(x)) unless mlp_expansion is 0: (batch, length, d_model) to the same."""

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
        """Its halves as the compiled kernels take them, each with its module, or None where they do not."""
        ssm, mlp = self.ssm, self.mlp
        if self._drops or not isinstance(ssm, StableSSM) or ssm.fused == "on" or ssm.log_dt is not None:
            return None
        first = ssm, ssm.first_half(self.norm)
        return [first] if mlp is None else [first, (mlp, blocks.GatedMLP(mlp.norm.eps))]

    def weights(self) -> list[tuple[nn.Module, str]]:
        """The weights of its halves in their order, as a module and the weight's name in it."""
        found = [(self.norm, "weight"), (self.norm, "bias"), *((self.ssm, name) for name in ("w", "B", "C", "D"))]
        if (mlp := self.mlp) is not None:
            found += [(mlp.norm, "weight"), (mlp.norm, "bias"), *((m, "weight") for m in (mlp.gate, mlp.up, mlp.down))]
        return found

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self.ssm.step(self.norm(x_t), state)  # type: ignore[operator]
        return self._mix(x_t + self.dropout(y)), state

    def _mix(self, x: Tensor) -> Tensor:
        if self.mlp is None:
            return x
        mlp = self.mlp
        if not self._drops and blocks.serves(self.scan_backend, x, mlp.gate.weight):
            return blocks.apply(blocks.GatedMLP(mlp.norm.eps), x, *mlp.weights)[0]
        mixed: Tensor = x + self.dropout(mlp(x))
        return mixed

    @property
    def _drops(self) -> bool:
        return self.training and self.dropout.p > 0


class GatedMLP(nn.Module):
    """down(silu(gate(z)) * up(z)) of z = norm(x), without biases (SwiGLU, arXiv 2002.05202)."""

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
        z = self.norm(x)
        out: Tensor = self.down(functional.silu(self.gate(z)) * self.up(z))
        return out
