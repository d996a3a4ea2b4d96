"""Build the kernels: one library for each set of instructions that a processor may have, whatever the builder's own has.

`python -m stablessm_core.compiled.build [FOLDER]` puts them beside this file, or into FOLDER; build_backend.py does the same when
the package is built. Needs a C compiler: the command in $STABLESSM_COMPILER or $CC, else cc, gcc or clang on the PATH, else that
of the package ziglang. Imports nothing but the standard library, because it runs before anything is installed.
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
# machine as platform.machine() gives it: instruction set: what the compiler is told (GCC and clang, zig)
TARGETS = {
    "x86_64": {
        "v2": ("-march=x86-64-v2", "-mcpu=x86_64_v2"),
        "v3": ("-march=x86-64-v3", "-mcpu=x86_64_v3"),
        "v4": ("-march=x86-64-v4", "-mcpu=x86_64_v4"),
    },
    "aarch64": {"v8": ("-march=armv8-a", "-mcpu=generic")},
}
NAMES = {"AMD64": "x86_64", "arm64": "aarch64"}
# contract: a * b + c is one instruction where the processor has one; no fast-math, which would do away with NaN
FLAGS = ("-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared", "-Wno-psabi")
# GCC is as fast so as with -O3 and sooner done, in 30 s of a processor: what counts is that loops over vectors are unrolled
OPTIMISED = {"gcc": ("-O1", "-fpeel-loops", "-fexpensive-optimizations"), "clang": ("-O3",)}
SOURCES = (".c", ".h")
COMPILER_PACKAGE = "ziglang>=0.13,<1"  # its wheels for arm64 are old platforms': unpinned, pip takes the placeholder 0.0.0


def machine() -> str:
    """This processor's family, as TARGETS has it."""
    found = platform.machine()
    return NAMES.get(found, found)


def library(target: str, folder: Path = HERE) -> Path:
    """Where the library of one of `TARGETS[machine()]` lies."""
    return folder / f"kernels-{machine()}-{target}.so"


def reason_file(folder: Path = HERE) -> Path:
    """Where it is written why there are no libraries."""
    return folder / f"kernels-{machine()}.txt"


def source_hash() -> str:
    """What the libraries are made from. A library holds it, so that one from other sources is not taken for one from these."""
    digest = hashlib.sha256(repr((TARGETS, FLAGS, OPTIMISED)).encode())
    for path in sorted(p for p in HERE.iterdir() if p.suffix in SOURCES):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:32]


def compiler() -> list[str] | None:
    """The command of the C compiler that there is, or None."""
    if named := os.environ.get("STABLESSM_COMPILER") or os.environ.get("CC"):
        return None if named == "none" else shlex.split(named)
    for name in ("cc", "gcc", "clang"):
        if (path := shutil.which(name)) and works([path]):
            return [path]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    return None


def needs_compiler() -> bool:
    """Is there none, though kernels are wanted and this family of processors has some?"""
    return machine() in TARGETS and os.environ.get("STABLESSM_COMPILER") != "none" and compiler() is None


def works(command: list[str]) -> bool:
    """Can it make a library from C that includes the standard headers? A compiler without them is often installed."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "try.c")
        source.write_text("#include <stdlib.h>\n#include <string.h>\nvoid *made(void) { return malloc(1); }\n", encoding="utf-8")
        arguments = [*command, "-fPIC", "-shared", "-o", str(Path(folder, "try.so")), str(source)]
        try:
            return subprocess.run(arguments, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def try_to_build(folder: Path = HERE) -> str | None:
    """Build as `build` does, or write down in `reason_file` why not, and return it; what an earlier build left goes."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in (reason_file(folder), *(library(target, folder) for target in TARGETS.get(machine(), ()))):
        path.unlink(missing_ok=True)
    try:
        build(folder)
    except RuntimeError as error:
        reason_file(folder).write_text(f"{error}\n", encoding="utf-8")
        return str(error)
    return None


def build(folder: Path = HERE, command: list[str] | None = None, targets: Iterable[str] | None = None) -> list[Path]:
    """Build this family's libraries, or those of `targets`, into `folder`. Raises RuntimeError with what the compiler said."""
    if machine() not in TARGETS:
        raise RuntimeError(f"there are no kernels for a processor of the family {machine()}")
    if os.environ.get("STABLESSM_COMPILER") == "none":
        raise RuntimeError("STABLESSM_COMPILER was none when it was installed")
    command = compiler() if command is None else command
    if command is None:
        raise RuntimeError("there was no C compiler when it was installed: set CC, or install gcc, clang or the package ziglang")
    if shutil.which(command[0]) is None:
        raise RuntimeError(f"there was no compiler {command[0]} when it was installed")
    known = TARGETS[machine()]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool, tempfile.TemporaryDirectory() as cache:
        # zig keeps what it makes for each target in there, and its home may not be writable
        environment = {"ZIG_GLOBAL_CACHE_DIR": cache} | os.environ
        flags = OPTIMISED[kind(command, environment)]
        return list(pool.map(lambda t: _build(folder, [*command, *FLAGS, *flags], t, environment), targets or known))


def _build(folder: Path, command: list[str], target: str, environment: dict[str, str]) -> Path:
    zig = is_zig(command)
    arguments = [*command, TARGETS[machine()][target][zig], f'-DSTABLESSM_SOURCE="{source_hash()}"']
    if target == "v4":
        arguments.append("-mprefer-vector-width=512")  # or clang takes a vector of 64 bytes in two halves
    if zig:
        arguments.append("-s")
    if zig and sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        arguments += ["-target", f"{machine()}-linux-gnu.2.17"]  # as old a C library as there may be, not the builder's
    made = library(target, folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        new = Path(scratch, made.name)
        arguments += ["-o", str(new), str(HERE / "kernels.c")]
        said = subprocess.run(arguments, capture_output=True, text=True, errors="replace", check=False, env=environment)
        if said.returncode:
            heard = "\n".join(said.stderr.strip().splitlines()[:20])
            raise RuntimeError(f"{command[0]} could not build {made.name}: {heard}")
        new.replace(made)  # a process that has the old one open keeps it
    return made


def kind(command: list[str], environment: dict[str, str]) -> str:
    """Which flags it understands: "clang" for zig and what only calls itself gcc or cc, too."""
    asking = [*command, "-dM", "-E", "-x", "c", os.devnull]
    asked = subprocess.run(asking, capture_output=True, text=True, check=False, env=environment)
    return "clang" if "__clang__" in asked.stdout else "gcc"


def is_zig(command: list[str]) -> bool:
    return "ziglang" in command or Path(command[0]).name == "zig"


if __name__ == "__main__":
    if sys.argv[1:] == ["--compiler"]:  # is there one, or need there be none?
        sys.exit(needs_compiler())
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    if reason := try_to_build(place):
        sys.exit(f"no compiled kernels: {reason}")
    for path in sorted(place.glob(f"kernels-{machine()}-*.so")):
        print(path)  # noqa: T201
