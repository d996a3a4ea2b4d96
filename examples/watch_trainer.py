"""Trains a tiny Mamba with transformers' Trainer on the text of Shakespeare, and watches its eigenvalues.

STABLESSM_DATA=shared/data python examples/watch_trainer.py
With STABLESSM_URL and STABLESSM_TOKEN the run is sent to a server while it trains; otherwise it becomes a file.
"""

import lzma
import os
import tempfile
from pathlib import Path

import torch
from transformers import MambaConfig, MambaForCausalLM, Trainer, TrainingArguments

from stablessm.integrations.transformers import StableSSMCallback

STEPS, LENGTH = 60, 24
text = lzma.decompress(
    (Path(os.environ.get("STABLESSM_DATA", "../shared/data")) / "tinyshakespeare" / "input.txt.xz").read_bytes()
)[: 300 * LENGTH]
pieces = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().view(-1, LENGTH)
examples = [{"input_ids": piece, "labels": piece} for piece in pieces]

model = MambaForCausalLM(MambaConfig(vocab_size=256, hidden_size=32, state_size=8, num_hidden_layers=2, use_cache=False))
callback = StableSSMCallback(project="examples", name="mamba, Trainer")
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        learning_rate=3e-3,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=20,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=examples[16:], eval_dataset=examples[:16], callbacks=[callback]).train()
print(callback.run.url or callback.run.path)
