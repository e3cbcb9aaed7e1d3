"""The manifest of an Inferlet, made of a file and of what the command line says. Pure."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tartlet_cli.cluster.errors import PackageMissing, TooLargeForObjects
from tartlet_common.errors.registry import InvalidArgument, InvalidSource

Manifest = dict[str, Any]

API_VERSION: Final = "tartlet.dev/v1alpha1"
INLINE_BYTES: Final = 512 << 10
"""Most bytes of a source, as JSON, in the Inferlet itself; etcd takes 1.5 MiB with status and managed fields."""
CONFIG_MAP_BYTES: Final = 1 << 20
"""Most bytes that a ConfigMap holds."""
_KUBECTL_BYTES: Final = 256 << 10
"""`kubectl apply` keeps what it applies in an annotation, and an object's annotations hold no more."""
SHOWN: Final = "inferlet.tartlet.dev"

_NAME_CHARS = 128  # the catalogue keeps no longer one
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")


@dataclass(frozen=True, slots=True)
class NewInferlet:
    """An inferlet to be.

    Args:
        name: of the Inferlet.
        data: its source: Python's text, or a core Wasm module.
        wasm: which of them.
        filename: the file's name; a ConfigMap keeps the source under it.
        pool: EnginePool, or "".
        model: model's name, or ""; at most one of the two.
        args: arguments of runs that give none.
        description: for people.
    """

    name: str
    namespace: str
    data: bytes
    wasm: bool = False
    filename: str = "program.py"
    pool: str = ""
    model: str = ""
    args: tuple[str, ...] = ()
    description: str = ""


def name_of(file: str) -> str:
    """A name for a file's Inferlet.

    Example:
        >>> name_of("inferlets/std/text_completion.py")
        'text-completion'

    Raises:
        InvalidArgument: nothing of the file's name can stand in one.
    """
    name = re.sub(r"[^a-z0-9.]+", "-", Path(file).stem.lower())
    name = re.sub(r"-*\.[-.]*", ".", name).strip("-.")[:_NAME_CHARS].strip("-.")
    if not name:
        raise InvalidArgument(argument="--name", detail=f"the name of {file} can't be an object's: give one")
    return name


def check_name(name: str) -> str:
    """The name, if an Inferlet may have it.

    Raises:
        InvalidArgument: it may not.
    """
    if len(name) > _NAME_CHARS or _NAME.fullmatch(name) is None:
        detail = f"{name!r} is no name: up to {_NAME_CHARS} lower-case letters, digits, `-` and `.`, as in my-program"
        raise InvalidArgument(argument="--name", detail=detail)
    return name


def config_map_name(inferlet: str) -> str:
    """Of the ConfigMap that holds the inferlet's source."""
    return f"{inferlet}-source"


def inferlet(program: NewInferlet) -> Manifest:
    """The Inferlet; its source is inline, unless it is a module or too large for that.

    Raises:
        InvalidArgument: both a pool and a model.
        InvalidSource: Python that isn't UTF-8.
        TooLargeForObjects: a ConfigMap can't hold it either.
    """
    if program.pool and program.model:
        raise InvalidArgument(argument="--model", detail="a pool has a model: give --pool or --model, not both")
    text = None if program.wasm else _text(program)
    spec: Manifest = {"language": "Wasm" if program.wasm else "Python"}
    if text is not None and _size(text) <= INLINE_BYTES:
        spec["source"] = {"inline": text}
    else:
        if len(program.data) > CONFIG_MAP_BYTES:
            raise TooLargeForObjects(size=len(program.data), limit=CONFIG_MAP_BYTES)
        spec["source"] = {"configMap": {"name": config_map_name(program.name), "key": _key(program.filename)}}
    for name, value in (
        ("args", list(program.args)),
        ("pool", program.pool),
        ("model", program.model),
        ("description", program.description),
    ):
        if value:
            spec[name] = value
    return {"apiVersion": API_VERSION, "kind": "Inferlet", "metadata": _metadata(program.name, program), "spec": spec}


def config_map(program: NewInferlet, made: Manifest, owner_uid: str = "") -> Manifest | None:
    """The ConfigMap that the Inferlet's source is in, if it is in one; it goes when its owner goes."""
    reference = made["spec"]["source"].get("configMap")
    if reference is None:
        return None
    metadata = _metadata(reference["name"], program)
    if owner_uid:
        owner = {"apiVersion": API_VERSION, "kind": "Inferlet", "name": program.name, "uid": owner_uid}
        metadata["ownerReferences"] = [owner]
    body: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    if program.wasm:
        return body | {"binaryData": {reference["key"]: base64.b64encode(program.data).decode()}}
    return body | {"data": {reference["key"]: program.data.decode()}}


def is_left_over(found: Manifest | None, owner_uid: str) -> bool:
    """Whether a ConfigMap of the name is one that an earlier, larger version of the inferlet had."""
    owners = found["metadata"].get("ownerReferences") or [] if found else []
    return any(owner.get("uid") == owner_uid for owner in owners)


def too_large_for_kubectl(manifests: list[Manifest]) -> bool:
    """Whether one of them can be applied by the API server alone (`kubectl apply --server-side`)."""
    return any(len(json.dumps(each).encode()) >= _KUBECTL_BYTES for each in manifests)


def to_yaml(manifests: list[Manifest]) -> str:
    """Documents for `kubectl apply -f -`; texts of several lines stay readable.

    Raises:
        PackageMissing: there is no YAML; JSON, which needs nothing, is YAML too.
    """
    try:
        import yaml
    except ImportError as e:
        raise PackageMissing(package="yaml") from e

    class Dumper(yaml.SafeDumper):
        """Block style for texts."""

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return str(yaml.dump_all(manifests, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120))


def to_json(manifests: list[Manifest]) -> str:
    """One object, or a List."""
    shown = manifests[0] if len(manifests) == 1 else {"apiVersion": "v1", "kind": "List", "items": manifests}
    return json.dumps(shown, indent=2, ensure_ascii=False) + "\n"


def _text(program: NewInferlet) -> str:
    try:
        return program.data.decode()
    except UnicodeDecodeError as e:
        raise InvalidSource(detail=f"{program.filename} is neither UTF-8 text nor a WebAssembly module: {e}") from e


def _size(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode())


def _key(filename: str) -> str:
    return re.sub(r"[^-._a-zA-Z0-9]", "_", Path(filename).name)[:253] or "program"


def _metadata(name: str, program: NewInferlet) -> Manifest:
    metadata: Manifest = {"name": name}
    if program.namespace:
        metadata["namespace"] = program.namespace
    return metadata
