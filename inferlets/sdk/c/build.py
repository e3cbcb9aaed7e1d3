"""Rebuild the checked-in .wasm of the C guests: `python inferlets/sdk/c/build.py` (needs ziglang, as tests do).

They are checked in because set-up needs no compiler; `--check` fails if one is stale.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
GUESTS = [
    HERE / "examples" / "send_and_exit.c",
    HERE / "examples" / "text_completion.c",
    ROOT / "tests" / "runtime" / "wasm" / "guests" / "probe.c",
    ROOT / "tests" / "runtime" / "wasm" / "guests" / "vectors.c",
    ROOT / "tests" / "runtime" / "wasm" / "guests" / "calls.c",
]
FLAGS = [
    "--target=wasm32-freestanding",
    *("-Oz", "-std=c11", "-Wall", "-Wextra", "-Wno-unused-function", "-nostdlib", "-fno-sanitize=undefined"),
    *("-Wl,--no-entry", "-Wl,--strip-all", "-Wl,-z,stack-size=65536"),
]


def compile_guest(source: Path, target: Path) -> None:
    """Compile one guest with zig's C compiler.

    Raises:
        subprocess.CalledProcessError: it does not compile; the compiler's messages went to stderr.
    """
    command = [sys.executable, "-m", "ziglang", "cc", *FLAGS, "-I", str(HERE), "-o", str(target), str(source)]
    subprocess.run(command, check=True)


def main() -> int:
    """Rebuild, or check."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    stale = []
    with tempfile.TemporaryDirectory() as scratch:
        for source in GUESTS:
            built, kept = Path(scratch, source.stem + ".wasm"), source.with_suffix(".wasm")
            compile_guest(source, built)
            if not kept.exists() or kept.read_bytes() != built.read_bytes():
                stale.append(source.name)
                if not check:
                    kept.write_bytes(built.read_bytes())
    sys.stdout.write(f"{'stale' if check else 'rebuilt'}: {', '.join(stale) or 'none'}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
