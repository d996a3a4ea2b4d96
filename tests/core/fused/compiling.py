"""Compiles the fused layer's kernels for an H200 without a GPU, and reads their resource usage from the machine code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget

from stablessm_core.fused import triton_kernels

KERNELS = ("driven_kernel", "outputs_kernel", "adjoints_kernel", "inputs_kernel", "weights_kernel")
INTEGERS = {"length", "d_model", "d_state", "tiles", "all_tiles", "each"}


class Needs(NamedTuple):
    registers: int
    stack: int  # bytes per thread in device memory: spilled registers
    shared: int  # bytes of shared memory
    ptx: str


def compiled(kernel: str, *, warps: int, x: str = "*fp32", **constants: Any) -> Needs:
    """Compile a kernel. x: Triton's type of the input and of its gradient."""
    function = getattr(triton_kernels, kernel)
    constants = {name: value for name, value in constants.items() if name in function.arg_names}
    known = dict.fromkeys(constants, "constexpr") | dict.fromkeys(INTEGERS, "i32") | {"x": x, "dx": x}
    signature = {name: known.get(name, "*fp32") for name in function.arg_names}
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(function.arg_names) if name not in constants}
    source = triton.compiler.ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "num_stages": 1})
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    cubin = Path(binary.metadata_group[f"{kernel}.cubin"])
    usage = subprocess.run(
        [tools / "cuobjdump", "--dump-resource-usage", cubin], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(rf"Function {kernel}:\s*REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    return Needs(int(found[1]), int(found[2]), binary.metadata.shared, binary.asm["ptx"])
