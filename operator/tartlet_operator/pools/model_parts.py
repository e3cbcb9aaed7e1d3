"""The parts of a pool's pods that bring the model: its volume, the init container, the engine's directory. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from tartlet_operator.api.pool_model import MODEL_DIR, Model, ModelInit

MODELS_DIR: Final = "/models"
_FETCH: Final = ("python3", "-m", "tartlet_worker.fetch")
"""Runs a command under the lock of a shared volume."""


def volume(model: Model) -> dict[str, Any] | None:
    """Return the volume that holds the checkpoint; None: the engine needs none."""
    if model.volume_claim is not None:
        read_only = model.volume_claim.read_only and model.init is None
        claim = {"claimName": model.volume_claim.claim_name} | ({"readOnly": True} if read_only else {})
        return {"name": "models", "persistentVolumeClaim": claim}
    if model.init is not None:
        return {"name": "models", "emptyDir": {"sizeLimit": str(model.init.size_limit)}}
    if model.image is not None:
        policy = {"pullPolicy": model.image.pull_policy} if model.image.pull_policy is not None else {}
        return {"name": "models", "image": {"reference": model.image.reference, **policy}}
    return None


def shared(model: Model) -> bool:
    """Whether the pool's engines download the checkpoint once, into a volume that they share."""
    return model.volume_claim is not None and model.init is not None


def directory(model: Model) -> str:
    """Return where the engine finds the checkpoint.

    In a shared volume the name holds a digest of the download, and appears when the checkpoint is whole. So an engine
    never finds another download's files, nor a part of its own's.
    """
    return f"{_root(model)}/{model.path}".rstrip("/")


def adapter_lines(model: Model) -> str:
    """Return the file that the worker's setting `adapters_file` names: lines NAME=DIRECTORY."""
    return "".join(f"{adapter.name}={_root(model)}/{adapter.path}\n" for adapter in model.adapters or ())


def _root(model: Model) -> str:
    return f"{MODELS_DIR}/{_fetched(model)}" if shared(model) else MODELS_DIR


def init_command(model: Model, init: ModelInit) -> list[str]:
    """Return the init container's command; in a shared volume one pod runs it and the others wait."""
    if not shared(model):
        return list(init.command)
    return [*_FETCH, f"--into={MODELS_DIR}/{_fetched(model)}", f"--path={model.path}", "--", *init.command]


def init_environment(model: Model, init: ModelInit) -> list[dict[str, Any]]:
    """Return the variables of the init container, with the directory that its command writes into."""
    at = f"{MODELS_DIR}/{_fetched(model)}.partial" if shared(model) else MODELS_DIR
    own = {"name": MODEL_DIR, "value": f"{at}/{model.path}".rstrip("/")}
    return [own, *(e.dump() for e in init.env if e.name != MODEL_DIR)]


def _fetched(model: Model) -> str:
    """Name the download: another command, environment or path is another download."""
    assert model.init is not None, "the caller has checked"
    told = json.dumps([model.path, list(model.init.command), [e.dump() for e in model.init.env]], sort_keys=True)
    return f"fetched-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
