"""Wait for the autopsies of a study's diverged runs, and judge what each autopsy measured about the death of its run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from stablessm_core.client import ApiError
from studies.progress import left

if TYPE_CHECKING:
    from stablessm_core.client import Client

POLL_SECONDS = 1.0
REPORT_SECONDS = 15.0
LARGEST = 3.4028234663852886e38  # of float32
ROOT = math.sqrt(LARGEST)  # 1.8e19: norms, the loss and the recorder square their inputs
KINDS = ("dynamics", "range", "arithmetic", "unknown")


@dataclass(frozen=True)
class Death:
    """What the autopsy of a diverged run measured.

    step: the fatal step. kind: see `kind_of`. place: where the first non-finite result was made.
    frozen, other, tenth: whether the run lives from before the trouble on with its recurrence frozen, with another map, or at a
        tenth of its learning rates; None if this was not tried to the end.
    other_map: the name of the other map: `best`, if every eigenvalue can be reached with it. "" if there is none.
    reason: why there is no result; "" if there is one.
    """

    step: int
    kind: str
    place: str
    frozen: bool | None
    other: bool | None
    tenth: bool | None
    other_map: str = ""
    reason: str = ""


def wait_for_autopsies(client: Client, run_ids: Sequence[int], report: Callable[[str], None]) -> dict[int, dict[str, Any]]:
    """The answer about the autopsy of each of these diverged runs, once every autopsy has ended. `report` receives progress.

    The autopsies are asked for, so they go before others. A run that has no autopsy gets one, unless the server allows none.
    """
    ended: dict[int, dict[str, Any]] = {}
    asked: set[int] = set()
    started = reported_at = time.monotonic()
    while True:
        for run_id in run_ids:
            if run_id in ended:
                continue
            answer = _ended(client, run_id, ask=run_id not in asked)
            asked.add(run_id)
            if answer is not None:
                ended[run_id] = answer
            elif len(asked) == len(run_ids):
                break  # all are asked for, and they end in this order, more or less
        waiting, now = len(run_ids) - len(ended), time.monotonic()
        if now - reported_at > REPORT_SECONDS or not waiting:
            reported_at = now
            report(f"{len(ended):,} of {len(run_ids):,} deaths repeated in float64" + left(len(ended), waiting, now - started))
        if not waiting:
            return ended
        time.sleep(POLL_SECONDS)


def _ended(client: Client, run_id: int, ask: bool) -> dict[str, Any] | None:
    """The answer about an autopsy; None if it has not ended. ask: ask for it, so that it starts at once."""
    answer = client.autopsy(run_id)
    if answer["state"] == "none" or (ask and answer["state"] == "queued"):
        try:
            answer = client.request_autopsy(run_id)
        except ApiError as error:
            if error.status != 409:  # it has begun in the meantime
                return answer | {"state": "failed", "reason": str(error)}
    return None if answer["state"] in ("queued", "running") else answer


def death_of(answer: Mapping[str, Any]) -> Death:
    """The death that this answer of GET /api/runs/{id}/autopsy describes."""
    reason = None
    if answer["state"] == "off":
        reason = "the server allows no autopsies"
    elif answer["state"] != "done":
        reason = answer["reason"] or f"the autopsy is {answer['state']}"
    elif answer["refused"] is not None:
        reason = answer["refused"]
    if reason is not None:
        return Death(int(answer.get("step") or 0), "unknown", "unknown", None, None, None, reason=reason)
    lives, entries = trials_of(answer)
    return Death(
        step=int(answer["step"]),
        kind=kind_of(answer),
        place=place_of(answer["first_nonfinite"]),
        frozen=lives.get("recurrence_frozen"),
        other=lives.get("other_map"),
        tenth=lives.get("tenth_of_rate"),
        other_map=str(entries.get("other_map", {}).get("settings", {}).get("model.reparameterization.name", "")),
    )


def trials_of(answer: Mapping[str, Any]) -> tuple[dict[str, bool | None], dict[str, Mapping[str, Any]]]:
    """For each change: whether the run lives, and the whole entry.

    If the trials are not comparable with the run, for example because the unchanged control did not die, they say nothing, and
    all are None.
    """
    entries = {entry["change"]: entry for entry in answer["counterfactuals"] or ()}
    comparable = (entries.get("unchanged") or {}).get("lives") is not True
    comparable &= all(entry.get("comparable") is not False for entry in entries.values())
    return {change: entry["lives"] if comparable else None for change, entry in entries.items()}, entries


def kind_of(answer: Mapping[str, Any]) -> str:
    """Why the fatal step is not finite, from its repeat in float64.

    - "dynamics": it is not finite in float64 either.
    - "range": it is finite in float64, but a number does not fit float32: a result is beyond 3.4e38, or what a norm or the loss
      squares is beyond 1.8e19. So is a weight or gradient, if only the recorder's square of it overflows.
    - "arithmetic": it is finite in float64, and all these numbers fit.
    - "unknown": there is no complete repeat in float64.
    """
    wide = answer["float64"]
    if wide is None or wide["narrow"]:
        return "unknown"
    if not wide["finite"]:
        return "dynamics"
    largest = float(wide["largest"])
    if not largest < LARGEST:
        return "range"
    first = answer["first_nonfinite"]
    if first is None:
        return "range" if largest > ROOT else "unknown"
    squared = _squared(answer["modules"])
    if "norm" in first["operation"]:  # also a norm that is no module of its own, in a layer
        squared.append(min(float(first["largest_input"] or 0.0), largest))
    return "range" if max(squared, default=0.0) > ROOT else "arithmetic"


def _squared(modules: Sequence[Mapping[str, Any]]) -> list[float]:
    """The largest magnitude, in float64, that each norm and the loss receive: the result of the module before."""
    found = [before["largest_float64"] for before, module in pairwise(modules) if _squares(module["module"])]
    return [float(value) for value in found if value is not None]


def _squares(module: str) -> bool:
    return module == "loss" or "norm" in module.rpartition(".")[2]


def place_of(first: Mapping[str, Any] | None) -> str:
    """Where the first non-finite result was made: a norm, the loss, a scan, another part of the layer, the update, or elsewhere;
    with "gradient of" if the backward pass made it."""
    if first is None:
        return "nowhere in the network"
    part = first["pass"]
    if part == "update":
        return "update"
    module = str(first["module"])
    if _squares(module) or "norm" in first["operation"]:
        place = "loss" if module == "loss" else "norm"
    elif first["operation"].startswith(("scan", "cpu_scan")) or first["eigenvalue"] is not None:
        place = "recurrence"
    elif ".ssm" in module:
        place = "layer"
    else:
        place = "rest of the network"
    return f"gradient of {place}" if part == "backward" else place
