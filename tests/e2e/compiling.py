"""Compiles programs in C for tests, as the C SDK says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tartlet import Source

SDK = Path(__file__).parents[2] / "inferlets" / "sdk" / "c"


def compiled(directory: Path, program: str) -> Source:
    """Returns the module that zig's compiler makes of a program, in a directory for scratch."""
    source, target = directory / "program.c", directory / "program.wasm"
    source.write_text(program)
    flags = ["--target=wasm32-freestanding", "-Os", "-nostdlib", "-Wl,--no-entry"]
    command = [sys.executable, "-m", "ziglang", "cc", *flags, "-I", str(SDK), "-o", str(target), str(source)]
    subprocess.run(command, check=True, timeout=120)
    return Source.from_file(target)
