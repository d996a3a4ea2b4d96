"""Build the kernels: one library for each instruction set of the processor's family, even for sets that the processor lacks.

`python -m stablessm_core.kernels.build [FOLDER]` writes the libraries next to this file, or into FOLDER. service/build_backend.py
does the same when it builds the package. The C compiler is $STABLESSM_COMPILER or $CC; otherwise cc, gcc or clang on the PATH;
otherwise the compiler in the package ziglang. This module imports only the standard library, because it runs before anything is
installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
# processor family -> instruction set -> (flag for GCC and clang, flag for zig)
TARGETS = {
    "x86_64": {
        "v2": ("-march=x86-64-v2", "-mcpu=x86_64_v2"),
        "v3": ("-march=x86-64-v3", "-mcpu=x86_64_v3"),
        "v4": ("-march=x86-64-v4", "-mcpu=x86_64_v4"),
    },
    "aarch64": {"v8": ("-march=armv8-a", "-mcpu=generic")},
}
FAMILIES = {"AMD64": "x86_64", "arm64": "aarch64"}  # other names that platform.machine() returns
# -ffp-contract=fast: a * b + c becomes one instruction on processors that support it. -ffast-math would break NaN.
FLAGS = ("-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared", "-Wno-psabi")
# With these flags, GCC's code is as fast as with -O3, because only unrolling matters. Compiling takes 30 s of CPU time, which
# is less than with -O3.
OPTIMISED = {"gcc": ("-O1", "-fpeel-loops", "-fexpensive-optimizations"), "clang": ("-O3",)}
SOURCES = (".c", ".h")
COMPILER_PACKAGE = "ziglang>=0.13,<1"  # without a lower bound, pip installs the placeholder 0.0.0 on arm64


def machine() -> str:
    """The family of this processor. It is a key of TARGETS if there are kernels for the family."""
    name = platform.machine()
    return FAMILIES.get(name, name)


def library_path(target: str, folder: Path = HERE) -> Path:
    """The path of the library for an instruction set of `TARGETS[machine()]`."""
    return folder / f"kernels-{machine()}-{target}.so"


def failure_path(folder: Path = HERE) -> Path:
    """The path of the text file that contains the reason why there are no libraries."""
    return folder / f"kernels-{machine()}.txt"


def source_hash() -> str:
    """The hash of the sources and flags. Each library contains the hash that it was built from, which reveals stale libraries."""
    digest = hashlib.sha256(repr((TARGETS, FLAGS, OPTIMISED)).encode())
    for path in sorted(p for p in HERE.iterdir() if p.suffix in SOURCES):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:32]


def compiler() -> list[str] | None:
    """The command that starts the C compiler, or None if no compiler is found."""
    if named := os.environ.get("STABLESSM_COMPILER") or os.environ.get("CC"):
        return None if named == "none" else shlex.split(named)
    for name in ("cc", "gcc", "clang"):
        if (path := shutil.which(name)) and can_compile([path]):
            return [path]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    return None


def needs_compiler() -> bool:
    """True if a compiler must be installed: this processor has kernels, they are enabled, and no compiler is found."""
    return machine() in TARGETS and os.environ.get("STABLESSM_COMPILER") != "none" and compiler() is None


def can_compile(command: list[str]) -> bool:
    """True if the compiler can build a library that includes standard headers. Many installed compilers lack the headers."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "try.c")
        source.write_text("#include <stdlib.h>\n#include <string.h>\nvoid *made(void) { return malloc(1); }\n", encoding="utf-8")
        arguments = [*command, "-fPIC", "-shared", "-o", str(Path(folder, "try.so")), str(source)]
        try:
            return subprocess.run(arguments, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def try_to_build(folder: Path = HERE) -> str | None:
    """Build as `build` does. On failure, write the reason to `failure_path` and return the reason.

    The files of an earlier build are removed first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in (failure_path(folder), *(library_path(target, folder) for target in TARGETS.get(machine(), ()))):
        path.unlink(missing_ok=True)
    try:
        build(folder)
    except RuntimeError as error:
        failure_path(folder).write_text(f"{error}\n", encoding="utf-8")
        return str(error)
    return None


def build(folder: Path = HERE, command: list[str] | None = None, targets: Iterable[str] | None = None) -> list[Path]:
    """Build the libraries of this family of processors, or only `targets`, in `folder`.

    Raises RuntimeError if there is no compiler, or with the compiler's output if the compiler fails.
    """
    if machine() not in TARGETS:
        raise RuntimeError(f"there are no kernels for a processor of the family {machine()}")
    if os.environ.get("STABLESSM_COMPILER") == "none":
        raise RuntimeError("STABLESSM_COMPILER was none during installation")
    command = compiler() if command is None else command
    if command is None:
        raise RuntimeError("there was no C compiler during installation: set CC, or install gcc, clang or the package ziglang")
    if shutil.which(command[0]) is None:
        raise RuntimeError(f"there was no compiler {command[0]} during installation")
    known = TARGETS[machine()]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool, tempfile.TemporaryDirectory() as cache:
        # zig caches its runtime in this folder, because the home directory may not be writable
        environment = {"ZIG_GLOBAL_CACHE_DIR": cache} | os.environ
        flags = OPTIMISED[compiler_family(command, environment)]
        return list(pool.map(lambda target: _build(folder, [*command, *FLAGS, *flags], target, environment), targets or known))


def _build(folder: Path, command: list[str], target: str, environment: dict[str, str]) -> Path:
    zig = is_zig(command)
    arguments = [*command, TARGETS[machine()][target][zig], f'-DSTABLESSM_SOURCE="{source_hash()}"']
    if target == "v4":
        arguments.append("-mprefer-vector-width=512")  # otherwise clang splits vectors of 64 bytes
    if zig:
        arguments.append("-s")
    if zig and sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        arguments += ["-target", f"{machine()}-linux-gnu.2.17"]  # so that the library also runs with glibc 2.17
    built = library_path(target, folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        new = Path(scratch, built.name)
        arguments += ["-o", str(new), str(HERE / "kernels.c")]
        done = subprocess.run(arguments, capture_output=True, text=True, errors="replace", check=False, env=environment)
        if done.returncode:
            output = "\n".join(done.stderr.strip().splitlines()[:20])
            raise RuntimeError(f"{command[0]} could not build {built.name}: {output}")
        new.replace(built)  # processes that have loaded the old file keep using it
    return built


def compiler_family(command: list[str], environment: dict[str, str]) -> str:
    """The compiler's key in OPTIMISED. The key is "clang" even for zig, and for a clang that is installed as gcc or cc."""
    arguments = [*command, "-dM", "-E", "-x", "c", os.devnull]
    macros = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment).stdout
    return "clang" if "__clang__" in macros else "gcc"


def is_zig(command: list[str]) -> bool:
    return "ziglang" in command or Path(command[0]).name == "zig"


if __name__ == "__main__":
    if sys.argv[1:] == ["--compiler"]:  # exits with 1 if a compiler is needed and missing
        sys.exit(needs_compiler())
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    if reason := try_to_build(folder):
        sys.exit(f"no compiled kernels: {reason}")
    for path in sorted(folder.glob(f"kernels-{machine()}-*.so")):
        print(path)  # noqa: T201
