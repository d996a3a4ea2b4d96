"""Without a GPU, the Triton backend runs in the interpreter, compiles, and states why it cannot run on this machine."""

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

pytestmark = pytest.mark.long

triton = pytest.importorskip("triton")
compiling = pytest.importorskip("tests.core.scan.compiling")

# Every tenth case, spread evenly, unless `make kernels` requests all cases, which take many minutes.
ONE_OF = 1 if os.environ.get("EVERY_KERNEL") == "1" else 10
KERNEL_TESTS = [Path(__file__).with_name(f"test_scan_{name}.py") for name in ("triton", "look_back", "tiles")]
TRITON_VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
NUMPY_VERSION = tuple(int(part) for part in __import__("numpy").__version__.split(".")[:2])


@pytest.mark.interpreter
@pytest.mark.skipif(TRITON_VERSION < (3, 7) and NUMPY_VERSION >= (2, 4), reason="Triton 3.6 cannot interpret on numpy 2.4")
@pytest.mark.parametrize("tests", [[file] for file in KERNEL_TESTS] if ONE_OF == 1 else [KERNEL_TESTS])
def test_the_kernel_tests_pass_in_tritons_interpreter(tests: list[Path]) -> None:
    """Runs the tests in a separate process, because Triton chooses between compiling and interpreting at import."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["ONE_TEST_OF"] = str(ONE_OF)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *map(str, tests)]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


HOPPER = (9, 0)
TILES = [(kind, tile) for kind, tiles in configurations.TABLE[HOPPER].items() for tile in tiles][::ONE_OF]
# number of values read and written per element; a summed gradient of `a` counts as 0
MOVED = {("states", "lti"): 2, ("states", "ltv"): 3, ("adjoints", "lti"): 3, ("adjoints", "ltv"): 5}
BYTES = {"half": 2, "float32": 4, "complex64": 8}
# instructions that 132 multiprocessors of 128 lanes execute at 1.98 GHz while memory moves one byte at 4.1 TB/s
INSTRUCTIONS_PER_BYTE = 132 * 128 * 1.98e9 / 4.1e12
# every precision and every GPU, but not every combination of the two
UNKNOWN = [
    (precision, capability)
    for i, precision in enumerate(configurations.DEFAULT)
    for j, capability in enumerate([(7, 5), (8, 0), (12, 0)])
    if ONE_OF == 1 or i % 3 == j
]
FALLBACK = [(("adjoints", "ltv", kind), tile) for kind in ("float64", "complex128") for tile in configurations.DEFAULT[kind]]


@pytest.fixture(scope="module")
def _binaries_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Uses an empty cache, so that no earlier version of the kernel is loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("binaries")))
        yield


@pytest.mark.interpreter
@pytest.mark.usefixtures("_binaries_of_its_own")
@pytest.mark.parametrize(("kind", "tile"), TILES + FALLBACK, ids=str)
def test_every_tile_of_the_table_compiles_for_hopper_without_spilling(kind, tile, tmp_path) -> None:
    """Compiling reveals type errors, which the interpreter does not report, and tiles that do not fit into the registers."""
    compiled = compiling.compiled(kind, tile, HOPPER)
    used = compiling.resources(compiled, tmp_path)
    assert used["LOCAL"] == 0
    assert used["STACK"] <= 16, "registers are spilled"
    assert used["REG"] * 32 * tile.warps <= 65_536 // 2, "one program uses more than half of a multiprocessor's registers"
    assert used["SHARED"] <= 16_384
    ptx = compiled.asm["ptx"]
    assert ("atom" in ptx) == tile.look_back, "atomic signals must occur only in tiles that run concurrently"
    if tile.look_back:
        orders = set(re.findall(r"atom\.global\.gpu\.(\w+)\.or", ptx))
        assert orders == {"release", "acquire", "relaxed"}, (
            "a published state must become visible on the device before its signal"
        )
        assert "ld.global.cg" in ptx, "states of other programs must be read without the multiprocessor's cache"
    assert re.search(r"ld\.global\.(L\w+::\w+\.)?(v4\.b32|v2\.b64)", ptx), "rows must be read 16 bytes at a time"


@pytest.mark.interpreter
@pytest.mark.usefixtures("_binaries_of_its_own")
@pytest.mark.parametrize(("precision", "capability"), UNKNOWN, ids=str)
def test_the_default_tile_compiles_without_spilling_for_gpus_missing_from_the_table(precision, capability, tmp_path) -> None:
    kernel = compiling.compiled(("adjoints", "ltv", precision), configurations.DEFAULT[precision][0], capability)
    assert compiling.resources(kernel, tmp_path)["STACK"] <= 16


@pytest.mark.interpreter
@pytest.mark.usefixtures("_binaries_of_its_own")
@pytest.mark.parametrize(("kind", "tile"), [(kind, tile) for kind, tile in TILES if not tile.look_back], ids=str)
def test_every_loop_needs_at_most_two_thirds_of_an_h200s_memory_time_for_instructions(kind, tile, tmp_path) -> None:
    """A necessary condition for speed. It is not sufficient, because latencies also cost time."""
    kernel = compiling.compiled(kind, tile, HOPPER)
    per_element = compiling.loop_instructions(kernel, tmp_path) * 32 * tile.warps / (tile.strips * tile.rows * tile.channels)
    moved = MOVED[kind[:2]] * BYTES[kind[2]]
    assert 0 < per_element <= 2 / 3 * INSTRUCTIONS_PER_BYTE * moved


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is available")
def test_the_error_without_a_cuda_device_names_a_backend_that_works() -> None:
    with pytest.raises(ValueError, match=r"tensors are on cpu, the kernels need a CUDA device.*backend 'torch' works on cpu"):
        linear_scan(torch.ones(3), torch.ones(1, 4, 3), backend="triton")


def test_the_error_without_triton_states_that_triton_is_not_installed(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "stablessm_core.scan.triton_scan", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ValueError, match="Triton is not installed"):
        resolve_backend("triton", "cuda")
    assert resolve_backend("auto", "cuda") == "torch"


def test_a_gpu_without_a_c_compiler_uses_torch_and_gives_the_reason(monkeypatch, tmp_path) -> None:
    triton_scan = pytest.importorskip("stablessm_core.scan.triton_scan")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton_scan, "capability_of", lambda _device: HOPPER)
    monkeypatch.setattr(triton.runtime.driver, "_default", None)
    monkeypatch.setattr(triton.runtime.driver, "_active", None)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    triton_scan._why_no_launcher.cache_clear()
    try:
        assert resolve_backend("auto", "cuda") == "torch"
        with pytest.raises(
            ValueError, match=r"cannot build its launcher here, which needs a C compiler.*backend 'torch' works on cuda"
        ):
            resolve_backend("triton", "cuda")
        assert choose_numerics("auto", torch.device("cuda")).described()["scan_backend_reason"].startswith("Triton cannot build")
    finally:
        triton_scan._why_no_launcher.cache_clear()


def test_only_a_few_long_chains_are_split_into_tiles_that_run_concurrently() -> None:
    kind = ("states", "ltv", "float32")
    assert configurations.tile_for(HOPPER, kind, 1, 131_072, 1024).look_back
    assert not configurations.tile_for(HOPPER, kind, 8, 4096, 1024).look_back
    assert not configurations.tile_for(HOPPER, kind, 8, 100, 32).look_back
    assert not configurations.tile_for(None, kind, 1, 131_072, 1024).look_back, (
        "a device that is not in the table must use sequential tiles"
    )
