"""What is documented exists, and what exists is documented."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import click
import pytest

from server.settings import Settings, variable_of
from stablessm_core.config import RunConfig

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.fixture(scope="module")
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("configuration_table", ROOT / "docs" / "configuration_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_configuration_page_says_what_the_schema_says(table: ModuleType) -> None:
    page = table.PAGE.read_text()
    assert page == table.with_tables(page), "run `make docs`"


def test_every_field_of_the_schema_has_a_row_and_a_meaning(table: ModuleType) -> None:
    rows = {path: meaning for _, _, rows in table.sections(RunConfig.model_json_schema()) for path, _, _, meaning in rows}
    default = RunConfig.model_validate({"task": {"name": "digits"}}).model_dump()
    assert set(leaves(default)) <= set(rows)
    missing = [path for path, meaning in rows.items() if not meaning and path not in ("task.name", "model.layer.name")]
    assert missing == []


def leaves(config: dict[str, object], prefix: str = "") -> list[str]:
    found = []
    for name, value in config.items():
        found += leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name]
    return found


def test_environment_variables_are_documented_and_read() -> None:
    pattern = re.compile(r"\b(?:STABLESSM|TEST)_[A-Z_]*[A-Z]\b|\bCHROMIUM_PATH\b|\bREQUIRE_SERVICES\b")
    documented = set(pattern.findall((ROOT / "docs" / "configuration.md").read_text()))
    rooms = [ROOT / room for room in ("server", "worker", "stablessm_core")]
    sources = [file for room in rooms for file in room.rglob("*.py")] + [ROOT / "tests" / "conftest.py"]
    read = {name for file in sources for name in pattern.findall(file.read_text())}
    assert documented == read | {name for name in map(variable_of, Settings.model_fields) if name is not None}


def test_commands_and_options_named_in_the_pages_exist() -> None:
    known = options_of_commands()
    for page in PAGES:
        for line in re.findall(r"^\s*(?:\.venv/bin/)?stablessm (.+?)(?:\s*#.*)?$", page.read_text(), flags=re.MULTILINE):
            name, *words = line.split()
            if words and f"{name} {words[0]}" in known:
                name = f"{name} {words.pop(0)}"
            assert name in known, f"{page.name}: stablessm {name}"
            options = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert options <= known[name], f"{page.name}: stablessm {line}"


def test_every_command_is_explained() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert [name for name in options_of_commands() if f"`stablessm {name}" not in page] == []


def options_of_commands() -> dict[str, set[str]]:
    """Long options of each command of `stablessm`; `stablessm worker` hands its own on to `python -m worker`."""
    from server.cli.main import main
    from worker.main import main as worker

    groups = {name: command for name, command in main.commands.items() if isinstance(command, click.Group)}
    inside = {f"{name} {part}": command for name, group in groups.items() for part, command in group.commands.items()}
    commands = {**{k: v for k, v in main.commands.items() if k not in groups}, **inside, "worker": worker}
    return {
        name: {
            option
            for parameter in command.params
            if not getattr(parameter, "hidden", False)
            for option in parameter.opts
            if option.startswith("--")
        }
        for name, command in commands.items()
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_the_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_the_python_of_the_library_page_runs() -> None:
    page = ROOT / "docs" / "library.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    exec(compile("\n".join(blocks), str(page), "exec"), {"__name__": "library_page"})  # one namespace, as in a notebook


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_files_named_in_the_pages_exist(page: Path) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    named = re.findall(r"`([\w/{}-]+\.(?:py|js|css|html|sql))\b", page.read_text())
    ours = [name for name in named if not name.startswith("yourpackage/")]
    missing = [name for name in ours if not any(f"/{file}".endswith(f"/{name}") for file in tracked)]
    assert missing == []


def test_the_readme_names_every_room() -> None:
    """Every package and every other folder at the top has its line in the tree, and every line has its folder."""
    tree = re.search(r"## The tree\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert tree is not None
    named, top = set(), ""
    for line in tree[1].splitlines():
        name = line.split()[0]
        top = top if line.startswith(" ") else name
        named.add(name if top == name else top + name)
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    folders = {f"{file.split('/')[0]}/" for file in tracked if "/" in file and not file.startswith(".")}
    packages = {
        f"{room}/{p.name}/"
        for room in ("stablessm_core", "server")
        for p in (ROOT / room).iterdir()
        if (p / "__init__.py").exists()
    }
    assert named == folders | packages


def test_the_drawing_of_the_rooms_has_the_order_that_is_checked() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawing = page[page.index("## Rooms") : page.index("## The life of a run")].split("```")[1]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    order = [layer.split(" | ") for layer in contracts[0]["layers"]]
    drawn = [
        re.findall(r"(?<![\w.`])(?:server\.\w+|worker|migrations|stablessm_core|web)(?![\w.`])", line)
        for line in drawing.splitlines()
    ]
    rooms = [sorted(line) for line in drawn if line]
    assert rooms == [sorted(layer) for layer in order if layer != ["server.__main__"]]


def test_make_targets_named_in_the_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in PAGES:
        text = page.read_text()
        named = re.findall(r"`make (?:[A-Z]+=\S+ )?([a-z]+)", text) + re.findall(r"^make ([a-z]+)", text, flags=re.MULTILINE)
        assert set(named) <= targets, page.name


def test_series_of_the_catalogue_are_documented() -> None:
    from stablessm_core.telemetry.series import MEANINGS

    page = (ROOT / "docs" / "architecture.md").read_text()
    missing = [name for name in MEANINGS if f"`{name}`" not in page and f"`ssm/{{layer}}/{name}`" not in page]
    assert missing == []


def test_the_version_in_the_changelog_is_ours() -> None:
    code = "import stablessm_core; print(stablessm_core.__version__)"
    version = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", heading) for heading in headings[1:])
    assert headings[1].startswith(f"{version} - ")


def test_the_code_names_of_the_glossary_exist() -> None:
    rows = re.findall(r"^\| ([^|]+?) \| `([\w.]+)` \|", (ROOT / "docs" / "glossary.md").read_text(), flags=re.MULTILINE)
    assert len(rows) > 40
    assert [f"{word}: {name}" for word, name in rows if not defined(name)] == []


def defined(name: str) -> bool:
    """Is there such a module, folder, or a class, function, constant or method in one? Read from the sources, without imports."""
    path, parts = ROOT, name.split(".")
    while parts and (path / parts[0]).is_dir():
        path = path / parts.pop(0)
    if not parts:
        return True
    path = path / f"{parts.pop(0)}.py" if (path / f"{parts[0]}.py").is_file() else path / "__init__.py"
    body = ast.parse(path.read_text()).body if path.is_file() else []
    for part in parts:
        found = [node for node in body if part in names_of(node)]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return path.is_file()


def names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]
