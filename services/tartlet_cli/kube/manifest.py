"""Makes the manifest of an Inferlet from a file and the command line's options. Pure functions."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tartlet_cli.cluster.errors import PackageMissing, TooLargeForObjects
from tartlet_common.bundles.layout import is_bundle
from tartlet_common.errors.registry import InvalidArgument, InvalidSource

Manifest = dict[str, Any]

API_VERSION: Final = "tartlet.dev/v1alpha1"
INLINE_BYTES: Final = 512 << 10
"""The largest source, in bytes of JSON, that an Inferlet holds itself; etcd's limit is 1.5 MiB for all fields."""
CONFIG_MAP_BYTES: Final = 1 << 20
"""The largest source that a ConfigMap holds."""
_KUBECTL_BYTES: Final = 256 << 10
"""The size limit of annotations; `kubectl apply` keeps the whole manifest in one."""
SHOWN: Final = "inferlet.tartlet.dev"

_NAME_CHARS = 128  # the catalogue's limit
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")


@dataclass(frozen=True, slots=True)
class NewInferlet:
    """An Inferlet to be applied.

    Args:
        name: the Inferlet's name.
        data: the source: Python text, the archive of several Python files, or a core Wasm module.
        wasm: whether the source is a Wasm module.
        filename: the file's name; a ConfigMap keeps the source under this key.
        pool: the EnginePool to use, or "".
        model: the model to use, or ""; only one of `pool` and `model` may be set.
        args: arguments for runs that give none.
        description: a description for people.
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
    """Derive an Inferlet's name from a file's.

    Example:
        >>> name_of("inferlets/std/text_completion.py")
        'text-completion'

    Raises:
        InvalidArgument: no character of the file's name is allowed in an Inferlet's name.
    """
    name = re.sub(r"[^a-z0-9.]+", "-", Path(file).stem.lower())
    name = re.sub(r"-*\.[-.]*", ".", name).strip("-.")[:_NAME_CHARS].strip("-.")
    if not name:
        raise InvalidArgument(argument="--name", detail=f"the name of {file} can't be an object's: give one")
    return name


def check_name(name: str) -> str:
    """Return the name after checking that an Inferlet may have it.

    Raises:
        InvalidArgument: it may not.
    """
    if len(name) > _NAME_CHARS or _NAME.fullmatch(name) is None:
        detail = f"{name!r} is no name: up to {_NAME_CHARS} lower-case letters, digits, `-` and `.`, as in my-program"
        raise InvalidArgument(argument="--name", detail=detail)
    return name


def config_map_name(inferlet: str) -> str:
    """Return the name of the ConfigMap that holds an inferlet's source."""
    return f"{inferlet}-source"


def inferlet(program: NewInferlet) -> Manifest:
    """Make the Inferlet's manifest; the source is inline unless it is a module, an archive, or too large.

    Raises:
        InvalidArgument: both a pool and a model are given.
        InvalidSource: the Python source isn't UTF-8.
        TooLargeForObjects: the source doesn't fit a ConfigMap either.
    """
    if program.pool and program.model:
        raise InvalidArgument(argument="--model", detail="a pool has a model: give --pool or --model, not both")
    text = None if _is_binary(program) else _text(program)
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
    """Make the ConfigMap with the source, or None if the source is inline. Its owner's deletion deletes it."""
    reference = made["spec"]["source"].get("configMap")
    if reference is None:
        return None
    metadata = _metadata(reference["name"], program)
    if owner_uid:
        owner = {"apiVersion": API_VERSION, "kind": "Inferlet", "name": program.name, "uid": owner_uid}
        metadata["ownerReferences"] = [owner]
    body: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    if _is_binary(program):
        return body | {"binaryData": {reference["key"]: base64.b64encode(program.data).decode()}}
    return body | {"data": {reference["key"]: program.data.decode()}}


def is_left_over(found: Manifest | None, owner_uid: str) -> bool:
    """Whether a ConfigMap of this name is left over from an earlier, larger version of the inferlet."""
    owners = found["metadata"].get("ownerReferences") or [] if found else []
    return any(owner.get("uid") == owner_uid for owner in owners)


def too_large_for_kubectl(manifests: list[Manifest]) -> bool:
    """Whether a manifest is too large for `kubectl apply` without `--server-side`."""
    return any(len(json.dumps(each).encode()) >= _KUBECTL_BYTES for each in manifests)


def to_yaml(manifests: list[Manifest]) -> str:
    """Write YAML documents for `kubectl apply -f -`; texts of several lines stay readable.

    Raises:
        PackageMissing: PyYAML isn't installed (`to_json` needs no package, and its output is YAML as well).
    """
    try:
        import yaml
    except ImportError as e:
        raise PackageMissing(package="yaml") from e

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines in block style."""

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return str(yaml.dump_all(manifests, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120))


def to_json(manifests: list[Manifest]) -> str:
    """Write one object, or several as a List."""
    shown = manifests[0] if len(manifests) == 1 else {"apiVersion": "v1", "kind": "List", "items": manifests}
    return json.dumps(shown, indent=2, ensure_ascii=False) + "\n"


def _is_binary(program: NewInferlet) -> bool:
    return program.wasm or is_bundle(program.data)


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
