"""Who may import what: our rooms among each other, torch by whom, and nothing that pyproject.toml does not declare."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ROOMS = ("stablessm_core", "server", "worker", "web", "migrations")
TRAINING_ONLY = ("torch", "triton", "sklearn", "scipy", "safetensors", "joblib")
TORCH_FREE_CORE = (
    "stablessm_core.config",
    "stablessm_core.maps",
    "stablessm_core.forms",
    "stablessm_core.theory",
    "stablessm_core.client",
    "stablessm_core.telemetry.series",
    "stablessm_core.telemetry.blocks",
    "stablessm_core.telemetry.detectors",
    "stablessm_core.tasks.requirements",
)
BLOCKER = f"""
import importlib, importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {TRAINING_ONLY}:
            raise AssertionError(f"{{name}} must not be imported here")

sys.meta_path.insert(0, Blocker())
for module in sys.argv[1:]:
    importlib.import_module(module)
"""


def modules_of(room: str) -> list[str]:
    files = sorted((ROOT / room).rglob("*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]


def import_without_torch(modules: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKER, *modules], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_blocker_of_these_tests_blocks() -> None:
    with pytest.raises(AssertionError, match="torch must not be imported here"):
        import_without_torch(["stablessm_core.reparameterization"])


@pytest.mark.parametrize("room", ["server", "web"])
def test_the_server_process_needs_no_torch(room: str) -> None:
    import_without_torch(modules_of(room))


def test_core_modules_that_the_server_uses_need_no_torch() -> None:
    import_without_torch(list(TORCH_FREE_CORE))


def test_the_supervisor_leaves_torch_to_its_child() -> None:
    import_without_torch(["worker.main"])


def test_rooms_import_only_whom_they_may() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_the_client_of_core_speaks_http() -> None:
    core = ROOT / "stablessm_core"
    speakers = {file.relative_to(core).as_posix() for file in core.rglob("*.py") if "httpx" in imported(file)}
    assert speakers == {"client/connection.py"}


@pytest.mark.parametrize("room", ROOMS)
def test_packages_import_only_declared_dependencies(room: str) -> None:
    base = declared(PROJECT["dependencies"])
    training = base | declared(PROJECT["optional-dependencies"]["train"])
    allowed = training if room in ("stablessm_core", "worker") else base
    check_declared(sorted((ROOT / room).rglob("*.py")), allowed)


@pytest.mark.parametrize("place", ["tests", "docs"])
def test_tests_import_only_declared_dependencies(place: str) -> None:
    everything = PROJECT["dependencies"] + [r for extra in PROJECT["optional-dependencies"].values() for r in extra]
    check_declared(sorted((ROOT / place).rglob("*.py")), declared(everything))


def test_constraints_pin_every_package_we_install() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    pinned = {normal(line.partition("==")[0]) for line in lines}
    assert pinned == closure("stablessm", frozenset({"train", "dev"})) - {"stablessm", "pip"}  # pip comes with the environment


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
    """Installed distributions that `root` with `extras` needs, itself included; CUDA's own are pinned by torch."""
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


def test_importing_the_layers_imports_torch_and_next_to_nothing_else() -> None:
    """No compiler above all (torch._dynamo, with sympy and Triton behind it): it takes longer than torch itself."""
    done = subprocess.run([sys.executable, "-c", NEW_MODULES], capture_output=True, text=True, cwd=ROOT, check=True)
    foreign = [name for name in done.stdout.split() if not name.startswith("stablessm_core")]
    assert len(foreign) < 10, foreign
    assert not {name.split(".")[0] for name in foreign} & {"sympy", "triton", "pydantic", "httpx"}
    assert not any(name.startswith(("torch._dynamo", "torch._inductor")) for name in foreign)
