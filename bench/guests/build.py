"""Build the benchmarks' C guests into a directory: `python bench/guests/build.py DIR` (zig's compiler, from PyPI)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).parent
SDK_BUILD = HERE.parents[1] / "inferlets" / "sdk" / "c" / "build.py"


def build(directory: Path) -> dict[str, Path]:
    """Compile every guest that isn't there yet or is older than its source; name -> module."""
    spec = importlib.util.spec_from_file_location("c_build", SDK_BUILD)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(SDK_BUILD)
    sdk = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sdk)
    directory.mkdir(parents=True, exist_ok=True)
    modules = {}
    for source in sorted(HERE.glob("*.c")):
        target = directory / f"{source.stem}.wasm"
        if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
            sdk.compile_guest(source, target)
        modules[source.stem] = target
    return modules


if __name__ == "__main__":
    for name, path in build(Path(sys.argv[1])).items():
        sys.stdout.write(f"{name}: {path}\n")
