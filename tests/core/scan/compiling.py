"""Compiles the scan kernel for a GPU without having one, and reads its resource usage from the binary."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import triton
import triton.language as tl

from stablessm_core.scan.configurations import Kind, Tile
from stablessm_core.scan.triton_kernel import scan_kernel

ELEMENT = {"half": "*bf16", "float32": "*fp32", "float64": "*fp64", "complex64": "*fp32", "complex128": "*fp64"}
NUMBERS = ("length", "d_state", "links_batch", "links_time", "inputs_batch", "inputs_time", "first_batch")
CUOBJDUMP, NVDISASM = (Path(triton.__file__).parent / "backends/nvidia/bin" / name for name in ("cuobjdump", "nvdisasm"))


@cache  # several tests examine the same binary
def compiled(kind: Kind, tile: Tile, capability: tuple[int, int]) -> Any:
    """The binary that a launch on contiguous, aligned tensors without h0 compiles. For the adjoints, the kernel also computes
    the gradient with respect to a."""
    role, variation, precision = kind
    adjoint, lti, element = role == "adjoints", variation == "lti", ELEMENT[precision]
    wide = precision in ("float64", "complex128")
    accumulator = "*fp64" if wide else "*fp32"
    pointers = {"links": element, "inputs": element, "out": element}
    if adjoint:
        pointers |= {"states": element, "dlinks": accumulator if lti else element}
    if tile.look_back:
        pointers |= {"maps": accumulator, "signals": "*i32", "spoiled": "*i32"}
    constants = dict.fromkeys({"states", "dlinks", "first", "dfirst", "maps", "signals", "spoiled"} - set(pointers))
    constants |= {"ADJOINT": adjoint, "LTI": lti, "AGAINST_TIME": adjoint, "COMPLEX": precision.startswith("complex")}
    constants |= {"ACC": tl.float64 if wide else tl.float32, "LOOK_BACK": tile.look_back, "REPAIR": False}
    constants |= {"STRIPS": tile.strips, "ROWS": tile.rows, "CHANNELS": tile.channels}
    names = scan_kernel.arg_names
    source = triton.compiler.ASTSource(
        fn=scan_kernel,
        signature={name: "constexpr" if name in constants else pointers.get(name, "i32") for name in names},
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in pointers or name in NUMBERS},
    )
    target = triton.backends.compiler.GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    return triton.compile(source, target=target, options={"num_warps": tile.warps})


def loop_instructions(kernel: Any, folder: Path) -> int:
    """Number of machine instructions per lane and tile in the longest loop."""
    cubin = folder / "scan.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    disassembled = subprocess.run([NVDISASM, "-c", cubin], capture_output=True, text=True, check=True).stdout
    labels: dict[str, int] = {}
    count = longest = 0
    for line in disassembled.splitlines():
        if label := re.match(r"\s*\.(L_x_\d+):", line):
            labels[label[1]] = count
        elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?);", line):
            count += 1
            if back := re.search(r"\bBRA\b.*`\(\.(L_x_\d+)\)", instruction[1]):
                longest = max(longest, count - labels.get(back[1], count))
    return longest


def resources(kernel: Any, folder: Path) -> dict[str, int]:
    """The kernel's resource usage: REG per thread; STACK, SHARED and LOCAL in bytes."""
    cubin = folder / "scan.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    told = subprocess.run([CUOBJDUMP, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True).stdout
    found = {name: int(count) for name, count in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", told)}
    return found | {"SHARED": max(found["SHARED"], kernel.metadata.shared)}
