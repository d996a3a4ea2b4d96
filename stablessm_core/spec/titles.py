"""Names of settings for the headers of tables and the axes of charts: "learning rate" for "optimizer.lr"."""

from __future__ import annotations

TITLES = {
    "model.layer": "layer",
    "model.layers": "layers",
    "model.n_layers": "number of layers",
    "model.reparameterization.name": "map",
    "model.d_state": "state size",
    "model.d_model": "model width",
    "optimizer.lr": "learning rate",
    "optimizer.recurrent_lr": "recurrent learning rate",
    "train.clip_norm": "clipping norm",
}


def setting_title(path: str) -> str:
    """The name of a setting: from TITLES, or the last part of its path."""
    return TITLES.get(path) or path.removesuffix(".name").split(".")[-1].replace("_", " ")
