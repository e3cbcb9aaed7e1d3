"""Makes the bundle that the proof needs on a GPU machine without a network: `make gpu-bundle`.

A GPU machine is taken to have Python 3.12 on x86-64, torch with CUDA, and the other packages of `MACHINE`. The bundle,
a folder `.gpu` of the checkout that git ignores, brings the rest: packages in one archive, the compiled Python guest in
a second, and the benchmarks' core-Wasm guests. Packages come from the index at the locked versions and hashes.
FlashInfer comes without the sources of kernels that the worker doesn't use.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Final

from bench.gpu.paths import BUNDLE, BUNDLED_PYTHON, ROOT

MOST_BYTES: Final = 45 << 20
"""A checkout of 18 MiB and the bundle travel together, and 64 MiB is a usual limit."""
PACKAGES: Final = (
    "annotated-types", "apache-tvm-ffi", "certifi", "charset-normalizer", "flashinfer-python",
    "googleapis-common-protos", "grpcio", "idna", "llguidance", "msgspec", "nvidia-ml-py", "opentelemetry-api",
    "opentelemetry-exporter-otlp-common", "opentelemetry-exporter-otlp-proto-common",
    "opentelemetry-exporter-otlp-proto-grpc", "opentelemetry-exporter-prometheus", "opentelemetry-proto",
    "opentelemetry-sdk", "opentelemetry-semantic-conventions", "prometheus-client", "protobuf", "pydantic",
    "pydantic-core", "redis", "requests", "tqdm", "typing-extensions", "typing-inspection", "urllib3", "wasmtime",
)  # fmt: skip
"""What the GPU machine lacks, or has at other versions."""
MACHINE: Final = ("aiohttp", "psutil", "pytest", "pytest-timeout", "rich", "torch", "transformers", "triton")
"""What the GPU machine has, with what these need: numpy, safetensors and tokenizers among others."""
_GLIBC: Final = (31, 28, 27, 24, 17, 12, 5)
_KERNELS: Final = re.compile(
    r"(batch_(decode|prefill|attention|pod)|page|norm|rope|sampling|quantization|single_|tvm_ffi|flashinfer_)"
)


def locked(names: Sequence[str], texts: Sequence[str]) -> str:
    r"""Return the blocks of these packages from lock files, versions and hashes, for Python 3.12.

    Raises:
        KeyError: a package is in none of the files.

    Example:
        >>> print(locked(["b"], ["a==1\n    --hash=x\nb==2\n    --hash=y\n"]))
        b==2
            --hash=y
    """
    found: dict[str, str] = {}
    for text in texts:
        for block in re.findall(r"^[A-Za-z0-9][^\n]*(?:\n[ \t]+[^\n]*)*", text, re.MULTILINE):
            name = re.split(r"[=<>;\[ ]", block, maxsplit=1)[0]
            found.setdefault(name, block.rstrip())
    return "\n".join(found[name] for name in names)


def needed(name: str, *, compiles: bool = True) -> bool:
    """Tell whether the proof needs a file of a wheel; `compiles`: the GPU machine is to compile modules.

    Example:
        >>> needed("flashinfer/decode.py"), needed("flashinfer/data/cutlass/x.h"), needed("wasmtime/_ffi.py")
        (True, False, True)
    """
    path = PurePosixPath(name)
    top, *inner = path.parts
    if top != "flashinfer":
        return top != "b12x" and path.name not in {"build_backend.py", "build_utils.py"}
    if inner[:1] != ["data"]:
        return path.suffix in {".py", ".pyi", ".json", ".txt", ".jinja"}
    if inner[1:2] in (["include"], ["spdlog"]):
        return True
    if inner[1:2] == ["cccl"]:  # CUDA 13.0's own lacks what FlashInfer's sources use
        return compiles
    return inner[1:2] == ["csrc"] and len(inner) == 3 and bool(_KERNELS.match(path.name))


def _download(target: Path) -> list[Path]:
    lines = [(ROOT / "constraints" / f"{name}.txt").read_text() for name in ("image-base", "image-worker-cuda")]
    wanted = target / "wanted.txt"
    wanted.write_text(locked(PACKAGES, lines) + "\n")
    python = ".".join(map(str, BUNDLED_PYTHON))
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in _GLIBC] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--require-hashes",
    ]
    command += ["--python-version", python, "--implementation", "cp", "-d", str(target), "-r", str(wanted)]
    subprocess.run([*command, *(part for name in platforms for part in ("--platform", name))], check=True)
    return sorted(target.glob("*.whl"))


def unbuilt(aot: Path | None) -> list[str]:
    """Return the modules that models can ask FlashInfer for and that a folder lacks, or has from another release."""
    from bench.product.gpu import flashinfer_modules

    there = {} if aot is None else flashinfer_modules.manifest_in(aot)["modules"]
    wanted = dict.fromkeys(name for needs in flashinfer_modules.every_need() for name in needs.modules())
    return [name for name in wanted if aot is None or name not in there or not (aot / name / f"{name}.so").is_file()]


def assemble(wheels: Sequence[Path], aot: Path | None, target: Path) -> None:
    """Unpack wheels into `target`, without what isn't needed, and add modules that were built ahead of time."""
    compiles = bool(unbuilt(aot))
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                if needed(name, compiles=compiles):
                    packed.extract(name, target)
    if aot:
        shutil.copytree(aot, target / "flashinfer" / "data" / "aot", dirs_exist_ok=True)
    # The guest's name in the cache says which componentize-py built it, and the runtime names its own release.
    for name in ("componentize-py", "tartlet"):
        note = target / f"{name.replace('-', '_')}-{version(name)}.dist-info"
        note.mkdir()
        (note / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version(name)}\n")


def _guest_files() -> Iterator[tuple[Path, str]]:
    """Yield the files of the compiled Python guest, and their places in a cache directory."""
    from bench.product.runtime import build, default_cache_dir

    compiled = build(say=print)
    cache = default_cache_dir()
    note = next(
        file for file in sorted((cache / "guest").glob("python-*.json"), key=lambda f: -f.stat().st_mtime)
        if json.loads(file.read_text())["sha256"] == compiled.digest
    )  # fmt: skip
    yield note, f"guest/{note.name}"
    for file in sorted((cache / "aot").glob(f"{compiled.digest[:32]}-component-*")):
        yield file, f"aot/{file.name}"


def _private(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o700 if entry.isdir() else 0o600
    return entry


def make(target: Path, aot: Path | None = None) -> int:
    """Make the bundle anew; return its bytes."""
    from bench.guests.build import build as build_guests

    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="tartlet-bundle-") as scratch:
        site = Path(scratch, "site")
        site.mkdir()
        wheels = Path(scratch, "wheels")
        wheels.mkdir()
        assemble(_download(wheels), aot, site)
        with tarfile.open(target / "packages.tar.xz", "w:xz", preset=6) as packed:
            packed.add(site, arcname="site")
    with tarfile.open(target / "guest.tar.xz", "w:xz", preset=6) as packed:
        for file, place in _guest_files():
            packed.add(file, arcname=f"cache/{place}", filter=_private)
    build_guests(target / "guests")
    return sum(file.stat().st_size for file in target.rglob("*") if file.is_file())


def built_modules() -> Path | None:
    """Return where `make setup` puts FlashInfer's sources, if modules were built there; else None."""
    found = Path(sys.prefix, "flashinfer", "flashinfer", "data", "aot")
    return found if any(found.glob("*/*.so")) else None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 1 if the bundle is too large to travel."""
    parser = argparse.ArgumentParser(prog="make gpu-bundle", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--aot", type=Path, metavar="DIR", default=built_modules(),
        help="data/aot of a FlashInfer whose modules were built ahead of time (default: that of `make setup`)",
    )  # fmt: skip
    parser.add_argument("--target", type=Path, default=BUNDLE, help="the folder that is made anew")
    args = parser.parse_args(argv)
    size = make(args.target, args.aot)
    sys.stdout.write(f"{len(unbuilt(args.aot))} of FlashInfer's modules aren't built yet; the proof builds them\n")
    for file in sorted(args.target.rglob("*")):
        if file.is_file():
            sys.stdout.write(f"{file.stat().st_size / (1 << 20):6.1f} MiB  {file.relative_to(args.target)}\n")
    fits = size <= MOST_BYTES
    told = "" if fits else f", more than {MOST_BYTES >> 20}: leave packages out of `PACKAGES`"
    sys.stdout.write(f"{size / (1 << 20):6.1f} MiB  in all{told}\n")
    return int(not fits)


if __name__ == "__main__":
    sys.exit(main())
