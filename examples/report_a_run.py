"""Reports a run to StableSSM with the standard library alone (docs/protocol.md). It fits a slow memory with four eigenvalues.

STABLESSM_URL=http://127.0.0.1:8000 STABLESSM_TOKEN=ssm_... python examples/report_a_run.py
"""

import json, math, os, struct, time, urllib.error, urllib.request, uuid, zlib

URL, TOKEN = os.environ.get("STABLESSM_URL", "http://127.0.0.1:8000"), os.environ["STABLESSM_TOKEN"]
STEPS, TIMES, RATE, JSON, RECORDS = 400, range(32), 0.5, "application/json", "application/vnd.stablessm.records"


def post(path: str, body: bytes, kind: str, attempt: int = 0) -> dict:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind, "X-Attempt": str(attempt)}
    while True:  # a repeated post changes nothing, so it may be sent again after any failure
        try:
            with urllib.request.urlopen(urllib.request.Request(URL + path, body, headers), timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refusal:
            if refusal.code not in (429, 503):
                raise SystemExit(f"{refusal.code}: {refusal.read().decode()}") from None
        except OSError:
            pass  # the server is away
        time.sleep(1)


def frame(head: dict, payload: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    record = struct.pack("<I", len(text)) + text + payload
    return struct.pack("<II", len(record), zlib.crc32(record)) + record


def block(group: str, first: int, columns: list) -> tuple:  # columns: for each column, its number at every step
    payload = b"\0" + b"".join(struct.pack(f"<{len(column)}f", *column) for column in columns)
    return [group, 0, first, 1, [len(columns), len(columns[0])], len(payload)], payload


layer, how = {"name": "memory", "path": "model.memory", "width": 4}, {"optimizer": "sgd", "lr": RATE, "momentum": 0.0, "every": 1}
about = {"id": str(uuid.uuid4()), "project": "examples", "name": "slow memory", "layers": [layer], "how": how, "resume": "allow"}
run = post("/api/ingest/runs", json.dumps(about | {"config": {"kernel": "1/(1+t)^1.1"}, "total_steps": STEPS}).encode(), JSON)
records, attempt = f"/api/ingest/runs/{run['run_id']}/records", run["attempt"]
one, form = {"group": "ssm/0", "width": 4, "unit": "", "meaning": ""}, {"map": "exp", "time": "discrete", "rule": "none"}
series = [one | {"name": f"ssm/0/{kind}", "form": form} for kind in ("grad_over_weight", "weight")]
series += [one | {"name": f"ssm/0/{kind}", "form": form, "derived": True} for kind in ("eigenvalue", "boundary_distance")]
series += [one | {"name": "train/loss", "group": "scalars", "width": 1}]
post(records, frame({"kind": "CatalogueRecord", "series": series}), RECORDS, attempt)
w, rows, end = [-0.5, -1.0, -2.0, -3.0], [], ("finished", "the memory is fitted")  # the eigenvalues are exp(-exp(w))
for step in range(1, STEPS + 1):
    errors = [sum(math.exp(-math.exp(x) * t) for x in w) / 4 - (1 + t) ** -1.1 for t in TIMES]
    gradient = [sum(e * -t * math.exp(x - math.exp(x) * t) for t, e in zip(TIMES, errors)) / 64 for x in w]
    rows.append([sum(e * e for e in errors) / 32] + [abs(g / x) for g, x in zip(gradient, w)] + w)
    w = [x - RATE * g for x, g in zip(w, gradient)]
    if len(rows) == 50:  # one post for 50 steps
        parts = [block(group, step - 49, part) for group, part in (("scalars", [*zip(*rows)][:1]), ("ssm/0", [*zip(*rows)][1:]))]
        head = {"kind": "Flush", "alerts": [], "step": step, "steps_per_second": None, "blocks": [part[0] for part in parts]}
        if post(records, frame(head, parts[0][1] + parts[1][1]), RECORDS, attempt)["stop_requested"]:
            end = "cancelled", "stopped on request"
            break
        rows = []
post(records, frame({"kind": "EndRecord", "status": end[0], "reason": end[1]}), RECORDS, attempt)
print(URL + run["url"])
