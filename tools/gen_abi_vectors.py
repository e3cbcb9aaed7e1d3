"""Writes the ABI's test vectors: for every call and event, its arguments and its bytes.

Usage: python -m tools.gen_abi_vectors [--check]

Every SDK must turn a vector's `arguments` into its `bytes` (submissions) or read its `records` from them (deliveries).
Every packer must do so with `packed`, the arguments by the names of the registry (`tools/calls`). Bytes among them are
hexadecimal, as payloads are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tools.calls.vectors import control, deliveries, runtime, worker
from tools.calls.vectors.form import Vector
from tools.generated import write_or_check

TARGET = Path("inferlets/sdk/vectors/abi.json")


def vectors() -> list[Vector]:
    """Return all vectors, in the order of the file."""
    return [
        *runtime.runtime_vectors(),
        *runtime.web_vectors(),
        *runtime.child_vectors(),
        *control.sharing_vectors(),
        *control.control_vectors(),
        *worker.worker_vectors(),
        *worker.sample_vectors(),
        *control.grammar_vectors(),
        *worker.mask_vectors(),
        *control.name_vectors(),
        *deliveries.delivery_vectors(),
    ]


def generate() -> str:
    """Return the text of the file."""
    lines = ",\n".join("  " + json.dumps(vector.as_json(), ensure_ascii=False) for vector in vectors())
    return f"[\n{lines}\n]\n"


def main(argv: list[str], root: Path) -> int:
    """Write the vectors, or with `--check` compare them; return the exit status."""
    return write_or_check({TARGET: generate()}, argv, root=root, command="python -m tools.gen_abi_vectors")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parents[1]))
