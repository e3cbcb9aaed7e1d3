"""Generates protos/tartlet_protos from protos/tartlet/v1, or with `--check` compares the two.

protoc puts code where the .proto files are, under `tartlet/v1`, which in Python would be inside the client's package.
The code moves to `tartlet_protos`, and its imports with it.

Usage: python tools/gen_protos.py [--check]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
SOURCES = PROTOS / "tartlet" / "v1"
OUTPUT = PROTOS / "tartlet_protos"
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def moved(code: str) -> str:
    """Rewrite the imports of generated `code` for its new package; on the wire the package stays `tartlet.v1`."""
    code = code.replace("from tartlet.v1 import ", "from tartlet_protos import ")
    return re.sub(r"'tartlet\.v1\.(\w+_pb2)'", r"'tartlet_protos.\1'", code)


def generate() -> dict[str, str]:
    """The generated files by name.

    Raises:
        subprocess.CalledProcessError: protoc refused a source; its message is on stderr.
    """
    sources = sorted(SOURCES.glob("*.proto"))
    with tempfile.TemporaryDirectory(prefix="tartlet-protos-") as scratch:
        outputs = {"python": "", "grpc_python": "", "mypy": "quiet:", "mypy_grpc": "quiet:"}
        flags = [f"--{kind}_out={options}{scratch}" for kind, options in outputs.items()]
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", *flags, *map(str, sources)]
        # protoc finds its plugins (mypy-protobuf) on PATH, and they stand beside the interpreter
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        subprocess.run(command, check=True, env={**os.environ, "PATH": path})
        return {
            file.name: moved(file.read_text(encoding="utf-8"))
            for file in sorted(Path(scratch, "tartlet", "v1").iterdir())
        }


def present() -> dict[str, str]:
    """The generated files that the tree holds, by name."""
    files = (file for file in OUTPUT.iterdir() if file.name.endswith(SUFFIXES))
    return {file.name: file.read_text(encoding="utf-8") for file in files}


def main() -> int:
    """Writes the files that changed; with --check, names them and returns 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a file is stale")
    check: bool = parser.parse_args().check
    fresh, old = generate(), present()
    stale = sorted(name for name in fresh.keys() | old.keys() if fresh.get(name) != old.get(name))
    for name in stale:
        if check:
            print(f"error: {OUTPUT.relative_to(ROOT) / name} is stale: run `make protos`", file=sys.stderr)
        elif name in fresh:
            (OUTPUT / name).write_text(fresh[name], encoding="utf-8")
        else:
            (OUTPUT / name).unlink()
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
