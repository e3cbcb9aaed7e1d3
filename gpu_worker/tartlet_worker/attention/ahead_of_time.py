"""Builds what CUDA paths would compile at their start, so that an image needs no compiler: the Dockerfile runs this.

FlashInfer's modules go into its package. Triton needs a C compiler for one library, its launcher, which is put into a
folder that `TARTLET_TRITON_LAUNCHER` names later; `provide_launcher` puts it into Triton's cache. Kernels themselves
are compiled by the ptxas that Triton brings.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from tartlet_worker.attention import flashinfer_build, flashinfer_modules

LAUNCHER = "TARTLET_TRITON_LAUNCHER"
DRIVER = "libcuda.so.1"
_NAME = "cuda_utils"


def toolkit(target: Path, parts: list[Path]) -> Path:
    """Link the files of CUDA packages into one folder that looks like a CUDA toolkit, and return it.

    Args:
        target: the folder; made.
        parts: the folders `nvidia/cu13` of the packages that hold nvcc, and those of CUDA's headers and runtime.
    """
    for part in parts:
        for path in sorted(part.rglob("*")):
            link = target / path.relative_to(part)
            if path.is_dir():
                link.mkdir(parents=True, exist_ok=True)
            elif not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path.resolve())
    for program in (target / "bin", target / "nvvm" / "bin"):
        for path in program.iterdir() if program.is_dir() else ():
            if path.is_file():
                path.resolve().chmod(0o755)  # pip keeps no modes with --target
    lib = target / "lib"
    if not (target / "lib64").exists():
        (target / "lib64").symlink_to(lib)
    runtime = next(iter(sorted(lib.glob("libcudart.so.*"))), None)
    if runtime is not None and not (lib / "libcudart.so").exists():
        (lib / "libcudart.so").symlink_to(runtime)
    driver_stub(lib / "stubs" / "libcuda.so")
    return target


def driver_stub(path: Path) -> None:
    """Make a library without functions that stands for the driver's while a linker runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["cc", "-shared", "-x", "c", os.devnull, "-o", str(path), f"-Wl,-soname,{DRIVER}"]
    subprocess.run(command, check=True)


def _launcher_arguments() -> dict[str, Any]:
    """Return what Triton's `CudaUtils` gives to compile its launcher."""
    from triton.backends.nvidia import driver

    return {
        "library_dirs": driver.library_dirs(),
        "include_dirs": driver.include_dirs,
        "libraries": driver.libraries,
    }


def _launcher_source() -> Path:
    from triton.backends.nvidia import driver

    return Path(driver.dirname, "driver.c")


def build_launcher(target: Path) -> Path:
    """Build Triton's launcher into a folder; return the library. A driver is needed only to load it."""
    driver_stub(target / DRIVER)
    os.environ |= {"TRITON_CACHE_DIR": str(target), "TRITON_LIBCUDA_PATH": str(target)}
    from triton.runtime.build import compile_so_from_file

    found = compile_so_from_file(src_path=str(_launcher_source()), name=_NAME, **_launcher_arguments())
    return Path(found)


def launcher() -> Path | None:
    """Return a launcher that was built for this Python, or None."""
    folder = os.environ.get(LAUNCHER)
    file = f"{_NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"
    return next(iter(Path(folder).glob(f"*/{file}")), None) if folder else None


def provide_launcher() -> None:
    """Put a built launcher into Triton's cache, where Triton looks for it on this machine, if there is one."""
    library = launcher()
    if library is None:
        return
    from triton.runtime import build

    config = {"language": ["c"], **_launcher_arguments(), "ccflags": None}
    cache = build._get_cache_manager(_launcher_source().read_bytes(), config=config)  # noqa: SLF001 - as `build` does
    if cache.get_file(library.name) is None:
        cache.put(library.read_bytes(), library.name, binary=True)


def main(argv: list[str]) -> int:
    """Build all that the arguments name."""
    parser = argparse.ArgumentParser(description="Build FlashInfer's modules and Triton's launcher ahead of time.")
    parser.add_argument("--compiler", type=Path, required=True, help="the folder with nvcc's packages")
    parser.add_argument("--launcher", type=Path, required=True, help="the folder that takes Triton's launcher")
    parser.add_argument("--architectures", default="9.0a", help="compute capabilities, separated by spaces")
    parser.add_argument("--modules", type=Path, help="a folder with modules that were built before: `data/aot`")
    parser.add_argument("--only", default="", help="build modules whose names have this part")
    parser.add_argument("--jobs", type=int, default=1, help="modules of FlashInfer that are compiled at a time")
    args = parser.parse_args(argv)
    root = flashinfer_modules.package()
    if root is None:
        print("flashinfer-python is not installed", file=sys.stderr)  # noqa: T201 - a command's output
        return 1
    installed = Path(sysconfig.get_path("purelib"))
    parts = [folder / "nvidia" / "cu13" for folder in (args.compiler, installed)]
    os.environ["CUDA_HOME"] = str(toolkit(args.compiler / "toolkit", parts))
    if lacks := flashinfer_modules.tools_lack(root):
        print(lacks, file=sys.stderr)  # noqa: T201 - a command's output
        return 1
    print(build_launcher(args.launcher), flush=True)  # noqa: T201 - a command's output
    wanted = list(flashinfer_modules.every_need())
    try:
        if args.modules is not None:
            taken = flashinfer_build.take(args.modules, root, args.architectures)
            print(f"{len(taken)} modules were built before", flush=True)  # noqa: T201 - a command's output
        flashinfer_build.build(
            wanted,
            root,
            args.architectures,
            only=args.only,
            jobs=args.jobs,
            tell=lambda made: print(made, flush=True),  # noqa: T201 - a command's output
        )
        if not args.only:
            flashinfer_build.check(wanted)
    except flashinfer_build.BuildFailed as failed:
        print(failed, file=sys.stderr)  # noqa: T201 - a command's output
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
