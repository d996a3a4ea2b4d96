"""How the package is built: by setuptools, with the C kernels of stablessm_core/compiled beside the modules.

A wheel holds a library for every instruction set of the builder's family of processors and is tagged for its platform; an
editable installation has them beside the sources. Where no C compiler is found, one that comes as a package (ziglang) is asked
for, for the build alone. Where kernels cannot be built, the package is the same without them, and holds the reason.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

from stablessm_core.compiled import build

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def get_requires_for_build_wheel(config_settings: object = None) -> list[str]:
    """Besides what pyproject.toml names; 411 MB unpacked, so only where nothing else compiles."""
    del config_settings
    return [build.COMPILER_PACKAGE] if build.needs_compiler() else []


get_requires_for_build_editable = get_requires_for_build_wheel


class Modules(build_py):
    """Named in pyproject.toml."""

    def run(self) -> None:
        super().run()
        folder = build.HERE if self.editable_mode else Path(self.build_lib, "stablessm_core", "compiled")
        if reason := build.try_to_build(folder):
            sys.stderr.write(f"no compiled kernels: {reason}\n")


class Wheel(bdist_wheel):
    """Named in pyproject.toml."""

    def get_tag(self) -> tuple[str, str, str]:
        """py3-none-PLATFORM with libraries inside, py3-none-any without."""
        modules = self.get_finalized_command("build_py")
        folder = Path(modules.build_lib, "stablessm_core", "compiled")
        self.plat_name_supplied = not modules.editable_mode and any(folder.glob("kernels-*.so"))
        return super().get_tag()
