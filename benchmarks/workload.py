"""Records telemetry at full speed. Measures how long recording blocks the loop, when the values can be read, and how much disk
space the values take.

    python -m benchmarks.workload [--database-url URL ...] [--repeat 3] [--peers] [--write results/workload_cpu.md]

Workload W consists of the loss and 256 ratios (4 layers of 64 eigenvalues), for 2,000 steps as fast as the loop can run. The
loss is NaN in the last quarter. The ratio of one eigenvalue is +Inf at step 11 and -Inf at step 12. One process records through
the recorder, the worker's database sink and the fence of a claimed run (benchmarks/recording.py). `stablessm serve` runs in a
second process. The benchmark process reads over one ordinary HTTP connection. For the rows "full", everything else that the
trainer records is also recorded (weights, coarser and derived levels, norms and rates), and the detectors run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.service import (
    POSTGRES,
    HttpClient,
    free_port,
    new_database,
    recorded_values,
    running,
    serving,
    stored_bytes,
    timed,
)
from stablessm_core.telemetry.typed_arrays import decode

HERE = Path(__file__).parent
STEPS, LAYERS, WIDTH = 2000, peers.LAYERS, peers.WIDTH
FEWER_STEPS = {"mlflow": 300}  # MLflow takes at least 0.1 s per step, so 2,000 steps would take minutes
COLUMNS = {
    "steps": "steps", "mean": "blocked ms/step, mean", "p50": "p50", "p99": "p99", "loop": "loop s", "readable": "readable s",
    "bytes": "bytes/value", "one": "1 series ms", "all": "256 series ms", "size": "MB", "nan": "NaN back", "inf": "+Inf, -Inf as",
}  # fmt: skip


def make_values(steps: int = STEPS) -> np.ndarray:
    """float32 (steps, 1 + 256): the loss, followed by the ratios, which are a log-normal random walk with noise."""
    rng = np.random.default_rng(7)
    walk = rng.normal(-6, 1.5, LAYERS * WIDTH) + np.cumsum(rng.normal(0, 0.05, (steps, LAYERS * WIDTH)), axis=0)
    ratios = np.exp(walk + rng.normal(0, 0.3, walk.shape))
    ratios[10, 0], ratios[11, 0] = np.inf, -np.inf
    loss = 2.3 * np.exp(-np.arange(steps) / 700) + rng.uniform(0, 0.01, steps)
    loss[steps * 3 // 4 :] = np.nan
    return np.column_stack([loss, ratios]).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database-url", action="append", help=f"default: a new SQLite file, and a new database at {POSTGRES}")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peers", action="store_true", help="also trackio and MLflow, installed with pip into --peers-dir")
    parser.add_argument("--peers-dir", type=Path, default=Path(tempfile.gettempdir()) / "stablessm-peers")
    parser.add_argument("--write", type=Path, help="also write the report to this file under benchmarks/")
    options = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {}
    loads, notes = [os.getloadavg()[0]], []
    pythons = {name: peers.interpreter(name, options.peers_dir) for name in peers.PEERS if options.peers}
    with tempfile.TemporaryDirectory(prefix="stablessm-workload-") as folder:
        for turn in range(options.repeat):  # in turns, so that other load on the machine affects all of them
            for url in options.database_url or ["sqlite", POSTGRES]:
                for full in (False, True):
                    engine = "SQLite" if url.startswith("sqlite") else "Postgres"
                    row = ours(url, Path(folder) / f"ours-{engine}-{full}-{turn}", full)
                    results.setdefault(f"StableSSM{', full' if full else ''}, {engine}", []).append(row)
            for name, python in pythons.items():
                if isinstance(python, str):
                    notes.append(f"{name}: {python}.")
                    continue
                steps = FEWER_STEPS.get(name, STEPS)
                row = peer(name, python, Path(folder) / f"{name}-{turn}", steps)
                title = peers.PEERS[name].title.format(version=peers.version(name, python))
                results.setdefault(title + (f", {steps} steps" if steps < STEPS else ""), []).append(row)
            loads.append(os.getloadavg()[0])
    report = render(results, loads, notes, options.repeat)
    print(report)
    if options.write:
        (HERE / options.write).write_text(report, encoding="utf-8")


def ours(url: str, folder: Path, full: bool) -> dict[str, Any]:
    values, truth = save_values(folder, STEPS)
    with new_database(url, folder) as database, serving(database, folder) as server:
        client = HttpClient(server.port, server.token)
        client.post("/api/runs", {"task": {"name": "polynomial_memory"}, "model": {"n_layers": LAYERS, "d_state": WIDTH},
                                  "train": {"steps": STEPS, "on_nonfinite": "continue"}})  # fmt: skip
        before = stored_bytes(database)
        order = {"url": database.url, "data_dir": str(folder), "values": str(values), "full": full}
        recording = start([sys.executable, "-m", "benchmarks.recording", json.dumps(order)], folder)
        series = [f"/api/runs/1/series/{s}?from_step={STEPS}" for s in ("train/loss", f"ssm/{LAYERS - 1}/grad_over_weight")]
        report, readable = wait_readable(recording, lambda: all(client.newest_step(path) == STEPS for path in series))
        if report["dropped"]:
            raise RuntimeError(f"{report['dropped']} steps were dropped")
        heat = [f"/api/runs/1/series/ssm/{i}/grad_over_weight?format=typed" for i in range(LAYERS)]
        one, _ = timed(lambda: client.get("/api/runs/1/series/ssm/0/grad_over_weight?eigenvalues=37"), 15)
        whole, bodies = timed(lambda: [client.get(path) for path in heat], 15)
        back = np.concatenate([decode(json.loads(body)["value"]) for body in bodies], axis=1)
        loss = json.loads(client.get("/api/runs/1/series/train/loss"))["value"]
        first = json.loads(client.get("/api/runs/1/series/ssm/0/grad_over_weight?eigenvalues=0"))["value"]
        if not np.array_equal(back.view(np.uint32), truth[:, 1:].view(np.uint32)):
            raise RuntimeError("the heatmap is not what was recorded")
        held, recorded = stored_bytes(database) - before, recorded_values(database)
    return statistics_of(report) | {
        "steps": STEPS, "readable": readable, "bytes": held / recorded, "one": one, "all": whole,
        "size": sum(map(len, bodies)) / 1e6, "nan": f"{loss.count('NaN')}/{STEPS // 4}",
        "inf": ", ".join(map(str, np.ravel(first[10:12]))),
    }  # fmt: skip


def peer(name: str, python: Path, folder: Path, steps: int) -> dict[str, Any]:
    values, _ = save_values(folder, steps)
    driven = peers.PEERS[name](folder, free_port())
    with running(driven.server(python), folder, driven.port, driven.environment):
        driven.prepare()
        before = driven.bytes_stored()
        command = [str(python), str(HERE / "peers.py"), name, "--folder", str(folder), "--port", str(driven.port)]
        recording = start([*command, "--values", str(values), "--steps", str(steps)], folder, driven.environment)
        report, readable = wait_readable(recording, lambda: driven.newest() >= steps, limit=1800)
        time.sleep(1)
        held = driven.bytes_stored() - before
        one, _ = timed(lambda: driven.one(peers.KEYS[37]), 5)
        whole, (_, size) = timed(driven.all, 1)
        nan = [value for value in driven.one("loss") if peers.is_nan(value)]
        inf = driven.one(peers.KEYS[0])[10:12]
    return statistics_of(report) | {
        "steps": steps, "readable": readable, "bytes": held / (steps * LAYERS * WIDTH), "one": one, "all": whole,
        "size": size / 1e6, "nan": f"{len(nan)}/{steps // 4}", "inf": ", ".join(map(str, inf)),
    }  # fmt: skip


def save_values(folder: Path, steps: int) -> tuple[Path, np.ndarray]:
    """Write the workload to a file in a new folder. Returns the path and the values."""
    folder.mkdir()
    values = make_values(steps)
    np.save(folder / "values.npy", values)
    return folder / "values.npy", values


def statistics_of(report: dict[str, Any]) -> dict[str, Any]:
    ms = np.sort(np.array(report["blocked"])) * 1e3
    return {"mean": ms.mean(), "p50": ms[len(ms) // 2], "p99": ms[int(0.99 * len(ms))], "loop": report["loop_s"]}


def wait_readable(
    recording: subprocess.Popen[str], arrived: Callable[[], bool], limit: float = 120
) -> tuple[dict[str, Any], float]:
    """The report of the recording process, and the time from its first record until all values are readable, in seconds."""
    deadline, seen = time.time() + limit, 0.0
    while not seen and time.time() < deadline:
        if arrived():
            seen = time.time()
        elif recording.poll():
            raise RuntimeError(f"the recording process ended with {recording.returncode}")
        time.sleep(0.01)
    output, _ = recording.communicate(timeout=limit)
    if not seen:
        raise TimeoutError(f"the last step was not readable within {limit:g} s")
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report, seen - report["started"]


def start(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    with (folder / "log").open("a") as log:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)


def render(results: dict[str, list[dict[str, Any]]], loads: list[float], notes: list[str], repeat: int) -> str:
    lines = [
        "# Workload W: 257 values a step, 2,000 steps, at full speed",
        "",
        f"`python -m benchmarks.workload {' '.join(sys.argv[1:])}` on {os.cpu_count()} {platform.machine()} cores, Python "
        f"{platform.python_version()}; load average before and after each turn: {', '.join(f'{load:.1f}' for load in loads)}.",
        f"Medians of {repeat} turns. Every turn measures each row once. All processes share the machine.",
        "",
        "| | runs | " + " | ".join(COLUMNS.values()) + " |",
        "| --- |" + " ---: |" * (len(COLUMNS) + 1),
    ]
    for name, rows in results.items():
        cells = []
        for key in COLUMNS:
            found = [row[key] for row in rows]
            cells.append(found[0] if isinstance(found[0], str) else shown(statistics.median(found)))
        lines.append(f"| {name} | {len(rows)} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "- blocked: the time of the call that logs one step. readable: the time from the first call until the last step of the",
        "  loss and of the last series can be read over HTTP. bytes/value: the growth of the database per recorded raw value,",
        "  including coarser levels, alerts and indexes, after its write-ahead log is merged into it.",
        "- 1 series: 2,000 points of one eigenvalue as JSON. 256 series: 2,000 points of every eigenvalue, which StableSSM sends",
        "  in four typed responses. They are compared bit by bit with the recorded values.",
        "- Targets: 0.2 ms blocked; readable after 1.2 s (SQLite), 2.5 s (Postgres); 5 and 7 bytes/value; 15 ms; 120 ms.",
        *(f"- {note}" for note in dict.fromkeys(notes)),
        "",
    ]
    return "\n".join(lines)


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
