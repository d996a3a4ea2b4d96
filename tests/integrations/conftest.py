"""A tiny language model, its data, and the code blocks of the pages about adapters, whose files lie in the test's folder."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from stablessm.integrations import starting

DOCS = Path(__file__).resolve().parents[2] / "docs" / "watch"
SIZE = {"vocab_size": 16, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "use_cache": False}


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs become files in the folder `runs` of the test."""
    for name in ("STABLESSM_URL", "STABLESSM_TOKEN", "STABLESSM_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STABLESSM_MODE", "offline")
    monkeypatch.setenv("STABLESSM_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(starting, "_said", set())  # each sentence is said once in a process
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


class Lazily:
    """A module that is imported at its first use. Each process of a test run collects all tests, and most run none of these:
    importing transformers' Trainer or Lightning takes seconds."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)


def code_of(page: str) -> str:
    """The first Python block of a page in docs/watch."""
    found = re.search(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def tiny_model() -> nn.Module:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(MambaConfig(**SIZE))


def sequences(count: int, vocabulary: int = 16) -> list[dict[str, Tensor]]:
    made = torch.Generator().manual_seed(1)
    rows = torch.randint(vocabulary, (count, 6), generator=made)
    return [{"input_ids": row, "labels": row} for row in rows]


def loader(count: int) -> DataLoader[Any]:
    return DataLoader(sequences(count), batch_size=4)  # type: ignore[arg-type]


def weights_of(model: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in model.named_parameters() if name.endswith("A_log")]
