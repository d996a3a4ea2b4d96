"""Import rules: which modules may import torch or other packages, and no import of an undeclared dependency."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from stablessm_core import __version__

pytestmark = [pytest.mark.spread, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
SERVICE = tomllib.loads((ROOT / "service" / "pyproject.toml").read_text())["project"]
OURS = {PROJECT["name"], SERVICE["name"]}
ROOMS = tuple(PYPROJECT["tool"]["importlinter"]["root_packages"])
# no module but those that train may import these, not even indirectly; scipy may be imported inside functions
TRAINING_ONLY = ("torch", "triton", "sklearn", "scipy", "safetensors", "joblib")
# The import linter only reads import statements. These tests check the real imports, including plug-ins and import_module.
TORCH_FREE, NUMPY_ONLY = (
    contract["source_modules"]
    for begin in ("the torch-free half", "maps, telemetry and reports need")
    for contract in PYPROJECT["tool"]["importlinter"]["contracts"]
    if contract["name"].startswith(begin)
)
BLOCKER = """
import importlib, importlib.abc, sys

blocked, modules = sys.argv[1].split(","), sys.argv[2:]

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise AssertionError(f"{name} must not be imported here")

sys.meta_path.insert(0, Blocker())
for module in modules:
    importlib.import_module(module)
"""


def modules_of(room: str) -> list[str]:
    """The names of all modules of a package, or of a single module."""
    folder = ROOT / room.replace(".", "/")
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]


# writes samples with other tools, in environments of their own
SAMPLES = ROOT / "tests" / "server" / "importing" / "samples" / "write.py"


def import_without(blocked: Iterable[str], modules: list[str]) -> None:
    command = [sys.executable, "-c", BLOCKER, ",".join(blocked), *modules]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_import_blocker_of_these_tests_blocks_torch() -> None:
    with pytest.raises(AssertionError, match="torch must not be imported here"):
        import_without(TRAINING_ONLY, ["stablessm_core.reparameterization"])


def test_the_torch_free_packages_do_not_import_torch() -> None:
    import_without(TRAINING_ONLY, [module for room in TORCH_FREE if room != "migrations" for module in modules_of(room)])


def test_maps_and_telemetry_import_only_numpy_and_zstandard() -> None:
    others = [name.replace("-", "_") for name in declared(SERVICE["dependencies"]) - OURS - {"numpy", "zstandard"}]
    import_without([*TRAINING_ONLY, *others], [module for room in NUMPY_ONLY for module in modules_of(room)])


def test_the_supervisor_process_does_not_import_torch() -> None:
    import_without(TRAINING_ONLY, ["worker.main"])


@pytest.mark.parametrize("room", ROOMS)
def test_packages_import_only_declared_dependencies(room: str) -> None:
    base = declared(SERVICE["dependencies"])
    training = base | declared(SERVICE["optional-dependencies"]["train"])
    allowed = training if room in ("stablessm", "stablessm_core", "worker") else base
    check_declared(sorted((ROOT / room).rglob("*.py")), allowed)


@pytest.mark.parametrize("place", ["tests", "docs"])
def test_tests_and_docs_import_only_declared_dependencies(place: str) -> None:
    everything = SERVICE["dependencies"] + [r for extra in SERVICE["optional-dependencies"].values() for r in extra]
    files = {*(ROOT / place).rglob("*.py")} - {SAMPLES}
    check_declared(sorted(files), declared(everything))


def test_the_constraints_pin_exactly_the_packages_that_we_install() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    pinned = {normal(line.partition("==")[0]) for line in lines}
    needed = closure("stablessm-service", frozenset({"train", "dev"}))
    assert pinned == needed - OURS - {"pip"}  # the environment already has pip


def test_the_service_needs_all_that_the_small_distribution_needs_and_that_distribution_in_its_own_version() -> None:
    assert declared(PROJECT["dependencies"]) == {"numpy", "zstandard"} <= declared(SERVICE["dependencies"])
    assert f"stablessm=={__version__}" in SERVICE["dependencies"]


def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names


def check_declared(files: list[Path], allowed: set[str]) -> None:
    programs = [*files, *(ROOT / ".ci").glob("*.py")]
    ours = {*ROOMS, "benchmarks", *(file.stem for file in programs), *(file.parent.name for file in files)}
    distributions = packages_distributions()
    undeclared = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in sorted(imported(file) - ours - set(sys.stdlib_module_names))
        if not {normal(distribution) for distribution in distributions.get(name, [name])} & allowed
    ]
    assert undeclared == []


def declared(requirements: list[str]) -> set[str]:
    return {normal(Requirement(text).name) for text in requirements}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(root: str, extras: frozenset[str]) -> set[str]:
    """`root` and the installed distributions that it needs with `extras`, without CUDA packages, whose versions torch pins."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [(root, extras)]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in found or name.startswith(("nvidia-", "cuda-")):
            continue
        try:
            texts = requires(name) or []
        except PackageNotFoundError:
            continue
        found.add((name, wanted))
        for requirement in map(Requirement, texts):
            environments = [{"extra": extra} for extra in (*wanted, "")]
            if requirement.marker is None or any(requirement.marker.evaluate(environment) for environment in environments):
                waiting.append((normal(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in found}


NEW_MODULES = """
import sys, torch
before = set(sys.modules)
import stablessm_core.layers
print(*sorted(set(sys.modules) - before))
"""


def test_importing_the_layers_imports_almost_nothing_except_torch() -> None:
    """The compiler torch._dynamo must not be imported: it imports sympy and Triton, which takes longer than importing torch."""
    done = subprocess.run([sys.executable, "-c", NEW_MODULES], capture_output=True, text=True, cwd=ROOT, check=True)
    foreign = [name for name in done.stdout.split() if not name.startswith("stablessm_core")]
    assert len(foreign) < 10, foreign
    assert not {name.split(".")[0] for name in foreign} & {"sympy", "triton", "pydantic", "httpx"}
    assert not any(name.startswith(("torch._dynamo", "torch._inductor")) for name in foreign)
