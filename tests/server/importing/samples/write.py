"""Writes the sample files with the tools themselves. Run it once for each tool, in an environment that has the tool:

    python write.py FOLDER tensorboard|torch|wandb|mlflow|mlflow_folder|trackio|lightning

The committed files were written with tensorboard 2.21.0, torch 2.13.0, wandb 0.31.0, mlflow 3.17.2, trackio 0.43.0 and lightning
2.6.6, in an empty home folder, and compressed by gzip. Afterwards the machine's name was taken out of the names of event files,
and the path of this script out of MLflow's tag `mlflow.source.name`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

NAN, INF = float("nan"), float("inf")
STEPS = [0, 1, 2, 5, 1_000, 2**40]
LOSS = [2.5, NAN, INF, -INF, -0.0, 0.125]
ACCURACY = [0.0, 0.25, 0.5, 0.75, 1.0, 1e-40]
UNICODE = "größe/Ω 模型"
CONFIG = {"lr": 0.001, "layers": 4, "optimizer": "adamw", "fused": True}


def tensorboard(folder: Path) -> None:
    """Scalars as tensors, as Keras and TensorFlow 2 write them; hyperparameters; a histogram."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.histogram.summary_v2 import histogram_pb
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))

    def add(summary: Summary, step: int) -> None:
        writer.add_event(Event(wall_time=1_700_000_000.25, step=step, summary=summary))

    add(hparams_pb(CONFIG), 0)
    for step, loss, accuracy in zip(STEPS, LOSS, ACCURACY, strict=True):
        add(scalar_pb("train_loss", loss), step)
        add(scalar_pb(UNICODE, accuracy), step)
    add(histogram_pb("weights", [1.0, 2.0, 3.0]), 1)
    writer.close()


def torch(folder: Path) -> None:
    """Scalars as simple values, a run that went back to a step, a run in a folder of its own, histogram, image and text."""
    import torch
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder) as writer:
        for step, loss, accuracy in zip(STEPS, LOSS, ACCURACY, strict=True):
            writer.add_scalar("Loss/train", loss, step)
            writer.add_scalar("val/acc", accuracy, step, new_style=True)
        writer.add_scalar(UNICODE, 1.5, -3)
        writer.add_histogram("weights", torch.arange(5.0), 1)
        writer.add_image("image", torch.zeros(1, 2, 2), 1)
        writer.add_text("note", "hello", 1)
        writer.add_scalars("several", {"a": 1.0}, 7)
    with SummaryWriter(folder, purge_step=1_000, filename_suffix=".continued") as writer:
        writer.add_scalar("Loss/train", 0.25, 1_000)


def wandb(folder: Path) -> None:
    """Scalars, nested ones, a histogram, an exit code; and a process that resumed the run."""
    import wandb

    def start(**more: Any) -> Any:
        settings = wandb.Settings(
            console="off",
            disable_git=True,
            save_code=False,
            x_disable_stats=True,
            x_disable_meta=True,
            host="host",
            username="user",
        )
        return wandb.init(project="samples", dir=str(folder), mode="offline", settings=settings, **more)

    with start(id="abcd1234", name="größe 1", config=CONFIG, tags=["a", "Ω"], notes="two\nlines") as run:
        for step, loss, accuracy in zip(STEPS, LOSS, ACCURACY, strict=True):
            run.log({"loss": loss, UNICODE: accuracy, "nested": {"deep": step}}, step=step)
        run.log({"weights": wandb.Histogram([1, 2, 3]), "words": "none"})
        for step in range(2**40 + 1, 2**40 + 201):  # more than one block of the file
            run.log({"loss": step - 2**40}, step=step)
        run.finish(exit_code=3)
    run = start(id="abcd1234", resume="allow")  # another process continues the run
    for step in range(2**40 + 300, 2**40 + 303):
        run.log({"loss": 0.5}, step=step)
    run.finish()


def mlflow(folder: Path) -> None:
    """Four runs: finished, failed, killed and running."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.create_experiment("samples", artifact_location="mlflow-artifacts:/samples")
    _mlflow_runs(mlflow)


def mlflow_folder(folder: Path) -> None:
    """The same runs in the older file store."""
    import mlflow

    mlflow.set_tracking_uri(f"file://{folder}/mlruns")
    mlflow.create_experiment("samples", artifact_location="mlflow-artifacts:/samples")
    _mlflow_runs(mlflow)


def _mlflow_runs(mlflow: Any) -> None:
    mlflow.set_experiment("samples")
    for status in ("FINISHED", "FAILED", "KILLED", "RUNNING"):
        mlflow.start_run(run_name=f"größe {status.lower()}", tags={"team": "Ω", "mlflow.note.content": "a note"})
        mlflow.log_params(CONFIG)
        for step, loss, accuracy in zip(STEPS, LOSS, ACCURACY, strict=True):
            mlflow.log_metric("train_loss", loss, step=step)
            mlflow.log_metric("val/acc", accuracy, step=step)
        mlflow.log_metric("val/acc", 0.5, step=-1)
        if status == "RUNNING":
            mlflow.tracking.fluent._active_run_stack.get().clear()
        else:
            mlflow.end_run(status)


def trackio(folder: Path) -> None:
    """Two runs in a database."""
    os.environ["TRACKIO_DIR"] = str(folder)
    import trackio

    for name in ("größe 1", "second"):
        trackio.init(project="samples", name=name, config=CONFIG, embed=False)
        for step, loss, accuracy in zip(STEPS, LOSS, ACCURACY, strict=True):
            trackio.log({"loss": loss, UNICODE: accuracy, "nested": {"deep": step}, "words": "none"}, step=step)
        trackio.finish()


def lightning(folder: Path) -> None:
    """The CSV file of Lightning's logger."""
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(folder, name="", version="")
    for step, loss, accuracy in zip(STEPS, LOSS, ACCURACY, strict=True):
        logger.log_metrics({"train_loss": loss, "epoch": 0}, step)
        logger.log_metrics({UNICODE: accuracy, "epoch": 0}, step)
    logger.save()


if __name__ == "__main__":
    where = Path(sys.argv[1]).resolve()
    where.mkdir(parents=True, exist_ok=True)
    globals()[sys.argv[2]](where)
