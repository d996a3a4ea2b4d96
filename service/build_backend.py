"""The build backend of the service: setuptools, plus the compiled C kernels of stablessm_core/kernels.

A wheel contains one library for each instruction set of the build machine's processor family, and is tagged for its platform.
An editable installation has the libraries next to the sources. If no C compiler is installed, the build (but not the installed
package) requires the package ziglang, which contains a C compiler. If the kernels cannot be built, the package contains a file
with the reason instead of the libraries. A wheel also contains the registered claims and the reports of docs/paper.

The libraries are installed into the folder stablessm_core/kernels of the distribution stablessm, which has their sources.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools.build_meta import (
    build_editable,
    build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from stablessm_core.kernels import build  # noqa: E402 - nothing is installed yet

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


class UnsupportedOperation(Exception):
    """What installers expect from a backend that builds no source distribution."""


def build_sdist(sdist_directory: str, config_settings: object = None) -> str:
    """Raises UnsupportedOperation: the sources lie in the folder above, which a source distribution cannot contain."""
    del sdist_directory, config_settings
    raise UnsupportedOperation("the service is built from a clone of the repository: pip wheel --no-deps ./service")


def get_requires_for_build_wheel(config_settings: object = None) -> list[str]:
    """The requirements in addition to those in pyproject.toml: a package with a C compiler (411 MB) if none is installed."""
    del config_settings
    return [build.COMPILER_PACKAGE] if build.needs_compiler() else []


get_requires_for_build_editable = get_requires_for_build_wheel


class Modules(build_py):
    """Builds the kernels after the Python modules, and copies the reports. pyproject.toml refers to this class."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self._copy_reports()
        folder = build.HERE if self.editable_mode else Path(self.build_lib, "stablessm_core", "kernels")
        if reason := build.try_to_build(folder):
            sys.stderr.write(f"no compiled kernels: {reason}\n")

    def _copy_reports(self) -> None:
        target = Path(self.build_lib, "studies", "paper", "registered")
        target.mkdir(parents=True, exist_ok=True)
        for file in sorted((ROOT / "docs" / "paper").glob("*.json")):
            shutil.copy(file, target)


class Wheel(bdist_wheel):
    """Tags a wheel for its platform if it contains libraries. pyproject.toml refers to this class."""

    def get_tag(self) -> tuple[str, str, str]:
        """py3-none-PLATFORM for a wheel with libraries, py3-none-any for a wheel without libraries."""
        modules = self.get_finalized_command("build_py")
        folder = Path(modules.build_lib, "stablessm_core", "kernels")
        self.plat_name_supplied = not modules.editable_mode and any(folder.glob("kernels-*.so"))
        return super().get_tag()
