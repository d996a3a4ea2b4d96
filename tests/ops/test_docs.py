"""Everything that the documentation names exists, and everything that must be documented is documented."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from itertools import takewhile
from pathlib import Path
from types import ModuleType

import click
import pytest

from server.settings import Settings, variable_of
from stablessm_core.spec.config import RunConfig
from stablessm_core.verdict import SENTENCES
from studies.culprits import QUICK, Findings
from studies.culprits_report import culprits_report
from studies.paper.registry import load
from studies.paper.report import dumps
from tests.extending import IN_REPOSITORY
from tests.studies.test_culprits_text import POINTS, cells

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "watch").glob("*.md")])


@pytest.fixture(scope="module")
def table() -> ModuleType:
    return generator("configuration_table")


def generator(name: str) -> ModuleType:
    """Load the script in docs/ that writes generated text."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_documented_and_typed_run_fields_equal_those_of_the_server() -> None:
    for file, text in generator("run_fields").files().items():
        assert file.read_text() == text, f"{file.name}: run `make docs`"


def test_the_systems_page_lists_every_layer_and_map() -> None:
    tables = generator("systems_tables")
    page = tables.PAGE.read_text()
    assert page == tables.with_tables(page), "run `make docs`"


def test_the_page_of_sentences_lists_every_sentence_of_the_verdict() -> None:
    tables = generator("verdict_sentences")
    page = tables.PAGE.read_text()
    assert page == tables.with_tables(page), "run `make docs`"
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)) == sorted(SENTENCES)


def test_the_article_about_culprits_has_the_numbers_of_its_report(tmp_path: Path) -> None:
    numbers = generator("culprits_numbers")
    page = numbers.PAGE.read_text("utf-8")
    assert page == numbers.with_numbers(page), "run `make docs`"
    for name in numbers.BLOCKS:
        assert [page.count(marker.format(name=name)) for marker in numbers.MARKERS] == [1, 1], name
    numbers.REPORT = tmp_path / "culprits.json"
    numbers.REPORT.write_text(dumps(culprits_report(Findings(QUICK, [7], cells(), list(POINTS), [], []), load())))
    filled = numbers.with_numbers(page)
    assert "| s5 | 1/3 [0.06, 0.79] | 2/3 [0.21, 0.94] |  | 3/3 [0.44, 1.00] |" in filled
    assert numbers.with_numbers(filled) == filled


def test_the_configuration_page_agrees_with_the_schema(table: ModuleType) -> None:
    page = table.PAGE.read_text()
    assert page == table.with_tables(page), "run `make docs`"


def test_every_field_of_the_schema_has_a_table_row_with_a_meaning(table: ModuleType) -> None:
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


def test_the_documented_environment_variables_are_those_that_the_code_reads() -> None:
    pattern = re.compile(r"\b(?:STABLESSM|TEST)_[A-Z_]*[A-Z]\b|\bCHROMIUM_PATH\b|\bREQUIRE_SERVICES\b")
    documented = set(pattern.findall((ROOT / "docs" / "configuration.md").read_text()))
    rooms = [ROOT / room for room in ("server", "worker", "stablessm_core")]
    sources = [file for room in rooms for file in room.rglob("*.py")] + [ROOT / "tests" / "conftest.py"]
    read = {name for file in sources for name in pattern.findall(file.read_text())}
    unread = {"STABLESSM_PORT"}  # Kubernetes may set it to an address, so no setting reads it; a comment names it
    assert documented == read - unread | {name for name in map(variable_of, Settings.model_fields) if name is not None}


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


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert [name for name in options_of_commands() if f"`stablessm {name}" not in page] == []


def options_of_commands() -> dict[str, set[str]]:
    """Long options of each command of `stablessm`. `stablessm worker` passes its options on to `python -m worker`."""
    from server.cli.main import LazyCommand, main
    from worker.main import main as worker

    loaded = {name: command.load() for name, command in main.commands.items() if isinstance(command, LazyCommand)}
    groups = {name: command for name, command in loaded.items() if isinstance(command, click.Group)}
    inside = {f"{name} {part}": command for name, group in groups.items() for part, command in group.commands.items()}
    commands = {**{k: v for k, v in loaded.items() if k not in groups}, **inside, "worker": worker}
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
def test_links_between_the_pages_have_existing_targets(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_the_python_code_of_the_library_page_runs() -> None:
    page = ROOT / "docs" / "library.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    exec(
        compile("\n".join(blocks), str(page), "exec"), {"__name__": "library_page"}
    )  # all blocks share one namespace, as in a notebook


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_files_named_in_the_pages_exist(page: Path) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    named = re.findall(r"`([\w/{}-]+\.(?:py|js|css|html|sql))\b", page.read_text())
    ours = [name for name in named if not name.startswith("yourpackage/") and name not in IN_REPOSITORY.values()]
    missing = [name for name in ours if not any(f"/{file}".endswith(f"/{name}") for file in tracked)]
    assert missing == []


def test_the_readme_lists_every_package_and_every_top_level_folder() -> None:
    """The tree in the README has one line for each package and each top-level folder, and no other lines."""
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


def test_the_drawings_of_the_packages_have_the_order_of_the_import_contracts() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    house, core = page[page.index("## Rooms") : page.index("## The life of a run")].split("```")[1::2]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = [
        [sorted(line.split(" | ")) for line in contract["layers"]] for contract in contracts if contract["type"] == "layers"
    ]
    assert (
        drawn(house, r"server\.\w+|worker|migrations|studies|stablessm_core|stablessm|web") == checked[0][1:]
    )  # the drawing omits server.__main__
    assert drawn(core, "|".join(room for line in checked[2] for room in line)) == checked[2]


def drawn(drawing: str, room: str) -> list[list[str]]:
    """The package names at the beginning of each line of a drawing."""
    lines = [list(takewhile(re.compile(room).fullmatch, line.split())) for line in drawing.splitlines()]
    return [sorted(line) for line in lines if line]


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


def test_the_newest_version_in_the_changelog_is_the_package_version() -> None:
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
    """True if the sources contain this module, folder, class, function, constant or method. Parses them without an import."""
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
