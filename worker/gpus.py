"""The GPUs this worker may use, one lane each; found without torch."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    device: str  # as CUDA_VISIBLE_DEVICES takes it
    name: str


def visible_gpus() -> list[Gpu]:
    """What nvidia-smi lists, narrowed by CUDA_VISIBLE_DEVICES; empty without a driver."""
    query = ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
    found = [[part.strip() for part in line.split(",", 2)] for line in lines if line.count(",") >= 2]
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return [Gpu(index, name) for index, _, name in found]
    names = {key: name for index, uuid, name in found for key in (index, uuid)}
    devices = [device.strip() for device in allowed.split(",")]
    return [Gpu(device, names.get(device, "GPU")) for device in devices if device not in ("", "-1")]
