"""Trains a tiny Mamba of transformers on the text of Shakespeare in a plain loop, and watches its eigenvalues.

STABLESSM_DATA=shared/data python examples/watch_mamba.py
With STABLESSM_URL and STABLESSM_TOKEN the run is sent to a server while it trains; otherwise it becomes a file.
"""

import lzma
import os
from pathlib import Path

import torch
from transformers import MambaConfig, MambaForCausalLM

import stablessm

STEPS, LENGTH = 60, 24
text = lzma.decompress(
    (Path(os.environ.get("STABLESSM_DATA", "../shared/data")) / "tinyshakespeare" / "input.txt.xz").read_bytes()
)
data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def batch(size=4):
    starts = torch.randint(len(data) - LENGTH, (size,)).tolist()
    return torch.stack([data[start : start + LENGTH] for start in starts])


torch.manual_seed(0)
config = MambaConfig(vocab_size=256, hidden_size=32, state_size=8, num_hidden_layers=2, use_cache=False)
model = MambaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
about = {"project": "examples", "name": "mamba, plain loop", "config": config.to_dict(), "total_steps": STEPS}
with stablessm.watch(model, optimizer, **about) as run:
    for step in range(1, STEPS + 1):
        tokens = batch()
        loss = model(tokens, labels=tokens).loss
        run.loss(loss)
        loss.backward()
        run.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            with torch.no_grad():
                held_out = batch()
                run.log({"val/loss": model(held_out, labels=held_out).loss})
        if run.should_stop:
            break
print(run.url or run.path)
