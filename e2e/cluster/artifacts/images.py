"""Builds Tartlet's image from its Dockerfile, and the small images of the cluster itself, without a registry."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from e2e.cluster.artifacts.requirements import Unfit
from e2e.cluster.layout import DEBIAN, ROOT, Layout, files_digest

INPUTS = ("constraints", "crds", "gpu_worker", "inferlets", "operator", "protos", "services")
"""Directories that the Dockerfile's target `base` copies."""

NAME = "localhost/tartlet"
NEXT_VERSION = "9.9.9"
"""The version of the image that `next_release` makes."""
_BASE = "localhost/tartlet-e2e-debian"
_REDIS = "localhost/tartlet-e2e-redis"
_KEPT = 3
_DEBIAN_PACKAGES = "python3,python3-venv,ca-certificates"


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a file: the name that pods use, and the path of a docker-archive."""

    name: str
    archive: Path


def sources(root: Path = ROOT) -> Iterator[Path]:
    """Returns the files that the image is made of."""
    yield from (root / name for name in ("Dockerfile", "LICENSE", "README.md", "pyproject.toml"))
    for top in INPUTS:
        for file in (root / top).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts and file.suffix not in {".cwasm", ".so"}:
                yield file


def pack(archive: Path, name: str, files: Mapping[str, Path], command: list[str]) -> Image:
    """Writes an image of one layer that holds static programs, given by their paths in the image."""
    layer = _layer({_entry(path, 0o755): file.read_bytes() for path, file in sorted(files.items())})
    config: dict[str, Any] = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": command, "Env": ["PATH=/"]},
        "rootfs": {"type": "layers", "diff_ids": []},
        "history": [],
    }
    part = archive.with_suffix(".part")
    with tarfile.open(part, "w") as tar:
        _close(tar, name, config, [], layer)
    part.replace(archive)
    return Image(name, archive)


def next_release(image: Image, archive: Path) -> Image:
    """Writes Tartlet's image again as that of a next release.

    It has a name and a version of its own, and another Python component, which behaves as the earlier one; the earlier
    one is still there, as `--build-arg PREVIOUS` leaves it.

    Args:
        image: Tartlet's image.
        archive: Where the next one is written.
    """
    name = f"{NAME}-next:{image.name.rpartition(':')[2]}"
    with tarfile.open(image.archive) as old, tarfile.open(archive, "w") as new:
        (about,) = json.load(_member(old, "manifest.json"))
        config = json.load(_member(old, about["Config"]))
        metadata, note, code = _found(
            old,
            about["Layers"],
            r"/tartlet-[\d.]+\.dist-info/METADATA$",
            r"/tartlet/cache/guest/python-\w+\.json$",
            r"/tartlet/cache/aot/\w+-component-.*\.cwasm$",
        )
        told = json.loads(note[1])
        digest = hashlib.sha256(told["sha256"].encode()).hexdigest()
        version = re.sub(rb"(?m)^Version: .*$", f"Version: {NEXT_VERSION}".encode(), metadata[1])
        earlier = _entry(f"{note[0].name.rpartition('/')[0]}/python-earlier.json")
        files = {metadata[0]: version, earlier: note[1], code[0]: code[1]}
        files[note[0]] = json.dumps(told | {"sha256": digest}).encode()
        code[0].name = code[0].name.replace(told["sha256"][:32], digest[:32])
        for member in old.getmembers():
            if member.name not in ("manifest.json", about["Config"], "repositories"):
                new.addfile(member, old.extractfile(member) if member.isfile() else None)
        _close(new, name, config, about["Layers"], _layer(files))
    return Image(name, archive)


def _found(archive: tarfile.TarFile, layers: list[str], *patterns: str) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Returns the one file of an image whose path matches, for each pattern, with its content."""
    found: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    for layer in layers:
        with tarfile.open(fileobj=_member(archive, layer)) as files:
            for member in files:
                for pattern in patterns:
                    if member.isfile() and re.search(pattern, member.name):
                        found[pattern] = member, _member(files, member.name).read()
    return [found[pattern] for pattern in patterns]


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    """Returns the content of a file of an archive; a link leads to the file."""
    found = archive.extractfile(name)
    if found is None:
        raise FileNotFoundError(f"{name} is no file of the image")
    return found


def _entry(path: str, mode: int = 0o644) -> tarfile.TarInfo:
    """Returns a file's entry in a layer."""
    made = tarfile.TarInfo(path)
    made.mode = mode
    return made


def _layer(files: Mapping[tarfile.TarInfo, bytes]) -> bytes:
    """Returns a layer with these files."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for entry, content in files.items():
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return layer.getvalue()


def _close(archive: tarfile.TarFile, name: str, config: dict[str, Any], below: list[str], layer: bytes) -> None:
    """Adds the top layer, the configuration and the manifest to an archive that has the layers `below`."""
    digest = hashlib.sha256(layer).hexdigest()
    config["rootfs"]["diff_ids"].append(f"sha256:{digest}")
    config.setdefault("history", []).append({"created_by": "tartlet's e2e tests"})
    text = json.dumps(config).encode()
    config_name, layer_name = f"{hashlib.sha256(text).hexdigest()}.json", f"{digest}/layer.tar"
    about = [{"Config": config_name, "RepoTags": [name], "Layers": [*below, layer_name]}]
    for path, body in ((config_name, text), (layer_name, layer), ("manifest.json", json.dumps(about).encode())):
        entry = _entry(path)
        entry.size = len(body)
        archive.addfile(entry, io.BytesIO(body))


def redis(layout: Layout) -> Image:
    """Packs this machine's redis-server and the libraries that it loads.

    Raises:
        Unfit: The machine has no redis-server.
    """
    server = shutil.which("redis-server")
    if server is None:
        raise Unfit("redis-server is not installed: apt-get install redis-server")
    loaded = re.findall(r"(?:=> )?(/\S+) \(0x", run("ldd", server).stdout)
    files = {"redis-server": Path(server), **{path.lstrip("/"): Path(path) for path in loaded}}
    key = files_digest((f.resolve() for f in files.values()), Path("/"))
    archive = layout.cache / "images" / f"redis-{key}.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    name = f"{_REDIS}:{key}"
    return Image(name, archive) if archive.exists() else pack(archive, name, files, ["/redis-server"])


def wanted(layout: Layout) -> Image:
    """Returns the image of the Dockerfile's target `base` for the present sources; it may not be built yet."""
    key = files_digest(sources(), ROOT, [DEBIAN])
    return Image(f"{NAME}:{key}", layout.cache / "images" / f"tartlet-{key}.tar")


def has_base(layout: Layout) -> bool:
    """Whether Tartlet's image is in the cache, or at least the Debian image that it is made from."""
    return wanted(layout).archive.exists() or _debian_there(layout)


def tartlet(layout: Layout) -> Image:
    """Builds the target `base`, once for each state of its inputs: 3 minutes on two cores."""
    image = wanted(layout)
    archive = image.archive
    if archive.exists():
        return image
    archive.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    print(f"building the image {image.name}", flush=True)
    build(layout, "base", image.name)
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    buildah(layout, "push", image.name, f"docker-archive:{part}:{image.name}")
    part.replace(archive)
    for old in sorted(_archives(layout), key=lambda f: f.stat().st_mtime)[:-_KEPT]:
        old.unlink()
        buildah(layout, "rmi", f"{NAME}:{old.stem.removeprefix('tartlet-')}", check=False)
    print(f"built {image.name} in {time.monotonic() - start:.0f} s", flush=True)
    return image


def build(layout: Layout, target: str, name: str, *options: str) -> None:
    """Builds a target of the Dockerfile in buildah's store, on Debian; `options` are further ones of `buildah bud`."""
    base = _debian(layout)
    certificates = "/etc/ssl/certs:/etc/ssl/certs:ro"  # without these, pip in the image trusts no server
    how = ("--layers", "--network", "host", "--format", "docker")
    buildah(
        layout,
        *("bud", *how, "--build-arg", f"BASE={base}", "--build-arg", "COMPILER=", *options),
        *("-v", certificates, "-v", "/etc/resolv.conf:/etc/resolv.conf:ro", *_pip_settings()),
        *("--target", target, "-t", name, "-f", str(ROOT / "Dockerfile"), str(ROOT)),
    )


def _archives(layout: Layout) -> Iterator[Path]:
    """Yields the archives of Tartlet's images; the names of the cluster's own images begin with `tartlet-e2e-`."""
    return (f for f in (layout.cache / "images").glob("tartlet-*.tar") if not f.name.startswith("tartlet-e2e-"))


def built(layout: Layout, name: str) -> Image:
    """Returns an image that was built earlier.

    Raises:
        FileNotFoundError: The image is no longer in the cache.
    """
    archive = layout.cache / "images" / f"tartlet-{name.rpartition(':')[2]}.tar"
    if not archive.exists():
        raise FileNotFoundError(f"{name} isn't among the images built here: {archive}")
    return Image(name, archive)


def _debian_there(layout: Layout) -> bool:
    return buildah(layout, "inspect", "--type", "image", f"{_BASE}:{DEBIAN}", check=False).returncode == 0


def _debian(layout: Layout) -> str:
    """Makes a Debian image with Python in buildah's store, in place of the Dockerfile's BASE."""
    name = f"{_BASE}:{DEBIAN}"
    if _debian_there(layout):
        return name
    root = layout.cache / f"rootfs-{DEBIAN}"
    if not root.exists():
        part = root.with_name(root.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        run("debootstrap", "--variant=minbase", f"--include={_DEBIAN_PACKAGES}", DEBIAN, str(part))
        part.replace(root)
    container = buildah(layout, "from", "scratch").stdout.strip()
    try:
        buildah(layout, "add", "-q", container, str(root), "/")
        buildah(layout, "commit", "-q", "--format", "docker", container, name)
    finally:
        buildah(layout, "rm", container)
    shutil.rmtree(root)
    return name


def _pip_settings() -> list[str]:
    """Returns build arguments that pass on this machine's pip settings, such as a mirror."""
    return ["-v", "/etc/pip.conf:/etc/pip.conf:ro"] if Path("/etc/pip.conf").exists() else []


def buildah(layout: Layout, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs a command of buildah over the harness's store."""
    return run(*buildah_command(layout, *arguments), check=check)


def buildah_command(layout: Layout, *arguments: str) -> list[str]:
    """Returns the words of a command of buildah over the harness's store."""
    store = layout.cache / "buildah"
    place = ["--storage-driver", "overlay", "--root", str(store / "root"), "--runroot", str(store / "run")]
    return ["buildah", *place, *arguments]


def run(*command: str, check: bool = True, network: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs a command in namespaces of its own, so that all mounts and processes end with the command.

    Args:
        command: Its words.
        check: Whether a status other than 0 is an error.
        network: Whether the command has the machine's network, or none.

    Raises:
        RuntimeError: The command failed, with the end of its output.
    """
    alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"]
    alone += [] if network else ["--net"]
    done = subprocess.run(
        ["nice", "-n", "5", *alone, *command],
        env={**os.environ, "BUILDAH_ISOLATION": "chroot"},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if check and done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)} failed with status {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}"
        )
    return done
