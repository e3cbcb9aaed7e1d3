"""The model of an EnginePool: its name, and where its checkpoint comes from."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from tartlet_operator.api.common import MODEL_NAME, ApiModel, Name, Quantity, Text, an_object, rule, rules
from tartlet_operator.api.identity import mounts_rule
from tartlet_operator.api.pod_parts import ValueFrom, VolumeMount

MODEL_DIR: Final = "MODEL_DIR"
"""The variable that tells the container of `model.init` where the checkpoint goes."""
_ADAPTER_NAME: Final = "^[A-Za-z0-9][A-Za-z0-9._-]*$"
_SAFE_PATH: Final = r"!self.startsWith('/') && !self.split('/').exists(part, part == '..')"


class VolumeClaim(ApiModel):
    """A PersistentVolumeClaim that holds the checkpoint."""

    claim_name: Name = Field(
        description="Its name, in the pool's namespace.",
        json_schema_extra=an_object("spec.model.volumeClaim.claimName"),
    )
    read_only: bool = Field(
        default=True, description="Mount it read-only. With `model.init` only the engine's mount is read-only."
    )


class EnvVar(ApiModel):
    """An environment variable."""

    name: Annotated[str, Field(min_length=1, max_length=256)] = Field(description="Name of the variable.")
    value: Annotated[str, Field(max_length=32_768)] | None = Field(default=None, description="Value of the variable.")
    value_from: ValueFrom | None = Field(default=None, description="Where its value comes from, as in the core API.")


class ModelInit(ApiModel):
    """A container that fetches the checkpoint before the engine starts."""

    image: Annotated[str, Field(max_length=1024)] = Field(
        default="", description="Image of the container; empty: the engine's. Empty with `model.volumeClaim`."
    )
    command: Annotated[list[Text], Field(min_length=1, max_length=64)] = Field(
        description="Command that writes the checkpoint into the directory `$(MODEL_DIR)`. Without `model.volumeClaim` "
        "that is `model.path` below `/models`."
    )
    env: Annotated[list[EnvVar], Field(max_length=64)] = Field(
        default_factory=list, description="Environment, such as a token from a Secret; `HOME` is `/tmp`."
    )
    volume_mounts: Annotated[list[VolumeMount], Field(max_length=32)] = Field(
        default_factory=list,
        description="Mounts of volumes of `podTemplate.volumes`, as in the core API, beside `/models` and `/tmp`.",
        json_schema_extra=rules(mounts_rule("spec.model.init.volumeMounts")),
    )
    size_limit: Quantity = Field(
        default="20Gi", description="Most bytes that the container may write; with `model.volumeClaim` the claim's."
    )


class ModelImage(ApiModel):
    """An image whose files are the checkpoint, which the node pulls once and mounts read-only."""

    reference: Annotated[str, Field(min_length=1, max_length=1024)] = Field(description="Name of the image.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None, description="When the image is pulled; unset: as Kubernetes does."
    )


class Adapter(ApiModel):
    """A LoRA adapter of the model."""

    name: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        description="Name that programs use.",
        json_schema_extra=rules(
            rule(
                f"self.matches('{_ADAPTER_NAME}')",
                "spec.model.adapters[].name must start with a letter or digit and hold only letters, digits, '.', '_' "
                "and '-': rename the adapter",
            )
        ),
    )
    path: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="Its directory within the model's volume, as PEFT saves it.",
        json_schema_extra=rules(
            rule(
                f"{_SAFE_PATH} && self.matches('^[^,[:cntrl:]]*$')",
                "spec.model.adapters[].path must be relative and without '..', commas and line breaks: give the "
                "adapter's directory within the volume",
            )
        ),
    )


class Model(ApiModel):
    """The model and where its checkpoint comes from."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!(has(self.volumeClaim) && has(self.init)) || !has(self.init.image) || size(self.init.image) == 0",
                "remove spec.model.init.image: with spec.model.volumeClaim the container runs in the engine's image, "
                "which has the lock that lets one engine download for all",
            ),
            rule(
                "!(has(self.volumeClaim) && has(self.init)) || "
                f"self.init.command.exists(word, word.contains('{MODEL_DIR}'))",
                "spec.model.init.command must write into $(MODEL_DIR): with spec.model.volumeClaim the directory has "
                "its final name only when the checkpoint is whole",
            ),
        )
    )

    name: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        description="Name that programs use. Pools of one name serve one model together. Immutable.",
        json_schema_extra=rules(
            rule(
                "self == oldSelf",
                "spec.model.name is immutable: create another EnginePool for another model, then delete this one",
            ),
            rule(
                f"self.matches('{MODEL_NAME}')",
                "spec.model.name must start with a letter or digit and hold only letters, digits, '.', '_', '/' and "
                "'-': rename the model",
            ),
        ),
    )
    path: Annotated[str, Field(max_length=1024)] = Field(
        default="",
        description="The checkpoint's directory within the volume.",
        json_schema_extra=rules(
            rule(
                _SAFE_PATH,
                "spec.model.path must be relative and without '..': give the checkpoint's directory within the volume",
            )
        ),
    )
    volume_claim: VolumeClaim | None = Field(
        default=None,
        description="The checkpoint is in this PersistentVolumeClaim; with `init`, the first engine downloads it there "
        "and the others wait.",
    )
    init: ModelInit | None = Field(
        default=None,
        description="This container fetches the checkpoint: without `volumeClaim` for each engine anew. It has the "
        "pool's `resources`, without GPUs and the like.",
    )
    image: ModelImage | None = Field(
        default=None, description="The checkpoint is in this image; needs Kubernetes 1.35, or the gate `ImageVolume`."
    )
    adapters: Annotated[list[Adapter], Field(max_length=64)] | None = Field(
        default=None,
        description="LoRA adapters that each engine has beside the model (docs/adapters.md). Running engines follow a "
        "change of the list, an empty one too. Only a pool that has no list and gets one, or loses it, gets new pods.",
        json_schema_extra=rules(
            rule(
                "self.all(x, self.filter(y, y.name == x.name).size() == 1)",
                "spec.model.adapters must not name an adapter twice: rename one",
            )
        ),
    )
