"""Tiny modules for Lightning that note what happens to them, and their training. Importing this module imports Lightning."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import Tensor, nn

from stablessm.integrations.lightning import StableSSMLogger
from tests.integrations.conftest import loader, tiny_model, weights_of
from tests.integrations.reference import Steps

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


class Module(lightning.LightningModule):
    """A tiny Mamba that notes the raw gradients and the losses of its steps."""

    def __init__(self, raises: type[BaseException] | None = None) -> None:
        super().__init__()
        self.model, self.raises = tiny_model(), raises
        self.weights: Steps = []
        self.gradients: Steps = []
        self.losses: list[Tensor] = []

    def training_step(self, batch: Any, index: int) -> Tensor:
        if self.raises is not None and self.global_step == 4:
            raise self.raises("out of memory")
        loss = self.model(**batch).loss
        self.losses.append(loss.detach().clone())
        self.log("train_loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.weights.append([p.detach().clone() for p in weights_of(self.model)])
        self.gradients.append([p.grad.detach().clone() for p in weights_of(self.model)])  # type: ignore[union-attr]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def trained(module: lightning.LightningModule, watch: StableSSMLogger, **arguments: Any) -> lightning.Trainer:
    given = {"max_steps": 6, "log_every_n_steps": 1, "logger": watch, "callbacks": [watch.callback]} | QUIET | arguments
    trainer = lightning.Trainer(**given)
    trainer.fit(module, loader(96))
    return trainer


class Manual(Module):
    """Manual optimization with two optimizers and clipping by the module."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:
        optimizer, other = self.optimizers()
        optimizer.zero_grad()
        other.zero_grad()
        loss = self.model(**batch).loss
        self.losses.append(loss.detach().clone())
        self.manual_backward(loss)
        nn.utils.clip_grad_norm_(self.parameters(), 1e-3)
        optimizer.step()
        other.step()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if len(optimizer.param_groups[0]["params"]) == 2:
            super().on_before_optimizer_step(optimizer)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:  # type: ignore[override]
        watched = {id(p) for p in weights_of(self.model)}
        rest = [p for p in self.parameters() if id(p) not in watched]
        return [torch.optim.SGD(weights_of(self.model), lr=1e-2), torch.optim.AdamW(rest, lr=1e-2)]


class Lbfgs(Module):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.parameters(), lr=1e-2, max_iter=3)


class Scaled(lightning.pytorch.plugins.precision.MixedPrecision):
    """Lightning's precision with a real gradient scaler, on the CPU and in float32."""

    def __init__(self) -> None:
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))

    def autocast_context_manager(self) -> torch.autocast:
        return torch.autocast("cpu", enabled=False)


class Overflows(Module):
    def on_after_backward(self) -> None:
        if self.global_step == 2 and not self.gradients[2:]:
            weights_of(self.model)[0].grad[0, 0] = float("inf")  # type: ignore[index]
