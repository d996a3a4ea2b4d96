"""The program of `test_reporting.py`: reports a run whose loss is the number of the step, and notes what was acknowledged.

    python reporting_program.py URL TOKEN ID STEPS FILE

It continues after the last stored step when it is started again. It appends the last acknowledged step to FILE after each post.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import numpy as np

from stablessm_core.report.frames import CONTENT_TYPE, pack
from stablessm_core.report.messages import CatalogueMessage, EndMessage, MetricsMessage, TelemetryMessage, to_bytes
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.series import SCALARS, TRAIN_LOSS, scalar
from stablessm_core.telemetry.sink import Flush

EACH = 3  # steps of a post


def post(url: str, token: str, body: bytes, kind: str, attempt: int = 0) -> dict[str, Any]:
    """The answer; tries again while the server or its database is away."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": kind, "X-Attempt": str(attempt)}
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=20) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise SystemExit(f"{error.code}: {error.read().decode()}") from None
        except (OSError, ValueError, EOFError):
            pass
        time.sleep(0.05)


def main() -> None:
    url, token, name, steps, file = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]
    about = json.dumps({"id": name, "resume": "allow"}).encode()
    run = post(f"{url}/api/ingest/runs", token, about, "application/json")
    records = f"{url}/api/ingest/runs/{run['run_id']}/records"
    noted = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def send(*messages: TelemetryMessage) -> int:
        answer = post(records, token, pack(map(to_bytes, messages)), CONTENT_TYPE, run["attempt"])
        os.write(noted, f"{answer['stored_through']}\n".encode())
        return int(answer["stored_through"])

    send(CatalogueMessage([scalar(TRAIN_LOSS)]))
    step = int(run["next_step"])
    while step <= steps:
        values = np.arange(step, step + EACH, dtype=np.float32)[None]
        flush = Flush([Block(SCALARS, 0, step, 1, values)], [], step + EACH - 1, None)
        metrics = MetricsMessage([step], {"half": [step / 2]})
        step = send(flush, metrics) + 1
    send(EndMessage("finished", "every step is reported"))


if __name__ == "__main__":
    main()
