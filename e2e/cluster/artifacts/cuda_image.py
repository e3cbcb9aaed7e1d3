"""Builds the Dockerfile's image for CUDA without a registry, and asks it what a worker in it does without a GPU.

    python -m e2e.cluster.artifacts.cuda_image --modules DIR

The build downloads 3.2 GB, and without `--modules` it compiles kernels for half an hour or more, so no test runs it.
The image has 7.7 GB, of which buildah keeps several copies while it commits them: have 40 GB of disk free.
`cuda_questions.py` runs in the image as in a pod of an EnginePool: as the image's user, with a root that can't be
written, and with no network, not even that of the machine.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from e2e.cluster.artifacts import images
from e2e.cluster.layout import ROOT, Layout, default_layout
from tartlet_worker.attention.flashinfer_modules import every_need

NAME = "localhost/tartlet-worker:cuda"
USER = "10001:10001"
SCRATCH = "/tmp"  # noqa: S108 - in the image
"""The only directory that a worker's container can write."""
_QUESTIONS = Path(__file__).with_name("cuda_questions.py")
_PROGRAM = ROOT / "inferlets" / "std" / "text_completion.py"
_POD = """
set -eu
mount --bind "$ROOTFS" "$ROOTFS"
mount -o remount,bind,ro "$ROOTFS"
mount -t tmpfs tmpfs "$ROOTFS/tmp"
mount -t proc proc "$ROOTFS/proc"
mount --rbind /dev "$ROOTFS/dev"
cp "$@" "$ROOTFS/tmp"
"""
"""Mounts what a container's runtime mounts below the directory `ROOTFS`, and copies files to /tmp there."""


def make(layout: Layout, modules: Path | None) -> None:
    """Builds the image for CUDA, as `docker build --target worker --build-arg ACCELERATOR=cuda .` does.

    Args:
        layout: The harness's directories.
        modules: FlashInfer's modules that were compiled before; None: all are compiled.
    """
    start = time.monotonic()
    given = () if modules is None else ("--build-context", f"modules={modules.resolve()}")
    images.build(layout, "worker", NAME, "--build-arg", "ACCELERATOR=cuda", *given)
    print(f"built {NAME} in {time.monotonic() - start:.0f} s", flush=True)


def ask(layout: Layout, container: str) -> dict[str, Any]:
    """Returns what `cuda_questions.py` found out in a container that buildah has made, and the container's settings."""
    config = json.loads(images.buildah(layout, "inspect", "--type", "container", container).stdout)["OCIv1"]["config"]
    inside = ["python", f"{SCRATCH}/{_QUESTIONS.name}", f"{SCRATCH}/{_PROGRAM.name}"]
    chroot = shlex.join(["env", "-i", *config["Env"], *inside])
    script = (
        f"ROOTFS=$({shlex.join(images.buildah_command(layout, 'mount', container))})\n"
        f"set -- {shlex.join(map(str, (_QUESTIONS, _PROGRAM)))}{_POD}"
        f'exec chroot --userspec={config["User"]} "$ROOTFS" {chroot}'
    )
    said = images.run("sh", "-c", script, network=False).stdout
    told = next(line for line in said.splitlines() if line.startswith("told "))
    labels = config.get("Labels") or {}
    return dict(json.loads(told.removeprefix("told "))) | {"settings": {"user": config["User"], "labels": labels}}


def problems(told: Mapping[str, Any], modules: Collection[str]) -> list[str]:
    """Returns what is wrong with an image for CUDA.

    Args:
        told: What `ask` returned.
        modules: The names of FlashInfer's modules that it should hold.
    """
    found = [f"it has a compiler: {name}" for name in told["compilers"]]
    found += [f"FlashInfer's module {name} is missing" for name in modules if name not in told["modules"]]
    found += [f"FlashInfer's module {name} was not loaded" for name in told["modules"] if name not in told["mapped"]]
    found += [f"modules for heads of {dim}: {why}" for dim, why in told["loaded"].items() if why]
    if told["triton_lacks"]:
        found.append(f"Triton: {told['triton_lacks']}")
    checks = {check["name"]: check for check in told["doctor"]}
    path = checks.get("attention elsewhere", {"status": "fail", "found": "doctor names no path of attention"})
    if path["status"] != "ok" or ": flashinfer: " not in path["found"]:
        found.append(f"doctor: {path['found']}")
    if told["network"] or told["interfaces"] != ["lo"]:
        found.append(f"the questions were asked with a network: {told['interfaces']}")
    if told["writable"] != [SCRATCH]:
        found.append(f"these can be written: {told['writable']}")
    if told["user"] != USER or told["settings"]["user"] != USER:
        found.append(f"it runs as {told['user']}, and its settings say {told['settings']['user']}")
    if told["settings"]["labels"].get("org.opencontainers.image.licenses") != "Apache-2.0" or not told["licence"]:
        found.append("it doesn't hold or name Tartlet's licence")
    if told["worker"]["status"] == 0 or "InvalidConfig" not in told["worker"]["output"]:
        found.append(f"a worker without a GPU ended with {told['worker']['status']}: {told['worker']['output']}")
    if told["run"]["status"] or not told["run"]["output"].strip():
        found.append(f"a program on a worker on the CPU ended with {told['run']['status']}: {told['run']['output']}")
    return found


def main(layout: Layout, argv: list[str]) -> int:
    """Builds the image, asks it, and prints the answers; returns 1 if something is wrong with it."""
    parser = argparse.ArgumentParser(description="Build the image for CUDA, and ask it what a worker in it does.")
    parser.add_argument("--modules", type=Path, help="FlashInfer's modules that were compiled before: a `data/aot`")
    parser.add_argument("--ask", action="store_true", help="ask the image that was built last, and build none")
    args = parser.parse_args(argv)
    if not args.ask:
        make(layout, args.modules)
    container = images.buildah(layout, "from", NAME).stdout.strip()
    try:
        told = ask(layout, container)
    finally:
        images.buildah(layout, "rm", container)
    print(json.dumps(told, indent=2))
    wrong = problems(told, {name for needs in every_need() for name in needs.modules()})
    print("\n".join(wrong) or "nothing is wrong with it")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(default_layout(), sys.argv[1:]))
