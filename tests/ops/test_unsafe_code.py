"""The product code never unpickles data, evaluates text as code, or passes text to a shell."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("stablessm_core", "server", "worker", "web", "migrations", "studies")
FILES = sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml", "xml", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {
    "torch.load", "torch.save", "torch.jit.load", "np.load", "numpy.load", "os.system", "os.popen", "subprocess.getoutput",
    "subprocess.getstatusoutput", "asyncio.create_subprocess_shell", "np.fromfile", "pd.read_pickle", "allow_pickle",
    "importlib.util.spec_from_file_location", "runpy.run_path",
}  # fmt: skip


def unsafe(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in CALLS | ATTRIBUTES or name.endswith(".extractall"):
                found.append(name)
            found += [f"{k.arg}={ast.unparse(k.value)}" for k in node.keywords
                      if (k.arg in ("shell", "allow_pickle") and ast.unparse(k.value) != "False")
                      or (k.arg == "weights_only" and ast.unparse(k.value) != "True")]  # fmt: skip
    return found


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from pickle import loads", "import joblib as j", "torch.load(p)", "eval(x)", "exec(x)", "import yaml",
     "subprocess.run(x, shell=True)", "np.load(p, allow_pickle=True)", "os.system(x)", "import xml.etree.ElementTree",
     "archive.extractall(p)"],
)  # fmt: skip
def test_the_search_finds_every_kind_of_unsafe_code(source: str) -> None:
    assert unsafe(source)


@pytest.mark.slow
def test_no_product_code_unpickles_evaluates_text_or_uses_a_shell() -> None:
    assert len(FILES) > 80
    assert {str(file.relative_to(ROOT)): found for file in FILES if (found := unsafe(file.read_text()))} == {}


def test_messages_between_server_and_worker_are_json() -> None:
    from server.lifecycle.worker_wakeups import celery_app  # the only Celery application

    conf = celery_app("redis://127.0.0.1:6379/0").conf
    assert list(conf.accept_content) == ["json"]
    assert conf.task_serializer == conf.result_serializer == "json"


def test_browser_scripts_never_create_markup_or_code_from_text() -> None:
    for file in sorted((ROOT / "web" / "static").rglob("*.js")):
        text = file.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert word not in text, f"{file.name}: {word}"


def test_no_template_disables_escaping() -> None:
    for file in sorted((ROOT / "web" / "templates").glob("*.html")):
        text = file.read_text()
        assert "|safe" not in text.replace(" ", ""), file.name
        assert "autoescape" not in text, file.name
