"""`python -m tartlet_worker.kernels.build`: compiles the kernels for this machine, if it has a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tartlet_worker.kernels.library import FLAGS, NEEDED_CPU_FLAGS, cpu_flags, file


class NotBuilt(Exception):
    """The reason why this machine has no kernels. Engines then run on torch alone."""


def build() -> Path:
    """Compile the kernels unless the library exists; return its path.

    Raises:
        NotBuilt: no compiler, a CPU that can't run them, or the compiler refused.
    """
    missing = NEEDED_CPU_FLAGS - cpu_flags()
    if missing:
        raise NotBuilt(f"the CPU lacks {', '.join(sorted(missing))}")
    target = file()
    if target.is_file():
        return target
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("gcc", "clang", "cc"))), None)
    if compiler is None:
        raise NotBuilt("no C compiler (gcc or clang) on PATH")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return _compile(compiler, target)
    except OSError as error:
        raise NotBuilt(f"{target.parent}: {error}") from error


def _compile(compiler: str, target: Path) -> Path:
    """Compile beside the target, then move the library to the target.

    Raises:
        NotBuilt: the compiler refused.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        source = Path(__file__).with_name("decoder.c")
        run = subprocess.run(
            [compiler, *FLAGS, "-o", str(made), str(source), "-lm"], capture_output=True, text=True, check=False
        )
        if run.returncode:
            raise NotBuilt(f"{compiler}: {run.stderr.strip()[-2000:]}")
        made.replace(target)  # atomic: another process may be loading
    return target


def main() -> int:
    """Compile and print the result. A machine without kernels is no error."""
    try:
        print(f"kernels: {build()}")  # noqa: T201 - a command's output
    except NotBuilt as reason:
        print(f"kernels: not built ({reason}); the engine runs on torch alone")  # noqa: T201 - a command's output
    return 0


if __name__ == "__main__":
    sys.exit(main())
