"""One run's telemetry at full speed: how long the loop is held up, when it can be read, what it costs on disk.

    python -m benchmarks.workload [--database-url URL ...] [--repeat 3] [--peers] [--write results/workload_cpu.md]

Workload W: 4 layers of 64 eigenvalues and the loss, 2,000 steps, as fast as the loop goes; the loss is NaN in the last quarter,
one eigenvalue is +Inf at step 11 and -Inf at 12. One process records through the recorder, the worker's database sink and the
fence of a claimed run (benchmarks/recording.py); `stablessm serve` answers in another; this one asks over one ordinary HTTP
connection. "full" records what the trainer does: weights beside the ratios, coarser and derived levels, norms, rates, detectors.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from sqlalchemy import make_url, text

from benchmarks import peers
from server.database.connection import Database
from stablessm_core.typed_arrays import decode

HERE = Path(__file__).parent
STEPS, LAYERS, WIDTH = 2000, peers.LAYERS, peers.WIDTH
POSTGRES = "postgresql+psycopg://127.0.0.1:5432/postgres"
FEWER_STEPS = {"mlflow": 300}  # at 0.1 s and more a step, 2,000 of them take minutes
COLUMNS = {
    "steps": "steps", "mean": "blocked ms/step, mean", "p50": "p50", "p99": "p99", "loop": "loop s", "readable": "readable s",
    "bytes": "bytes/value", "one": "1 series ms", "all": "256 series ms", "size": "MB", "nan": "NaN back", "inf": "+Inf, -Inf as",
}  # fmt: skip


def make_values(steps: int = STEPS) -> np.ndarray:
    """float32 (steps, 1 + 256): the loss, then the ratios, a log-normal walk with noise."""
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
        for turn in range(options.repeat):  # turn by turn: a busy moment of the machine must not meet one of them alone
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
    with own_database(url, folder) as url:
        database = Database(url)
        database.migrate()
        port = free_port()
        with running(server_command(folder, url, port), folder, port):
            client = Client(port, (folder / "token").read_text().strip())
            client.post("/api/runs", {"task": {"name": "polynomial_memory"}, "model": {"n_layers": LAYERS, "d_state": WIDTH},
                                      "train": {"steps": STEPS, "on_nonfinite": "continue"}})  # fmt: skip
            before = stored_bytes(database)
            order = {"url": url, "data_dir": str(folder), "values": str(values), "full": full}
            recording = start([sys.executable, "-m", "benchmarks.recording", json.dumps(order)], folder)
            series = [f"/api/runs/1/series/{s}?from_step={STEPS}" for s in ("train/loss", f"ssm/{LAYERS - 1}/grad_over_weight")]
            told, readable = wait_readable(recording, lambda: all(client.newest(path) == STEPS for path in series))
            if told["dropped"]:
                raise RuntimeError(f"{told['dropped']} steps were dropped")
            heat = [f"/api/runs/1/series/ssm/{i}/grad_over_weight?format=typed" for i in range(LAYERS)]
            one, _ = timed(lambda: client.get("/api/runs/1/series/ssm/0/grad_over_weight?eigenvalues=37"), 15)
            whole, bodies = timed(lambda: [client.get(path) for path in heat], 15)
            back = np.concatenate([decode(json.loads(body)["value"]) for body in bodies], axis=1)
            loss = json.loads(client.get("/api/runs/1/series/train/loss"))["value"]
            first = json.loads(client.get("/api/runs/1/series/ssm/0/grad_over_weight?eigenvalues=0"))["value"]
            if not np.array_equal(back.view(np.uint32), truth[:, 1:].view(np.uint32)):
                raise RuntimeError("the heatmap is not what was recorded")
            held, recorded = stored_bytes(database) - before, recorded_values(database)
        database.close()
    return statistics_of(told) | {
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
        told, readable = wait_readable(recording, lambda: driven.newest() >= steps, limit=1800)
        time.sleep(1)
        held = driven.bytes_stored() - before
        one, _ = timed(lambda: driven.one(peers.KEYS[37]), 5)
        whole, (_, size) = timed(driven.all, 1)
        nan = [value for value in driven.one("loss") if peers.is_nan(value)]
        inf = driven.one(peers.KEYS[0])[10:12]
    return statistics_of(told) | {
        "steps": steps, "readable": readable, "bytes": held / (steps * LAYERS * WIDTH), "one": one, "all": whole,
        "size": size / 1e6, "nan": f"{len(nan)}/{steps // 4}", "inf": ", ".join(map(str, inf)),
    }  # fmt: skip


def save_values(folder: Path, steps: int) -> tuple[Path, np.ndarray]:
    """A new folder with the workload in it."""
    folder.mkdir()
    values = make_values(steps)
    np.save(folder / "values.npy", values)
    return folder / "values.npy", values


def statistics_of(told: dict[str, Any]) -> dict[str, Any]:
    ms = np.sort(np.array(told["blocked"])) * 1e3
    return {"mean": ms.mean(), "p50": ms[len(ms) // 2], "p99": ms[int(0.99 * len(ms))], "loop": told["loop_s"]}


def wait_readable(
    recording: subprocess.Popen[str], arrived: Callable[[], bool], limit: float = 120
) -> tuple[dict[str, Any], float]:
    """What the recording process says, and the seconds from its first call until all of it could be read."""
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
    told: dict[str, Any] = json.loads(output.splitlines()[-1])
    return told, seen - told["started"]


def timed(ask: Callable[[], Any], times: int) -> tuple[float, Any]:
    """Median milliseconds, the first call left out; and the last answer."""
    answer, spent = ask(), []
    for _ in range(times):
        at = time.perf_counter()
        answer = ask()
        spent.append((time.perf_counter() - at) * 1e3)
    return statistics.median(spent), answer


class Client:
    """One kept-alive connection of an ordinary client."""

    def __init__(self, port: int, token: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def get(self, path: str) -> bytes:
        return self._good(*self._ask("GET", path, None))

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        return self._good(*self._ask("POST", path, json.dumps(body)))

    @staticmethod
    def _good(status: int, data: bytes) -> bytes:
        if status >= 400:
            raise RuntimeError(f"{status} {data[:300]!r}")
        return data

    def newest(self, path: str) -> int:
        """Last step of the answer, 0 while there is none."""
        status, data = self._ask("GET", path, None)
        return (json.loads(data).get("step") or [0])[-1] if status == 200 else 0

    def _ask(self, method: str, path: str, body: str | None) -> tuple[int, bytes]:
        try:
            self.connection.request(method, path, body, self.headers)
            answer = self.connection.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError):  # kept alive for some seconds only
            self.connection.close()
            self.connection.request(method, path, body, self.headers)
            answer = self.connection.getresponse()
        return answer.status, answer.read()


@contextlib.contextmanager
def own_database(url: str, folder: Path) -> Iterator[str]:
    """URL of a new database beside the one given."""
    if url.startswith("sqlite"):
        yield f"sqlite:///{folder / 'stablessm.db'}"
        return
    name, parsed = f"stablessm_workload_{secrets.token_hex(4)}", make_url(url)
    admin = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(admin, autocommit=True) as server:
        server.execute(f'CREATE DATABASE "{name}"')
        try:
            yield parsed.set(database=name).render_as_string(hide_password=False)
        finally:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def stored_bytes(database: Database) -> int:
    """Bytes of the database, everything written back from logs."""
    if database.path is not None:
        with database.write() as session:
            session.connection().exec_driver_sql("SELECT 1")
        with contextlib.closing(database.engine.raw_connection()) as connection:
            connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return sum(file.stat().st_size for file in database.path.parent.glob(f"{database.path.name}*") if "-shm" not in file.name)
    with database.read() as session:
        return int(session.scalar(text("SELECT pg_database_size(current_database())")) or 0)


def recorded_values(database: Database) -> int:
    """Numbers recorded (raw ones; coarser levels are their cost)."""
    with database.read() as session:
        return int(session.scalar(text("SELECT sum(point_count * column_count) FROM blocks WHERE level = 0")) or 0)


def server_command(folder: Path, url: str, port: int) -> list[str]:
    command = [str(Path(sys.executable).with_name("stablessm")), "serve", "--port", str(port)]
    return [*command, "--data-dir", str(folder), "--database-url", url]


def start(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    with (folder / "log").open("a") as log:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)


@contextlib.contextmanager
def running(command: list[str], folder: Path, port: int, environment: dict[str, str] | None = None) -> Iterator[None]:
    """A server that answers on `port`, ended afterwards with all its processes."""
    with (folder / "server.log").open("a") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        for _ in range(1200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if server.poll() is not None:
                raise RuntimeError(f"{command[0]} ended: {(folder / 'server.log').read_text()[-500:]}")
            time.sleep(0.1)
        yield
    finally:
        for sign in (15, 9):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(10)
                break


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def render(results: dict[str, list[dict[str, Any]]], loads: list[float], notes: list[str], repeat: int) -> str:
    lines = [
        "# Workload W: 257 values a step, 2,000 steps, at full speed",
        "",
        f"`python -m benchmarks.workload {' '.join(sys.argv[1:])}` on {os.cpu_count()} {platform.machine()} cores, Python "
        f"{platform.python_version()}; load average before and after each turn: {', '.join(f'{load:.1f}' for load in loads)}.",
        f"Medians of {repeat} turns; every turn runs each row once. Times are of processes that share the machine.",
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
        "- blocked: inside the call that logs one step. readable: from the first call until the last step of the loss and of the",
        "  last series can be read over HTTP. bytes/value: growth of the database after everything is written back from its log,",
        "  coarser levels, alerts and indexes included, over the raw values recorded.",
        "- 1 series: 2,000 points of one eigenvalue as JSON. 256 series: all of them, 2,000 points each; here four typed",
        "  answers, compared bit by bit with what was recorded.",
        "- Targets: 0.2 ms blocked; readable after 1.2 s (SQLite), 2.5 s (Postgres); 5 and 7 bytes/value; 15 ms; 120 ms.",
        *(f"- {note}" for note in dict.fromkeys(notes)),
        "",
    ]
    return "\n".join(lines)


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
