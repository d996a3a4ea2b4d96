"""The library that fits this processor is loaded. If no library fits, the stated reason is correct."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from stablessm_core.kernels import build, library

pytestmark = [pytest.mark.long, pytest.mark.spread]

ROOT = Path(__file__).resolve().parents[3]
CAPABILITIES = {"default": "v2", "avx2": "v3", "avx512": "v4"}
SCANS = """
import sys, torch
from stablessm_core.kernels import library
from stablessm_core.layers.parts.long_convolution import convolution, convolution_gradients
from stablessm_core.layers.parts.readout import gated
from stablessm_core.network import small_blocks
from stablessm_core.scan import compiled
torch.manual_seed(0)
made = {}
for dtype in (torch.float32, torch.float64, torch.complex64, torch.bfloat16, torch.float16):
    for columns in (1, 5, 14, 64, 83):
        for shape in ((columns,), (3, 50, columns)):
            a, b, h0 = (0.2 * torch.randn(size, dtype=dtype) for size in (shape, (3, 50, columns), (3, columns)))
            h = compiled.states(a, b, h0, False)
            made[f"{dtype} {columns} {len(shape)}"] = [h, *compiled.adjoints(a, h, b, h0, True, True, True)]
for batch, length, d_model, inner in ((3, 150, 32, 16), (2, 30, 16, 48)):
    def some(*shape):
        return torch.randn(shape) / shape[-1] ** 0.5
    x, norm, a = some(batch, length, d_model), (1 + some(d_model), some(d_model), 1e-5), torch.linspace(-0.5, 0.99, inner)
    given = a, some(inner, d_model), torch.rand(inner), some(d_model, inner), some(d_model), "gelu"
    y, last, kept = small_blocks.state_space(x, norm, *given)
    made[f"state space {d_model}"] = [y, last, *small_blocks.state_space_gradient(x, norm, *given, kept, x)]
    given = some(inner, d_model), some(inner, d_model), some(d_model, inner)
    y, kept = small_blocks.gated_mlp(x, norm, *given)
    made[f"gated {d_model}"] = [y, *small_blocks.gated_mlp_gradient(x, norm, *given, kept, x)]
for dtype in (torch.float32, torch.float64):
    for shape in ((1, 3, 1), (3, 100, 5), (2, 203, 40)):
        x, kernel = torch.randn(shape, dtype=dtype), torch.randn(shape[2], shape[1], dtype=dtype)
        made[f"convolution {dtype} {shape}"] = [convolution(x, kernel), *convolution_gradients(x, kernel, x, True, True)]
halves = torch.randn(50, 46, requires_grad=True)
z = gated(halves)
made["gate"] = [z.detach(), *torch.autograd.grad(z.sum(), halves)]
torch.save([library.target(), torch.backends.cpu.get_cpu_capability(), made], sys.argv[1])
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Redirects the search for the library to an empty folder; returns the path where the library is expected."""
    place = tmp_path / "kernels-here.so"
    monkeypatch.setattr(build, "library_path", lambda target: place)
    monkeypatch.setattr(build, "failure_path", lambda: tmp_path / "reason.txt")
    return place


def reason() -> str:
    """The reason for not loading a library, from a new choice that ignores what this process has already loaded."""
    found = library.load.__wrapped__()
    assert isinstance(found, str), found
    return found


def test_the_compiled_kernels_can_be_used_on_this_machine(unavailable: Callable[[str], NoReturn]) -> None:
    if why := library.why_not_compiled():
        unavailable(why)
    assert callable(library.function("stablessm_states_f32"))


def test_a_library_that_was_not_built_reports_the_reason_of_the_failed_build(elsewhere: Path) -> None:
    assert "python -m stablessm_core.kernels.build" in reason()
    elsewhere.with_name("reason.txt").write_text("it rained\n")
    assert reason() == "kernels-here.so was not built: it rained"


def test_a_file_that_is_not_a_library_is_not_loaded(elsewhere: Path) -> None:
    elsewhere.write_bytes(b"cut short")
    assert "kernels-here.so cannot be loaded" in reason()


def test_a_library_built_from_different_sources_is_refused(elsewhere: Path, tmp_path: Path) -> None:
    command = build.compiler()
    if command is None:
        pytest.skip("this machine has no C compiler")
    source = tmp_path / "other.c"
    source.write_text(f'const char stablessm_source[] = "{"0" * 32}";\n')
    subprocess.run([*command, "-fPIC", "-shared", "-o", str(elsewhere), str(source)], check=True)
    assert "other sources" in reason()


def test_the_reason_names_a_processor_family_that_has_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "mips")
    assert reason() == "there are no kernels for a processor of the family mips"


def test_the_kernels_use_the_openmp_threads_of_pytorch() -> None:
    torch.ones(1 << 20).sum()  # loads PyTorch's thread runtime
    maps = Path("/proc/self/maps")
    assert bool(library.openmp_parallel()) == (maps.exists() and "libgomp" in maps.read_text())


@pytest.mark.slow
@pytest.mark.skipif(build.machine() != "x86_64", reason="this processor family has only one library")
def test_the_cpu_capability_selects_the_library_and_wider_registers_change_no_bit(
    tmp_path: Path, unavailable: Callable[[str], NoReturn]
) -> None:
    if why := library.why_not_compiled():
        unavailable(why)
    found = {}
    for ability, target in CAPABILITIES.items():
        if ability == "avx512" and torch.backends.cpu.get_cpu_capability() != "AVX512":
            continue  # PyTorch would try these instructions on a processor without them, and die
        file = tmp_path / ability
        environment = os.environ | {"ATEN_CPU_CAPABILITY": ability, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", SCANS, str(file)], env=environment, check=True)
        taken, capability, found[target] = torch.load(file, weights_only=True)
        assert (capability.lower(), taken) == (ability, target)
    narrowest = found.pop("v2")
    for name, expected in narrowest.items():
        for target, made in found.items():
            assert all(torch.equal(x, y) for x, y in zip(made[name], found["v3"][name], strict=True)), (target, name)
            for x, y in zip(made[name], expected, strict=True):
                wanted = 2e-2 if "float16" in name else 5e-5
                assert (x - y).abs().max() <= wanted * y.abs().max(), (target, name)
