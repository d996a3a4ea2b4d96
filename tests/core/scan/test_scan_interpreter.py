"""What can be proved of the Triton backend without a GPU: it runs in the interpreter, it compiles, it says why it cannot run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stablessm_core.scan import configurations, linear_scan, resolve_backend
from stablessm_core.training.numerics import choose_numerics

triton = pytest.importorskip("triton")
compiling = pytest.importorskip("tests.core.scan.compiling")

# each tenth case, evenly over all, unless `make kernels` asks for every one: together they take many minutes
ONE_OF = 1 if os.environ.get("EVERY_KERNEL") == "1" else 10
KERNEL_TESTS = [Path(__file__).with_name(f"test_scan_{name}.py") for name in ("triton", "look_back", "tiles")]
TRITON_VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
NUMPY_VERSION = tuple(int(part) for part in __import__("numpy").__version__.split(".")[:2])


@pytest.mark.interpreter
@pytest.mark.skipif(TRITON_VERSION < (3, 7) and NUMPY_VERSION >= (2, 4), reason="Triton 3.6 cannot interpret on numpy 2.4")
@pytest.mark.parametrize("tests", [[file] for file in KERNEL_TESTS] if ONE_OF == 1 else [KERNEL_TESTS])
def test_kernel_tests_pass_in_the_interpreter(tests: list[Path]) -> None:
    """In a process of its own: Triton decides at import between compiling and interpreting."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["ONE_TEST_OF"] = str(ONE_OF)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *map(str, tests)]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


HOPPER = (9, 0)
TILES = [(kind, tile) for kind, tiles in configurations.TABLE[HOPPER].items() for tile in tiles][::ONE_OF]
# per element, what must be read and written, in values, counting a gradient of `a` that is summed as nothing
MOVED = {("states", "lti"): 2, ("states", "ltv"): 3, ("adjoints", "lti"): 3, ("adjoints", "ltv"): 5}
BYTES = {"half": 2, "float32": 4, "complex64": 8}
# 132 multiprocessors of 128 lanes at 1.98 GHz execute so many instructions while memory moves a byte at 4.1 TB/s
INSTRUCTIONS_PER_BYTE = 132 * 128 * 1.98e9 / 4.1e12
# every precision and every GPU, but not each with each
UNKNOWN = [
    (precision, capability)
    for i, precision in enumerate(configurations.DEFAULT)
    for j, capability in enumerate([(7, 5), (8, 0), (12, 0)])
    if ONE_OF == 1 or i % 3 == j
]
FALLBACK = [(("adjoints", "ltv", kind), tile) for kind in ("float64", "complex128") for tile in configurations.DEFAULT[kind]]


@pytest.fixture(scope="module")
def _binaries_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that an earlier version of the kernel was compiled to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("binaries")))
        yield


@pytest.mark.interpreter
@pytest.mark.usefixtures("_binaries_of_its_own")
@pytest.mark.parametrize(("kind", "tile"), TILES + FALLBACK, ids=str)
def test_every_tile_of_the_table_compiles_for_hopper_without_spilling(kind, tile, tmp_path) -> None:
    """Type errors, and anything else the interpreter forgives, show here; so does a tile that does not fit the registers."""
    compiled = compiling.compiled(kind, tile, HOPPER)
    used = compiling.resources(compiled, tmp_path)
    assert used["LOCAL"] == 0
    assert used["STACK"] <= 16, "registers are spilled"
    assert used["REG"] * 32 * tile.warps <= 65_536 // 2, "two programs must fit a multiprocessor"
    assert used["SHARED"] <= 16_384
    ptx = compiled.asm["ptx"]
    assert ("atom" in ptx) == tile.look_back, "only tiles that run at once signal each other"
    if tile.look_back:
        orders = set(re.findall(r"atom\.global\.gpu\.(\w+)\.or", ptx))
        assert orders == {"release", "acquire", "relaxed"}, "what is published is seen by the whole device before its signal is"
        assert "ld.global.cg" in ptx, "what others published is read past the cache of one multiprocessor"
    assert re.search(r"ld\.global\.(L\w+::\w+\.)?(v4\.b32|v2\.b64)", ptx), "rows are read 16 bytes at a time"


@pytest.mark.interpreter
@pytest.mark.usefixtures("_binaries_of_its_own")
@pytest.mark.parametrize(("precision", "capability"), UNKNOWN, ids=str)
def test_the_safe_default_compiles_without_spilling_for_gpus_that_the_table_does_not_know(
    precision, capability, tmp_path
) -> None:
    kernel = compiling.compiled(("adjoints", "ltv", precision), configurations.DEFAULT[precision][0], capability)
    assert compiling.resources(kernel, tmp_path)["STACK"] <= 16


@pytest.mark.interpreter
@pytest.mark.usefixtures("_binaries_of_its_own")
@pytest.mark.parametrize(("kind", "tile"), [(kind, tile) for kind, tile in TILES if not tile.look_back], ids=str)
def test_an_h200_could_execute_every_loop_in_two_thirds_of_the_time_its_memory_takes(kind, tile, tmp_path) -> None:
    """No proof of speed, which waits for latencies, too; but above this the scan could not come near its floor."""
    kernel = compiling.compiled(kind, tile, HOPPER)
    per_element = compiling.loop_instructions(kernel, tmp_path) * 32 * tile.warps / (tile.strips * tile.rows * tile.channels)
    moved = MOVED[kind[:2]] * BYTES[kind[2]]
    assert 0 < per_element <= 2 / 3 * INSTRUCTIONS_PER_BYTE * moved


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton is usable here")
def test_triton_without_a_device_says_what_is_missing_and_what_works() -> None:
    with pytest.raises(ValueError, match=r"tensors are on cpu, the kernels need a CUDA device.*backend 'torch' works on cpu"):
        linear_scan(torch.ones(3), torch.ones(1, 4, 3), backend="triton")


def test_triton_not_installed_is_said_so(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "stablessm_core.scan.triton_scan", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ValueError, match="Triton is not installed"):
        resolve_backend("triton", "cuda")
    assert resolve_backend("auto", "cuda") == "torch"


def test_a_gpu_without_a_c_compiler_takes_torch_and_says_why(monkeypatch, tmp_path) -> None:
    triton_scan = pytest.importorskip("stablessm_core.scan.triton_scan")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton_scan, "capability_of", lambda _device: HOPPER)
    monkeypatch.setattr(triton.runtime.driver, "_default", None)
    monkeypatch.setattr(triton.runtime.driver, "_active", None)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    triton_scan._no_launcher.cache_clear()
    try:
        assert resolve_backend("auto", "cuda") == "torch"
        with pytest.raises(
            ValueError, match=r"cannot build its launcher here, which takes a C compiler.*backend 'torch' works on cuda"
        ):
            resolve_backend("triton", "cuda")
        assert choose_numerics("auto", torch.device("cuda")).described()["scan_backend_reason"].startswith("Triton cannot build")
    finally:
        triton_scan._no_launcher.cache_clear()


def test_only_few_long_chains_are_cut_into_tiles_that_run_at_once() -> None:
    kind = ("states", "ltv", "float32")
    assert configurations.tile_for(HOPPER, kind, 1, 131_072, 1024).look_back
    assert not configurations.tile_for(HOPPER, kind, 8, 4096, 1024).look_back
    assert not configurations.tile_for(HOPPER, kind, 8, 100, 32).look_back
    assert not configurations.tile_for(None, kind, 1, 131_072, 1024).look_back, "a device that is not in the table walks"
