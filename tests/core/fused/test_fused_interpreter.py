"""What can be proved of the fused layer's kernels without a GPU: they run in the interpreter, they compile and spill nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

triton = pytest.importorskip("triton")

pytestmark = pytest.mark.interpreter
KERNEL_TESTS = Path(__file__).with_name("test_fused_triton.py")
EVERY = os.environ.get("EVERY_KERNEL") == "1"
SHARED = 227 * 1024  # bytes that one program may have on an H200
TRITON_VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
NUMPY_VERSION = tuple(int(part) for part in numpy.__version__.split(".")[:2])


@pytest.mark.skipif(TRITON_VERSION < (3, 7) and NUMPY_VERSION >= (2, 4), reason="Triton 3.6 cannot interpret on numpy 2.4")
def test_kernel_tests_pass_in_the_interpreter() -> None:
    """In a process of its own: Triton decides at import between compiling and interpreting."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["ONE_TEST_OF"] = "1" if EVERY else "10"  # each tenth case, else it takes minutes
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(KERNEL_TESTS)]
    done = subprocess.run(command, env=environment, cwd=KERNEL_TESTS.parents[3], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


FLOAT32, BFLOAT16 = ("*fp32", "float32", "tf32x3", 0), ("*bf16", "bfloat16", "ieee", 8)
CASES = [(precision, d_model) for d_model in (64, 128, 256) for precision in (FLOAT32, BFLOAT16)]
# every width and both precisions, but only `make kernels` takes each with each
CASES = CASES if EVERY else [(FLOAT32, 64), (BFLOAT16, 128), (FLOAT32, 256)]


@pytest.mark.parametrize(("x", "products", "precision", "stack", "d_model"), [(*case, d_model) for case, d_model in CASES])
def test_kernels_compile_for_hopper_to_tensor_cores_without_spills(
    x, products, precision, stack, d_model, tmp_path, monkeypatch
) -> None:
    """In bfloat16 one kernel spends two registers' worth of stack, so that two programs fit a multiprocessor."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from stablessm_core.fused import triton_layer
    from tests.core.fused.compiling import KERNELS, compiled

    tile, products = triton_layer.tile_for(d_model), getattr(triton.language, products)
    sizes = {"TIME": tile.time, "STATES": tile.states, "INNER": triton_layer.INNER, "MODEL": d_model, "ACTIVATION": "tanh"}
    for kernel in KERNELS:
        needs = compiled(kernel, warps=tile.warps, x=x, PRODUCTS=products, PRECISION=precision, **sizes)
        assert needs.stack <= stack, (kernel, needs[:3])
        assert needs.shared <= SHARED, (kernel, needs[:3])
        assert "mma" in needs.ptx, kernel
        assert "atom" not in needs.ptx, kernel
