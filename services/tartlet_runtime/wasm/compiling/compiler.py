"""Compile one module ahead of time, in a process of its own.

The command is `python -m tartlet_runtime.wasm.compiling.compiler KIND IN OUT MEMORY_BYTES`.

A hostile module may make the compiler slow, large or crash; the caller gives a time limit and a memory limit.
Exit status 3 and one line on stderr: the module is not valid.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import wasmtime
from wasmtime.component import Component

from tartlet_runtime.wasm.compiling.bounded import INVALID, OUT_OF_MEMORY, SLACK_BYTES
from tartlet_runtime.wasm.compiling.engine_flags import compile_config


def main(kind: str, source: str, target: str, memory_bytes: str) -> int:
    """Compile `source` to `target` in about `memory_bytes` bytes of memory; return the exit status."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = int(memory_bytes) + SLACK_BYTES  # the parent ends this process sooner
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    engine = wasmtime.Engine(compile_config())
    wasm = Path(source).read_bytes()
    try:
        compiled = Component(engine, wasm) if kind == "component" else wasmtime.Module(engine, wasm)
    except MemoryError:
        return OUT_OF_MEMORY
    except wasmtime.WasmtimeError as e:
        sys.stderr.write(" ".join(str(e).split())[:500])
        return INVALID
    Path(target).write_bytes(compiled.serialize())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
