"""Trains a tiny Mamba with Lightning on the text of Shakespeare, and watches its eigenvalues.

STABLESSM_DATA=shared/data python examples/watch_lightning.py
With STABLESSM_URL and STABLESSM_TOKEN the run is sent to a server while it trains; otherwise it becomes a file.
"""

import lzma
import os
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader
from transformers import MambaConfig, MambaForCausalLM

from stablessm.integrations.lightning import StableSSMLogger

STEPS, LENGTH = 60, 24
text = lzma.decompress(
    (Path(os.environ.get("STABLESSM_DATA", "../shared/data")) / "tinyshakespeare" / "input.txt.xz").read_bytes()
)[: 300 * LENGTH]
pieces = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().view(-1, LENGTH)


class LanguageModel(lightning.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        config = MambaConfig(vocab_size=256, hidden_size=32, state_size=8, num_hidden_layers=2, use_cache=False)
        self.model = MambaForCausalLM(config)

    def training_step(self, tokens, index):
        return self.model(tokens, labels=tokens).loss

    def validation_step(self, tokens, index):
        self.log("val/loss", self.model(tokens, labels=tokens).loss)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


watch = StableSSMLogger(project="examples", name="mamba, Lightning")
trainer = lightning.Trainer(
    max_steps=STEPS,
    val_check_interval=20,
    gradient_clip_val=1.0,
    logger=watch,
    callbacks=[watch.callback],
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(LanguageModel(lr=3e-3), DataLoader(pieces[16:], batch_size=4, shuffle=True), DataLoader(pieces[:16], batch_size=16))
print(watch.run.url or watch.run.path)
