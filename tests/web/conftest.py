"""Makes the browser's modules loadable in node by copying them next to a package.json that declares ES modules."""

import shutil
from pathlib import Path

import pytest

from web import figures


@pytest.fixture(scope="session")
def static_modules(tmp_path_factory: pytest.TempPathFactory, node: str) -> Path:
    folder = tmp_path_factory.mktemp("modules") / "static"
    shutil.copytree(Path(figures.__file__).parent / "static", folder)
    (folder / "package.json").write_text('{"type": "module"}')
    return folder
