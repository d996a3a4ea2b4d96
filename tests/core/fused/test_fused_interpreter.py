"""Without a GPU, the fused layer's kernels run in the interpreter, compile, and spill no registers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

triton = pytest.importorskip("triton")

pytestmark = [pytest.mark.long, pytest.mark.interpreter]
KERNEL_TESTS = Path(__file__).with_name("test_fused_triton.py")
EVERY = os.environ.get("EVERY_KERNEL") == "1"
SHARED = 227 * 1024  # bytes of shared memory that one program may use on an H200
TRITON_VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
NUMPY_VERSION = tuple(int(part) for part in numpy.__version__.split(".")[:2])


@pytest.mark.skipif(TRITON_VERSION < (3, 7) and NUMPY_VERSION >= (2, 4), reason="Triton 3.6 cannot interpret on numpy 2.4")
def test_the_kernel_tests_pass_in_tritons_interpreter() -> None:
    """Runs the tests in a separate process, because Triton chooses between compiling and interpreting at import."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["ONE_TEST_OF"] = "1" if EVERY else "10"  # every tenth case, because all cases take minutes
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(KERNEL_TESTS)]
    done = subprocess.run(command, env=environment, cwd=KERNEL_TESTS.parents[3], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


FLOAT32, BFLOAT16 = ("*fp32", "float32", "tf32x3", 0), ("*bf16", "bfloat16", "ieee", 8)
CASES = [(precision, d_model) for d_model in (64, 128, 256) for precision in (FLOAT32, BFLOAT16)]
# Every width and both precisions occur, but only `make kernels` compiles every combination.
CASES = CASES if EVERY else [(FLOAT32, 64), (BFLOAT16, 128), (FLOAT32, 256)]


@pytest.mark.parametrize(("x", "products", "precision", "stack", "d_model"), [(*case, d_model) for case, d_model in CASES])
def test_kernels_for_hopper_use_tensor_cores_and_do_not_spill_registers(
    x, products, precision, stack, d_model, tmp_path, monkeypatch
) -> None:
    """Exception: one bfloat16 kernel is allowed to spill two registers; this lets two programs fit on one multiprocessor."""
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
