"""The wheel `stablessm` in an environment of its own: what it holds and needs, how fast it starts, and its command."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from functools import partial
from pathlib import Path

import httpx
import pytest

from stablessm_core import __version__
from tests.server.http_service import BEARER, TOKEN, running

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
OURS = ("stablessm", "stablessm_core")
HERE = Path(sysconfig.get_path("purelib"))
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
NEEDED = ("numpy", "numpy.libs", "numpy-*.dist-info", "zstandard", "zstandard-*.dist-info")
SERVICE_ONLY = {"pydantic", "httpx", "server", "click", "torch"}
ATTEMPTS = 4  # one must be fast enough: another program may take the processor's caches meanwhile

IMPORT = """
import sys, time, numpy
before = time.process_time()
import stablessm
print(time.process_time() - before, *sys.modules)
"""
FIRST_WATCH = """
import sys, tempfile, time, numpy, torch, stablessm
model = torch.nn.Module()
model.A_log = torch.nn.Parameter(torch.rand(4, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
folder = tempfile.mkdtemp()
imported = set(sys.modules)
before = time.process_time()
layers = {"A_log": stablessm.eigenvalues("exp", "continuous", step=0.1)}
run = stablessm.watch(model, optimizer, mode="offline", dir=folder, layers=layers)
print(time.process_time() - before, *set(sys.modules) - imported)
"""
RECORD = """
import stablessm
with stablessm.log_only(project="small", mode="offline", dir="files") as run:
    for step in range(1, 31):
        run.log({"val/acc": step / 30, "gone": float("nan") if step == 7 else float("inf")}, step=step)
"""
MAPS = """
import warnings
import numpy as np
from stablessm_core.maps import MAPS
warnings.simplefilter("error")
for name, map in MAPS.items():
    for time in map.forms:
        f = map.forms[time](np, 1.0, 0.5)
        for dtype in (np.float32, np.float64):
            w = np.linspace(0.1, 0.9, 9).astype(dtype)
            for values in (f.f(w), f.derivative(w), f.gradient_scale(w), f.lambda_bar(w, dtype(0.1)), f.inverse(f.f(w))):
                assert np.isfinite(values).all() and values.dtype == dtype, name
print(np.__version__, len(MAPS))
"""
# gives classes in place of torch's, so that modules that need torch can be imported where there is none
IMPORT_ALL = """
import importlib, importlib.abc, importlib.machinery, pkgutil, sys, types

class Kind(type):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Kind(name, (), {"__init__": lambda self, *_: None, "__call__": lambda self, f: f})

class Stub(types.ModuleType):
    __path__ = []
    __getattr__ = Kind.__getattr__

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "torch" else None
    def create_module(self, spec):
        return Stub(spec.name)
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Finder())
for package in ("stablessm_core.outside", "stablessm_core.watch", "stablessm_core.telemetry", "stablessm_core.maps"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    for package in OURS:  # with the libraries of kernels that an editable installation has
        shutil.copytree(ROOT / package, sources / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    _call([*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, sources])
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def small(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with numpy, zstandard and the wheel: its folder of programs."""
    folder = tmp_path_factory.mktemp("small")
    site = _environment(folder, sys.executable, wheel)
    for pattern in NEEDED:
        for found in HERE.glob(pattern):
            (site / found.name).symlink_to(found)
    return folder / "bin"


@pytest.fixture(scope="module")
def with_torch(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and all packages of this one: its folder of programs."""
    folder = tmp_path_factory.mktemp("with_torch")
    (_environment(folder, sys.executable, wheel) / "shared.pth").write_text(f"{HERE}\n")
    return folder / "bin"


@pytest.fixture(scope="module")
def oldest(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of Python 3.10 with numpy 1.26 and the wheel: its folder of programs."""
    # the first on the PATH may be a shim of pyenv that starts nothing
    found = [shutil.which("python3.10"), *sorted(Path.home().glob(".pyenv/versions/3.10.*/bin/python3.10"))]
    python = next((name for name in found if name and not subprocess.run([name, "-c", "import venv"]).returncode), None)
    if python is None:
        pytest.skip("there is no Python 3.10 here")
    folder = tmp_path_factory.mktemp("oldest")
    _environment(folder, python, wheel)
    install = [*PIP, "--python", folder / "bin" / "python", "install", "--only-binary", ":all:", "numpy==1.26.*", "zstandard"]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"numpy 1.26 for Python 3.10 cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return folder / "bin"


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[str]:
    with running(database_url, tmp_path, runs_per_minute=0) as (address, _):
        yield address


def _environment(folder: Path, python: str | Path, wheel: Path) -> Path:
    """Make an environment with only the wheel. Returns the folder of its packages."""
    _call([python, "-m", "venv", "--without-pip", "--clear", folder])
    _call([*PIP, "--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel])
    return next(folder.glob("lib/python*/site-packages"))


def _call(command: list[str | Path]) -> None:
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # pip would find the checkout there
    done = subprocess.run(command, env=known, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def run(folder: Path, *arguments: str, where: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program of an environment, which knows no variable of StableSSM but those that are given."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("STABLESSM_", "PYTHON"))}
    command = [folder / arguments[0], *arguments[1:]]
    return subprocess.run(command, env=known | environment, cwd=where, capture_output=True, text=True, timeout=200)


def python(folder: Path, code: str, where: Path) -> list[str]:
    """The words that the code prints."""
    done = run(folder, "python", "-W", "error", "-c", code, where=where)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def check_time(folder: Path, code: str, where: Path, most: float) -> set[str]:
    """Check that an attempt takes at most so many seconds of CPU time. Returns the packages that the code imports."""
    seconds = []
    for _ in range(ATTEMPTS):
        first, *imported = python(folder, code, where)
        seconds.append(float(first))
        if seconds[-1] <= most:
            return {name.partition(".")[0] for name in imported}
    raise AssertionError(f"each attempt takes more than {most} s: {seconds}")


def test_the_wheel_is_small_and_holds_two_packages_for_any_platform(wheel: Path) -> None:
    assert wheel.name == f"stablessm-{__version__}-py3-none-any.whl"
    assert wheel.stat().st_size <= 1_000_000
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        metadata = message_from_bytes(file.read(f"stablessm-{__version__}.dist-info/METADATA"))
    assert {name.partition("/")[0] for name in names} == {*OURS, f"stablessm-{__version__}.dist-info"}
    assert {f"{package}/py.typed" for package in OURS} <= names
    assert not [name for name in names if "kernels-" in name]
    assert metadata.get_all("Requires-Dist") == ["numpy>=1.26", "zstandard"]
    assert metadata["Requires-Python"] == ">=3.10"


def test_importing_it_takes_a_twentieth_of_a_second_and_nothing_of_the_service(small: Path, tmp_path: Path) -> None:
    assert not check_time(small, IMPORT, tmp_path, 0.05) & SERVICE_ONLY


def test_the_first_watch_takes_a_third_of_a_second_and_nothing_of_the_service(with_torch: Path, tmp_path: Path) -> None:
    imported = check_time(with_torch, FIRST_WATCH, tmp_path, 0.3)
    assert "zstandard" in imported
    assert not imported & SERVICE_ONLY


def test_without_compiled_kernels_it_says_where_they_are(with_torch: Path, tmp_path: Path) -> None:
    code = "from stablessm_core.kernels import library; print(library.why_not_compiled())"
    said = " ".join(python(with_torch, code, tmp_path))
    assert "was not built: stablessm-service contains it, and `python -m stablessm_core.kernels.build` builds it" in said


def test_a_command_of_the_service_says_what_to_install(small: Path, tmp_path: Path) -> None:
    done = run(small, "stablessm", "up", "--demo", where=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    said = "Error: `stablessm up` belongs to the service, which is not installed here. "
    assert done.stderr == f"{said}In a clone of the repository: pip install . ./service\n"
    assert "sync PATH..." in run(small, "stablessm", "--help", where=tmp_path).stdout
    assert run(small, "stablessm", "--version", where=tmp_path).stdout == f"stablessm, version {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sync", "files"), "`stablessm sync` needs the address of the server: set STABLESSM_URL, and STABLESSM_TOKEN"),
        (("doctor", "--deep"), "`stablessm doctor` has no option --deep; its options come with the service"),
    ],
)
def test_a_wrong_use_of_a_command_is_one_sentence(small: Path, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run(small, "stablessm", *arguments, where=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"Error: {said}\n")


@pytest.mark.parametrize("which", ["small", "oldest"])
def test_it_records_checks_and_sends_a_run_without_the_service(
    which: str, server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    program = partial(run, request.getfixturevalue(which), where=tmp_path)
    assert (done := program("python", "-W", "error", "-c", RECORD)).returncode == 0, done.stderr
    asked = httpx.post(f"{server}/api/tokens", headers=BEARER, json={"name": "loop", "scope": "ingest"}, timeout=60)
    known = {"STABLESSM_URL": server, "STABLESSM_TOKEN": asked.json()["secret"], "STABLESSM_DIR": "files"}

    before = program("stablessm", "doctor", **known)
    assert before.returncode == 0, before.stdout + before.stderr
    assert f"{server} answers; the token has the scope ingest" in before.stdout
    assert "1 file of a run waits in files" in before.stdout
    sent = program("stablessm", "sync", "files", **known)
    assert (sent.returncode, sent.stderr) == (0, ""), sent.stderr
    assert "no files of runs wait in files" in program("stablessm", "doctor", **known).stdout

    page = httpx.get(f"{server}/api/runs/1", headers=BEARER, timeout=60).json()
    assert (page["status"], page["project"]) == ("finished", "small")
    gone = httpx.get(f"{server}/api/runs/1/series/gone", headers=BEARER, timeout=60).json()
    assert gone["value"] == ["Infinity"] * 6 + ["NaN"] + ["Infinity"] * 23


@pytest.mark.parametrize(
    ("token", "url", "said"),
    [
        (TOKEN, None, "answers; the token has the scope admin"),
        ("a-token-of-somebody-else", None, "does not accept the token"),
        ("", None, "needs a token"),
        (TOKEN, "http://127.0.0.1:9", "http://127.0.0.1:9 does not answer: "),
        (TOKEN, "nonsense", "nonsense does not answer: "),
    ],
)
def test_the_doctor_says_what_the_server_answers(
    small: Path, server: str, tmp_path: Path, token: str, url: str | None, said: str
) -> None:
    done = run(small, "stablessm", "doctor", where=tmp_path, STABLESSM_URL=url or server, STABLESSM_TOKEN=token)
    assert (said in done.stdout, done.returncode) == (True, 0 if "scope" in said else 1), done.stdout + done.stderr


def test_the_doctor_names_a_folder_that_cannot_be_written(small: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(small, "stablessm", "doctor", where=tmp_path, STABLESSM_DIR="file/inside")
    assert (done.returncode, "missing  folder: file/inside cannot be written" in done.stdout) == (1, True), done.stdout
    assert "note     torch: not installed" in done.stdout


def test_maps_and_every_module_of_a_watched_run_work_on_python_3_10_and_numpy_1_26(oldest: Path, tmp_path: Path) -> None:
    assert python(oldest, MAPS, tmp_path)[0].startswith("1.26.")
    python(oldest, IMPORT_ALL, tmp_path)


def test_all_modules_are_valid_python_3_10() -> None:
    for package in OURS:
        for file in (ROOT / package).rglob("*.py"):
            ast.parse(file.read_text(), file.name, feature_version=(3, 10))
