"""Builds the modules that the FlashInfer path loads into FlashInfer's package, ahead of time.

    python -m tartlet_worker.attention.flashinfer_build --architectures 9.0a

The image for CUDA is built with it. What is built already stays, so that a build that was cut short goes on.

FlashInfer compiles each prefill module for four kinds of masks, over pages and over ragged keys: eight files of some
minutes each. The worker's wrappers launch one to three of them. The others keep their functions, which then return
`cudaErrorNotSupported` in place of launching a kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tartlet_worker.attention import flashinfer_modules as modules

IMAGE_ARCHITECTURE = "9.0a"
PLAIN, CAUSAL, CUSTOM = 0, 1, 2
"""FlashInfer's `MaskMode`, as its sources are numbered."""

_FILE = re.compile(r"batch_prefill_(paged|ragged)_kernel_mask_(\d)\.cu")
_INCLUDE = "#include <flashinfer/attention/prefill.cuh>\n"
_NAMESPACE = "namespace flashinfer {\n"
_PARAMETERS = "PosEncodingMode, bool, MaskMode, typename, typename Params"
_HEADS = {
    "paged": f"template <bool, uint32_t, uint32_t, uint32_t, {_PARAMETERS}>\n",
    "ragged": f"template <uint32_t, uint32_t, uint32_t, {_PARAMETERS}>\n",
}
_REFUSAL = """\
cudaError_t BatchPrefillWith{kind}KVCacheDispatched(Params, typename Params::DTypeO*, float*, bool, cudaStream_t) {{
  return cudaErrorNotSupported;
}}
"""


def masks(name: str) -> frozenset[int]:
    """Return the masks that are launched from a prefill module.

    One variant of ours owns its mask. Masks of programs are applied by the module without windows. Tokens that see all
    columns, and columns before them, are found in both modules.
    """
    if name.startswith("tartlet_seen"):
        return frozenset({CUSTOM})
    return frozenset({PLAIN, CAUSAL}) if "use_swa_True" in name else frozenset({PLAIN, CAUSAL, CUSTOM})


def trim(name: str, sources: list[Path]) -> int:
    """Rewrite the sources of a module that hold no kernel which is launched, and return how many.

    Args:
        name: the module's.
        sources: as FlashInfer has written them.

    Raises:
        ValueError: a source isn't as the tested release writes it.
    """
    wanted, count = masks(name), 0
    for path in sources:
        found = _FILE.fullmatch(path.name)
        if found is None or (found[1] == "paged" and int(found[2]) in wanted):
            continue
        path.write_text(without_kernels(path.read_text(), found[1]))
        count += 1
    return count


def without_kernels(source: str, kind: str) -> str:
    """Return a source whose functions refuse, under the names that it had.

    Args:
        source: with explicit instantiations of a launcher that is included.
        kind: "paged" or "ragged".

    Raises:
        ValueError: the source isn't as the tested release writes it.
    """
    if source.count(_INCLUDE) != 1 or source.count(_NAMESPACE) != 1:
        raise ValueError("FlashInfer's template of prefill kernels isn't the tested one")
    headers = "#include <flashinfer/attention/mask.cuh>\n#include <flashinfer/pos_enc.cuh>\n"
    refusal = _HEADS[kind] + _REFUSAL.format(kind=kind.capitalize())
    return source.replace(_INCLUDE, headers).replace(_NAMESPACE, f"{_NAMESPACE}\n{refusal}")


@dataclass(frozen=True, slots=True)
class Built:
    """One module that was built now."""

    name: str
    seconds: float
    size: int  # bytes

    def __str__(self) -> str:
        return f"{self.name}: {self.seconds:.0f} s, {self.size} bytes"


class BuildFailed(Exception):
    """Modules that can't be compiled, taken or loaded, with the reason; all others were built."""


def take(folder: Path, root: Path, architectures: str) -> list[str]:
    """Copy modules that were built before into the package, and return their names; `build` leaves them as they are.

    Args:
        folder: `data/aot` of another installation of the package, with its `MANIFEST`, or a folder without libraries.
        root: the package's directory.
        architectures: what the modules must have been built for, such as "9.0a", separated by spaces.

    Raises:
        BuildFailed: the modules were built from another release, or for other devices.
    """
    if not any(folder.glob("*/*.so")):
        return []
    theirs = modules.manifest_in(folder)
    if theirs["architectures"] != architectures.split():
        raise BuildFailed(
            f"{folder / modules.MANIFEST} doesn't say that its modules were built from flashinfer-python "
            f"{modules.VERSION} for {architectures}: give modules that were, or none"
        )
    said = _noted(root, architectures)
    names = [name for name in theirs["modules"] if (folder / name / f"{name}.so").is_file()]
    for name in names:
        target = _library(root, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name / f"{name}.so", target)
        said["modules"][name] = theirs["modules"][name]
    _note(root, said)
    return names


def check(wanted: Sequence[modules.Needs]) -> None:
    """Load all modules as a worker does that has no compiler.

    Raises:
        BuildFailed: modules are missing or can't be loaded, such as those that were linked on a newer system.
    """
    os.environ["FLASHINFER_DISABLE_JIT"] = "1"
    reasons = [why for needs in wanted if (why := modules.load(needs))]
    if reasons:
        raise BuildFailed("\n".join([*reasons, "modules that were built elsewhere must fit this system's libraries"]))


def build(
    wanted: Sequence[modules.Needs],
    root: Path,
    architectures: str,
    *,
    only: str = "",
    jobs: int = 1,
    tell: Callable[[Built], None] = lambda _: None,
) -> list[str]:
    """Build modules into the package, save those that are there for these devices, and note each in `MANIFEST`.

    Args:
        wanted: what models ask for.
        root: the package's directory.
        architectures: such as "9.0a", separated by spaces.
        only: a part of the names of modules to build; "": all.
        jobs: modules that are compiled at a time. The environment's `MAX_JOBS` bounds the compilers of each.
        tell: called with each module when it is built.

    Returns:
        The names of the modules, those that were there too.

    Raises:
        BuildFailed: some modules can't be compiled.
    """
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = architectures
    found: dict[str, Any] = {}
    for needs in wanted:
        found |= modules.specs(needs)
    names = [name for name in found if only in name]
    said = _noted(root, architectures)
    missing = [name for name in names if not (name in said["modules"] and _library(root, name).is_file())]
    failed = []
    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(_build_one, root, name, found[name]) for name in missing]):
            try:
                made = done.result()
            except Exception as error:  # noqa: BLE001 - whatever a compiler's runner raises, the others are built
                failed.append(str(error)[-2000:])
                continue
            said["modules"][made.name] = {"seconds": round(made.seconds), "bytes": made.size}
            _note(root, said)
            tell(made)
    if failed:
        raise BuildFailed(f"{len(failed)} of {len(names)} modules can't be compiled: " + "\n".join(failed))
    return names


def _noted(root: Path, architectures: str) -> dict[str, Any]:
    """Return the package's manifest, without modules if they were built for other devices."""
    said, wanted = modules.manifest(root), architectures.split()
    return said if said["architectures"] == wanted else {"architectures": wanted, "modules": {}}


def _note(root: Path, said: dict[str, Any]) -> None:
    """Write the package's manifest."""
    note = root / "data" / "aot" / modules.MANIFEST
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps({"version": modules.VERSION} | said, indent=1))


def _library(root: Path, name: str) -> Path:
    return root / "data" / "aot" / name / f"{name}.so"


def _build_one(root: Path, name: str, spec: Any) -> Built:
    begun = time.monotonic()
    trim(name, spec.sources)
    spec.build()
    target = _library(root, name)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(".new")
    shutil.copyfile(spec.jit_library_path, fresh)
    fresh.replace(target)  # a worker may look for it
    return Built(name, time.monotonic() - begun, target.stat().st_size)


def main(argv: list[str]) -> int:
    """Build the modules that this program is asked for."""
    parser = argparse.ArgumentParser(description="Build FlashInfer's modules into its package.")
    parser.add_argument(
        "--architectures", help="compute capabilities, separated by spaces (default: of the GPU here, else 9.0a)"
    )
    parser.add_argument(
        "--head-dims", type=int, nargs="+", default=modules.HEAD_DIMS, choices=modules.HEAD_DIMS, help="sizes of heads"
    )
    parser.add_argument("--only", default="", help="build modules whose names have this part")
    parser.add_argument("--jobs", type=int, default=1, help="modules that are compiled at a time")
    parser.add_argument("--list", action="store_true", help="print the modules' names and build nothing")
    args = parser.parse_args(argv)
    wanted = list(modules.every_need(args.head_dims))
    if args.list:
        names = dict.fromkeys(name for needs in wanted for name in needs.modules() if args.only in name)
        _say("\n".join(names))
        return 0
    root = modules.package()
    if root is None:
        print("flashinfer-python is not installed", file=sys.stderr)  # noqa: T201 - a command's output
        return 1
    if lacks := modules.tools_lack(root):
        print(lacks, file=sys.stderr)  # noqa: T201 - a command's output
        return 1
    try:
        build(
            wanted,
            root,
            args.architectures or architecture_here(),
            only=args.only,
            jobs=args.jobs,
            tell=lambda made: _say(str(made)),
        )
    except BuildFailed as failed:
        print(failed, file=sys.stderr)  # noqa: T201 - a command's output
        return 1
    return 0


def architecture_here() -> str:
    """Return the architecture of this machine's GPU, or the one that images are built for."""
    import torch

    if not torch.cuda.is_available():
        return IMAGE_ARCHITECTURE
    major, minor = torch.cuda.get_device_capability()
    return f"{major}.{minor}{'a' if major >= 9 else ''}"


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command's output


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
