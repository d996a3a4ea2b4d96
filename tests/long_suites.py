"""The long suites: the tests of each suite, and the sources on which its result depends.

`make test` does not run these tests. `make all` runs every suite and stores a digest of its sources if it passes. `.ci/run`
runs the suites whose sources have changed since then, as listed by `python -m tests.long_suites changed`.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PASSED = Path(__file__).with_name("long_suites.json")  # digests of the suites' sources when they last passed
ENDINGS = {".py", ".c", ".h", ".js", ".html", ".css", ".json", ".toml", ".txt", ".mako", ""}


@dataclass(frozen=True)
class Suite:
    """tests: files and folders for pytest, and its options. sources: files and folders; if one changes, the suite runs again."""

    tests: tuple[str, ...]
    sources: tuple[str, ...]


SUITES = {
    "core": Suite(
        ("tests/core", "--ignore=tests/core/client", "-m", "slow"),
        ("stablessm_core", "tests/core"),
    ),
    "interpreter": Suite(
        ("tests/core/scan/test_scan_interpreter.py", "tests/core/fused/test_fused_interpreter.py"),
        ("stablessm_core/scan", "stablessm_core/fused", "tests/core/scan", "tests/core/fused"),
    ),
    "chaos": Suite(
        ("tests/chaos",),
        (
            "worker",
            "server/ingest",
            "server/lifecycle",
            "server/series",
            "server/database",
            "stablessm_core/report",
            "stablessm_core/telemetry",
            "tests/chaos",
        ),
    ),
    "attack": Suite(
        ("tests/server/http/test_attack.py", "tests/server/http/test_ingest_fuzz.py"),
        (
            "server/http",
            "server/search",
            "server/ingest",
            "tests/server/attack.py",
            "tests/mutated_frames.py",
            "tests/server/http/test_attack.py",
            "tests/server/http/test_ingest_fuzz.py",
        ),
    ),
    "watch_endings": Suite(
        ("tests/end_to_end/test_watch_endings.py",),
        (
            "stablessm",
            "stablessm_core/outside",
            "stablessm_core/watch",
            "stablessm_core/telemetry",
            "stablessm_core/report",
            "server/ingest",
            "server/lifecycle/lost_runs.py",
            "server/http/api/ingest.py",
            "tests/end_to_end/test_watch_endings.py",
            "tests/end_to_end/watched_programs.py",
            "tests/chaos/proxy.py",
        ),
    ),
    "adapters": Suite(
        (
            "tests/integrations/test_transformers.py",
            "tests/integrations/test_lightning.py",
            "tests/integrations/test_accelerate.py",
        ),
        (
            "stablessm",
            "stablessm_core/outside",
            "stablessm_core/report",
            "docs/watch/transformers.md",
            "docs/watch/lightning.md",
            "docs/watch/accelerate.md",
            "tests/integrations",
        ),
    ),
    "autopsies": Suite(
        ("tests/worker/test_autopsies.py", "tests/browser/test_autopsy.py"),
        (
            "stablessm_core/autopsy",
            "worker/autopsies.py",
            "worker/autopsy_process.py",
            "server/lifecycle/autopsies.py",
            "web/static/run/autopsy.js",
            "web/static/run/autopsy_figures.js",
            "web/templates/_autopsy.html",
            "web/templates/_autopsy_words.html",
            "tests/worker/test_autopsies.py",
            "tests/browser/test_autopsy.py",
        ),
    ),
    "two_versions": Suite(
        ("tests/server/database/test_two_versions.py",),
        ("migrations", "server/database", "tests/server/database/test_two_versions.py", "tests/server/old_code.py"),
    ),
    "migrations": Suite(
        ("tests/server/database/test_migrations.py",),
        ("migrations", "server/database", "tests/server/database/test_migrations.py", "tests/server/filled.py"),
    ),
    "kernel_build": Suite(
        ("tests/core/kernels/test_build.py", "tests/core/kernels/test_library.py", "tests/core/kernels/test_packaging.py"),
        ("stablessm_core/kernels", "service/build_backend.py", "tests/core/kernels"),
    ),
    "machines": Suite(
        (
            "tests/end_to_end/test_two_machines.py",
            "tests/end_to_end/test_deletion_everywhere.py",
            "tests/end_to_end/test_lost_worker.py",
            "tests/worker/test_checkpoint_uploads.py",
        ),
        (
            "worker",
            "server/ingest",
            "server/lifecycle",
            "server/keep",
            "server/database",
            "tests/end_to_end",
            "tests/worker/test_checkpoint_uploads.py",
        ),
    ),
    "packages": Suite(
        (
            "tests/ops/test_extending.py",
            "tests/ops/test_plug_in_layers.py",
            "tests/core/maps/test_plug_in_maps.py",
            "tests/worker/test_plug_in_tasks.py",
        ),
        (
            "docs/extending.md",
            "stablessm_core/plugins.py",
            "stablessm_core/layers/base.py",
            "stablessm_core/layers/__init__.py",
            "stablessm_core/layers/form_probe.py",
            "stablessm_core/maps/__init__.py",
            "stablessm_core/tasks/loading.py",
            "stablessm_core/spec/layers/__init__.py",
            "stablessm_core/spec/tasks/__init__.py",
            "web/charts",
            "tests/ops/test_extending.py",
            "tests/ops/test_plug_in_layers.py",
            "tests/core/maps/test_plug_in_maps.py",
            "tests/worker/test_plug_in_tasks.py",
        ),
    ),
    "backup": Suite(
        ("tests/server/backup",),
        (
            "server/backup",
            "server/database",
            "server/checkpoint_store.py",
            "benchmarks/restore_fuzz",
            "tests/server/backup",
            "tests/server/filled.py",
        ),
    ),
    "archives": Suite(
        ("tests/server/keep/test_archive_fuzz.py",),
        (
            "server/keep",
            "server/ingest",
            "server/series",
            "server/lifecycle",
            "benchmarks/archive_fuzz",
            "tests/server/keep/test_archive_fuzz.py",
        ),
    ),
    "broker": Suite(
        ("tests/server/live/test_silent_redis.py", "tests/end_to_end/test_broker_access.py"),
        (
            "worker/celery_app.py",
            "server/lifecycle/event_wakeups.py",
            "server/lifecycle/worker_wakeups.py",
            "server/live",
            "docker-compose.yml",
            "tests/server/live/test_silent_redis.py",
            "tests/end_to_end/test_broker_access.py",
        ),
    ),
    "processes": Suite(
        (
            "tests/worker/test_fork_server.py",
            "tests/worker/test_gpus.py",
            "tests/worker/test_cancel.py",
            "tests/worker/test_full_disk.py",
            "tests/core/training/test_environment.py",
            "tests/core/training/test_step.py::test_a_compiled_step_with_telemetry_trains_like_an_eager_step_within_rounding",
        ),
        (
            "worker",
            "stablessm_core/training",
            "tests/worker/test_fork_server.py",
            "tests/worker/test_gpus.py",
            "tests/worker/test_cancel.py",
            "tests/worker/test_full_disk.py",
            "tests/core/training/test_environment.py",
            "tests/core/training/test_step.py",
        ),
    ),
    "figure_files": Suite(
        ("tests/browser/test_figure_files.py",),
        (
            "web/charts",
            "web/figures.py",
            "web/picture",
            "web/static/lib/exports.js",
            "server/http/figure_files.py",
            "server/cli",
            "stablessm_core/client",
            "tests/browser/test_figure_files.py",
        ),
    ),
    "tools": Suite(
        ("tests/ops/test_dependency_audit.py", "tests/ops/test_data_sets.py"),
        (".ci", "tests/conftest.py", "tests/ops/test_dependency_audit.py", "tests/ops/test_data_sets.py"),
    ),
    "references": Suite(
        ("tests/references",),
        (
            "stablessm_core/layers",
            "stablessm_core/matrix_state",
            "stablessm_core/scan",
            "stablessm_core/outside/confirm.py",
            "stablessm_core/outside/continuous_tables.py",
            "stablessm_core/outside/evaluate.py",
            "stablessm_core/outside/modules.py",
            "stablessm_core/outside/parameters.py",
            "stablessm_core/outside/settings.py",
            "stablessm_core/outside/tables.py",
            "tests/references",
        ),
    ),
}


def digest(suite: Suite) -> str:
    """SHA-256 over the paths and contents of the suite's sources; comments and docstrings of Python files do not count."""
    found = hashlib.sha256()
    for source in suite.sources:
        path = ROOT / source
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix in ENDINGS) if path.is_dir() else [path]
        for file in files:
            content = _code(file.read_text()).encode() if file.suffix == ".py" else file.read_bytes()
            found.update(f"{file.relative_to(ROOT).as_posix()}\0".encode() + content + b"\0")
    return found.hexdigest()


def _code(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)


def changed() -> list[str]:
    """Names of the suites whose sources have changed since they last passed."""
    passed = json.loads(PASSED.read_text()) if PASSED.exists() else {}
    return [name for name, suite in SUITES.items() if passed.get(name) != digest(suite)]


def run(names: list[str]) -> list[str]:
    """Run suites one after another, store the digests of those that pass, and return the names of those that fail."""
    failed = []
    for name in names:
        before = digest(SUITES[name])
        pytest = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadscope", *SUITES[name].tests]
        # third-party packages have their own environment
        command = ["make", "--no-print-directory", "references"] if name == "references" else pytest
        print(f"long suite: {name}", flush=True)
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
            continue
        passed = json.loads(PASSED.read_text()) if PASSED.exists() else {}
        PASSED.write_text(json.dumps(passed | {name: before}, indent=2, sort_keys=True) + "\n")
    return failed


def main() -> int:
    """`changed` prints the suites to run again; `run [SUITE ...]` runs the named suites or all. Exit status 1 if one fails."""
    match sys.argv[1:]:
        case ["changed"]:
            print(*changed())
            return 0
        case ["run", *names] if set(names) <= SUITES.keys():
            failed = run(names or list(SUITES))
            print(f"failed: {', '.join(failed)}" if failed else "all long suites passed")
            return bool(failed)
    print(f"usage: python -m tests.long_suites changed | run [{' | '.join(SUITES)} ...]", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
