"""The whole network: encoder, residual blocks of a state-space layer and a gated MLP, one head per kind of task."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.config import Model as ModelConfig
from stablessm_core.config import RunConfig
from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.section import LayerSection
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


def build_model(config: RunConfig, task_shape: TaskShape) -> Network:
    """The network of a run on the CPU; the same weights for the same `train.seed`, the caller's random state untouched.

    `telemetry` and devices are the trainer's business: nothing here depends on them, so a GPU run starts as a CPU run does.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.train.seed)
        return Network(config.model, task_shape, scan_backend=config.train.scan_backend, fused=config.train.fused)


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

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.encoder(x)
        for block in self.blocks:
            features = block(features)
        features = self.norm(features)
        if self.kind == "classification":
            features = features.mean(dim=1)
        output: Tensor = self.head(features)
        return output

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

    def forward(self, x: Tensor) -> Tensor:
        return self._mix(x + self.dropout(self.ssm(self.norm(x))))

    def step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self.ssm.step(self.norm(x_t), state)  # type: ignore[operator]
        return self._mix(x_t + self.dropout(y)), state

    def _mix(self, x: Tensor) -> Tensor:
        if self.mlp is None:
            return x
        mixed: Tensor = x + self.dropout(self.mlp(x))
        return mixed


class GatedMLP(nn.Module):
    """down(silu(gate(z)) * up(z)) of z = norm(x), without biases (SwiGLU, arXiv 2002.05202)."""

    def __init__(self, d_model: int, d_hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        # gate and up apart: halves of one product are strided, and their backward copies every activation once more
        self.gate = nn.Linear(d_model, d_hidden, bias=False)
        self.up = nn.Linear(d_model, d_hidden, bias=False)
        self.down = nn.Linear(d_hidden, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(x)
        out: Tensor = self.down(functional.silu(self.gate(z)) * self.up(z))
        return out
