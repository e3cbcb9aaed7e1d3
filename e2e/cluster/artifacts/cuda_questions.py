"""Runs in the image for CUDA, on a machine without a GPU, and prints as JSON what a worker there finds.

The only argument is a program that completes a text. Everything is asked with the image's own packages.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "nvcc")
PLACES = ("/", "/etc", "/opt", "/opt/tartlet", "/opt/tartlet/cache", "/opt/venv", "/tmp", "/var/tmp")  # noqa: S108 - asked about
"""Places that a container could be able to write."""


def network() -> bool:
    """Whether any address can be reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return False
    return True


def said(*command: str, **variables: str) -> dict[str, Any]:
    """Runs a command, and returns its status and the end of its output."""
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False, timeout=300)
    return {"status": done.returncode, "stdout": done.stdout, "output": (done.stdout + done.stderr)[-2000:]}


def answers(program: Path) -> dict[str, Any]:
    """Returns all answers; `cuda_image.problems` judges them."""
    from tartlet_worker.attention import flashinfer_modules
    from tartlet_worker.torch_engine import attention_choice

    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = "9.0a"  # FlashInfer asks the GPU, and there is none
    root = flashinfer_modules.package()
    built = sorted((root / "data" / "aot").glob("*/*.so")) if root else []
    loaded = {needs.head_dim: flashinfer_modules.load(needs) for needs in flashinfer_modules.every_need()}
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(".so")}
    licence = [file for file in metadata.files("tartlet") or [] if file.name == "LICENSE"]
    doctor = said("tartlet", "doctor", "--json", TARTLET_WORKER_DEVICE="cuda")["stdout"]
    worker = said("tartlet", "serve", "--role", "worker", TARTLET_WORKER_DEVICE="cuda")
    run = said("tartlet", "run", str(program), "--prompt", "374+588=", "--max-tokens", "8")
    return {
        "compilers": [found for name in COMPILERS if (found := shutil.which(name))],
        "network": network(),
        "interfaces": [name for _, name in socket.if_nameindex()],
        "user": f"{os.getuid()}:{os.getgid()}",
        "writable": [place for place in PLACES if os.access(place, os.W_OK)],
        "licence": bool(licence) and all(Path(str(file.locate())).is_file() for file in licence),
        "modules": {library.stem: library.stat().st_size for library in built},
        "mapped": sorted(library.stem for library in built if str(library) in mapped),
        "loaded": {str(head_dim): why for head_dim, why in loaded.items()},
        "triton_lacks": attention_choice.triton_lacks(),
        "doctor": json.loads(doctor),
        "worker": {"status": worker["status"], "output": worker["output"]},
        "run": {"status": run["status"], "output": run["output"]},
    }


if __name__ == "__main__":
    print("told", json.dumps(answers(Path(sys.argv[1]))))
