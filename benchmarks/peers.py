"""Runs the same workload with other experiment trackers (peers), through their ordinary clients and servers. Each peer has its
own environment.

`benchmarks.workload` imports this module. It also runs this module with the peer's own interpreter, as the logging process:

    PEER_PYTHON benchmarks/peers.py trackio|mlflow --folder F --port P --values FILE --steps N
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

LAYERS, WIDTH = 4, 64
KEYS = [f"gow/layer{j // WIDTH}/{j % WIDTH:03d}" for j in range(LAYERS * WIDTH)]


class Trackio:
    """Trackio: `trackio.log(dict)` writes to a local SQLite file, which the server of Trackio's dashboard reads."""

    package, title = "trackio", "trackio {version}"

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.environment = os.environ | {
            "TRACKIO_DIR": str(folder / "trackio"), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1", "GRADIO_ANALYTICS_ENABLED": "False", "TRACKIO_WRITE_TOKEN": "benchmark",
        }  # fmt: skip

    def server(self, python: Path) -> list[str]:
        options = f"open_browser=False, block_thread=True, host='127.0.0.1', share=False, server_port={self.port}"
        return [str(python), "-c", f"import trackio; trackio.show({options})"]

    def open(self) -> None:
        os.environ.update(self.environment)
        import trackio  # type: ignore[import-not-found, unused-ignore]

        self.client = trackio
        trackio.init(project="w", name="run", embed=False, auto_log_gpu=False)

    def log(self, step: int, values: list[float], loss: float) -> None:
        self.client.log(dict(zip(KEYS, values, strict=True)) | {"loss": loss}, step=step)

    def close(self) -> None:
        self.client.finish()

    def prepare(self) -> None:
        pass

    def newest(self) -> int:
        summary = self._call("get_project_summary", project="w")[0]
        last = summary.get("last_activity") if summary else None
        return -1 if last is None else int(last)

    def one(self, key: str) -> list[Any]:
        found = self._call("get_metric_values", project="w", run="run", metric_name=key)[0]
        return [point["value"] for point in sorted(found, key=lambda p: p["step"])]

    def all(self) -> tuple[int, int]:
        logs, size = self._call("get_logs_batch", project="w", runs=[{"run": "run"}], max_points=3000, scalar_only=True)
        return sum(key in row for row in logs[0]["logs"] for key in KEYS), size

    def bytes_stored(self) -> int:
        import sqlite3

        files = list((self.folder / "trackio").glob("*.db"))
        for file in files:
            with sqlite3.connect(file) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return sum(file.stat().st_size for path in files for file in self.folder.glob(f"trackio/{path.name}*"))

    def _call(self, name: str, **arguments: Any) -> tuple[Any, int]:
        body = post(f"http://127.0.0.1:{self.port}/api/{name}", arguments)
        answer = json.loads(body)
        return (answer["data"] if isinstance(answer, dict) and "data" in answer else answer), len(body)


class MLflow:
    """MLflow: `log_batch` sends 257 metrics to `mlflow server` on SQLite. The server uses one process instead of the default
    four, which are too slow on two cores.
    """

    package, title = "mlflow", "MLflow {version}, server of 1 process, SQLite"

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}

    def server(self, python: Path) -> list[str]:
        store = [
            "--backend-store-uri",
            f"sqlite:///{self.folder}/mlflow.db",
            "--artifacts-destination",
            str(self.folder / "files"),
        ]
        return [str(python), "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(self.port), *store]

    def open(self) -> None:
        os.environ.update(self.environment)
        from mlflow import MlflowClient  # type: ignore[import-not-found, unused-ignore]
        from mlflow.entities import Metric  # type: ignore[import-not-found, unused-ignore]

        self.metric, self.client = Metric, MlflowClient(f"http://127.0.0.1:{self.port}")
        self.run_id = (self.folder / "run").read_text()

    def log(self, step: int, values: list[float], loss: float) -> None:
        now = int(time.time() * 1000)
        metrics = [self.metric(key, value, now, step) for key, value in zip(KEYS, values, strict=True)]
        self.client.log_batch(self.run_id, metrics=[*metrics, self.metric("loss", loss, now, step)])

    def close(self) -> None:
        self.client.set_terminated(self.run_id)

    def prepare(self) -> None:
        experiment = self._post("experiments/create", name="w")["experiment_id"]
        run = self._post("runs/create", experiment_id=experiment)["run"]["info"]["run_id"]
        (self.folder / "run").write_text(run)

    def newest(self) -> int:
        run = json.loads(self._get("runs/get")[0])["run"]["data"]
        last = {m["key"]: int(m.get("step", 0)) for m in run.get("metrics", []) if m["key"] in ("loss", KEYS[-1])}
        return min(last.values()) if len(last) == 2 else -1

    def one(self, key: str) -> list[Any]:
        body, _ = self._get("metrics/get-history", metric_key=key, max_results=25_000)
        return [m["value"] for m in sorted(json.loads(body).get("metrics", []), key=lambda m: int(m.get("step", 0)))]

    def all(self) -> tuple[int, int]:
        points = size = 0
        for key in KEYS:  # MLflow has no call that returns several series of a run
            body, n = self._get("metrics/get-history", metric_key=key, max_results=25_000)
            points, size = points + len(json.loads(body).get("metrics", [])), size + n
        return points, size

    def bytes_stored(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("mlflow.db*"))

    def _get(self, path: str, **arguments: Any) -> tuple[bytes, int]:
        query = urllib.parse.urlencode({"run_id": (self.folder / "run").read_text(), **arguments})
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/2.0/mlflow/{path}?{query}", timeout=120) as answer:
            body = answer.read()
        return body, len(body)

    def _post(self, path: str, **arguments: Any) -> Any:
        return json.loads(post(f"http://127.0.0.1:{self.port}/api/2.0/mlflow/{path}", arguments))


PEERS: dict[str, type[Trackio] | type[MLflow]] = {"trackio": Trackio, "mlflow": MLflow}


def is_nan(value: Any) -> bool:
    """True for NaN as a number or as a string, False for None."""
    return str(value).lower() == "nan"


def post(url: str, arguments: dict[str, Any]) -> bytes:
    request = urllib.request.Request(url, json.dumps(arguments).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        body: bytes = answer.read()
    return body


def interpreter(name: str, home: Path) -> Path | str:
    """The Python interpreter of an environment with this peer, or the reason why the installation failed. The first call
    creates the environment."""
    python = home / name / "bin" / "python"
    if not (home / name / "installed").exists():
        made = subprocess.run([sys.executable, "-m", "venv", str(home / name)], capture_output=True, text=True)
        if made.returncode == 0:
            made = subprocess.run(
                [str(python), "-m", "pip", "install", "-q", PEERS[name].package], capture_output=True, text=True
            )
        if made.returncode != 0:
            return f"absent: {(made.stderr.strip().splitlines() or ['cannot be installed'])[-1][:120]}"
        (home / name / "installed").touch()
    return python


def version(name: str, python: Path) -> str:
    code = f"from importlib.metadata import version; print(version({PEERS[name].package!r}))"
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def record() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=PEERS)
    for name in ("folder", "values"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("port", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    peer = PEERS[options.peer](options.folder, options.port)
    data = np.load(options.values)
    rows, losses = data[: options.steps, 1:].tolist(), data[: options.steps, 0].tolist()
    peer.open()
    blocked, started = [], time.time()
    for step, (row, loss) in enumerate(zip(rows, losses, strict=True), start=1):
        at = time.perf_counter()
        peer.log(step, row, loss)
        blocked.append(time.perf_counter() - at)
    looped = time.time()
    peer.close()
    print(json.dumps({"started": started, "loop_s": looped - started, "blocked": blocked}))


if __name__ == "__main__":
    record()
