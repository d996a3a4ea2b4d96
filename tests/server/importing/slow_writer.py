"""A program that writes logs as training programs do, and flushes in the middle of lines and records.

Arguments: the folder, the kind of log, the number of steps.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.server.importing.reading import write_events

META = "artifact_uri: x\nlifecycle_stage: active\nrun_id: {}\nrun_name: live\nstatus: 1\nstart_time: 1700000000000\n"


def lines_of(kind: str, step: int) -> bytes:
    """What the program writes at this step."""
    if kind == "csv":
        return f"{step},{step / 4}\n".encode()
    if kind == "mlflow":
        return f"{1_700_000_000_000 + step} {step / 4} {step}\n".encode()
    return f'{{"step": {step}, "loss": {step / 4}}}\n'.encode()


def main(folder: Path, kind: str, steps: int) -> None:
    path = {"mlflow": folder / "run" / "metrics" / "loss", "events": folder / "live" / "events.out.tfevents.1.h.2.v2"}.get(
        kind, folder / f"log.{kind}"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "mlflow":
        (folder / "run" / "meta.yaml").write_text(META.format("7" * 32))
    written = [b"step,loss\n"] if kind == "csv" else []
    if kind == "events":
        whole = write_events(path, [(step, step / 4) for step in range(steps)]).read_bytes()
        path.write_bytes(b"")
        written = [whole[i : i + 33] for i in range(0, len(whole), 33)]
    else:
        written += [lines_of(kind, step) for step in range(steps)]
    with path.open("ab", buffering=0) as file:
        for part in written:
            for piece in (part[: len(part) // 2], part[len(part) // 2 :]):
                file.write(piece)
                time.sleep(0.01)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
