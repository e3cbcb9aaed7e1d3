"""EnginePool: engines of one model, each a pod."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from tartlet_common.engine import defaults
from tartlet_operator.api.autoscaling import Autoscaling
from tartlet_operator.api.common import (
    AGE,
    ApiModel,
    Column,
    Conditions,
    Labels,
    Name,
    Resource,
    an_object,
    between,
    condition_column,
    rule,
    rules,
)
from tartlet_operator.api.identity import env_rule, mounts_rule, volumes_rule
from tartlet_operator.api.pod_parts import (
    LABEL,
    Affinity,
    ResourceClaim,
    Resources,
    Toleration,
    TopologySpread,
    Volume,
    VolumeMount,
)
from tartlet_operator.api.pool_model import EnvVar, Model

_MAX_SLOTS: Final = 2**26
_MAX_BATCH: Final = 2**20

_DEVICE = "^(cpu|cuda(:[0-9]{1,2})?)$"


SecretName = Annotated[Name, Field(json_schema_extra=an_object("each of spec.podTemplate.imagePullSecrets"))]


class Engine(ApiModel):
    """How each engine runs; the settings of the role `worker`."""

    backend: Literal["Torch", "Fake"] = Field(
        default="Torch", description="`Fake` computes nothing and needs no model; it is for trying things out."
    )
    device: Annotated[str, Field(max_length=16)] = Field(
        default="cpu",
        description="`cpu`, `cuda` or `cuda:N`.",
        json_schema_extra=rules(
            rule(f"self.matches('{_DEVICE}')", "spec.engine.device must be cpu, cuda or cuda:N: name a device")
        ),
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        default="auto", description="Type of weights and KV; `auto`: the checkpoint's."
    )
    page_size: int = Field(default=defaults.PAGE_SIZE, ge=1, le=32, description="Tokens of one KV page.")
    kv_memory: Annotated[str, Field(max_length=20)] = Field(
        default=f"{defaults.KV_MEMORY_GIB}Gi",
        description="Memory for KV pages: a quantity, or `auto`. On a GPU `auto` is 90% of what the loaded model and "
        "the largest batch leave, on a CPU half of that (of the memory limit, if there is one). A fake engine takes "
        "1Gi.",
        json_schema_extra=rules(
            rule(
                f"self == 'auto' || (isQuantity(self) && {between('64Ki', '1Pi')})",
                "spec.engine.kvMemory must be auto, or a quantity of at least 64Ki and at most 1Pi: write it like 4Gi",
            )
        ),
    )
    host_kv_memory: Annotated[str, Field(max_length=20)] = Field(
        default="0",
        description="Host memory for the KV pages of suspended programs, a quantity; 0: they are computed again. The "
        "operator adds it to the memory in `spec.resources`.",
        json_schema_extra=rules(
            rule(
                f"isQuantity(self) && {between('0', '1Pi')}",
                "spec.engine.hostKvMemory must be a quantity of at least 0 and at most 1Pi: write it like 4Gi",
            )
        ),
    )
    num_embeds: int = Field(default=defaults.NUM_EMBEDS, ge=16, le=_MAX_SLOTS, description="Embedding slots (tokens).")
    num_slots: int = Field(default=defaults.NUM_SLOTS, ge=16, le=_MAX_SLOTS, description="Token slots.")
    max_batch_tokens: int = Field(
        default=defaults.MAX_BATCH_TOKENS, ge=1, le=_MAX_BATCH, description="Tokens of one forward batch."
    )
    max_batch_commands: int = Field(
        default=defaults.MAX_BATCH_COMMANDS, ge=1, le=_MAX_BATCH, description="Commands of one batch."
    )
    threads: int = Field(default=1, ge=1, le=1024, description="CPU threads.")
    batch_invariant: bool = Field(default=False, description="Compute the same bits whatever else is in the batch.")
    attention: Literal["auto", "flashinfer", "triton", "torch-gather"] = Field(
        default="auto",
        description="How a CUDA device attends; `auto`: flashinfer where it serves the model, else triton.",
    )
    graphs: Literal["auto", "on", "off"] = Field(
        default="auto", description="Capture decode steps as CUDA graphs; `auto`: where attention can be captured."
    )


SHORT_TOKENS: Final = 2048
"""Autellix's bound between short and long calls (Algorithm 2)."""


class Scheduling(ApiModel):
    """Which programs go first when the batch of an engine is full (docs/scheduling.md)."""

    order: Literal["round-robin", "fcfs", "mlfq", "plas", "atlas", "gittins"] = Field(
        default="round-robin",
        description="`round-robin`: the command that has waited longest. `fcfs`: the call that began first. `mlfq`: "
        "the call with the least service. `plas`, `atlas`: the program with the least service, of all calls or of its "
        "longest chain. `gittins`: the program that is likeliest to end soon.",
    )
    quanta_milliseconds: Annotated[list[Annotated[int, Field(ge=1, le=86_400_000)]], Field(max_length=64)] = Field(
        default_factory=lambda: [250, 500, 1000, 2000, 4000, 8000],
        description="Device time at which a program falls into the next queue, for mlfq, plas and atlas; rising.",
        json_schema_extra=rules(
            rule(
                "size(self) > 0 && self.isSorted() && self.all(x, self.filter(y, y == x).size() == 1)",
                "spec.scheduling.quantaMilliseconds must hold numbers that rise: sort them, and name each once",
            )
        ),
    )
    starved_at: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        default=None,
        description="A program that has waited this many times its service goes first for one quantum; 0: never; "
        "unset: 64 with `gittins`, 8 with the other orders.",
    )
    preempt: Literal["step", "quantum", "call"] | None = Field(
        default=None,
        description="When a call that computes may be stopped for others; unset: as control's settings say. `step`: at "
        "each step. `quantum`: once it has had the quantum of its queue. `call`: not before its end.",
    )
    every: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None,
        description="Steps for which the choice of calls stands, with `step`; unset: as control's settings say.",
    )
    placement: Literal["sticky", "least-used", "round-robin", "autellix", "locality"] | None = Field(
        default=None,
        description="Which engine a context is placed on; unset: as control's settings say. `sticky`: the one with the "
        "fewest calls when its program begins. `least-used`: the one with the fewest calls. `round-robin`: in turn. "
        "`autellix`: short calls where the fewest are, long ones where their "
        "program is. `locality`: where the context is computed first, with what is there already. If pools that serve "
        "one model differ, the first of them by name decides.",
    )
    short_tokens: int = Field(
        default=SHORT_TOKENS,
        ge=1,
        le=10_000_000,
        description="For `autellix`: a call of at most so many tokens is short.",
    )


class Drain(ApiModel):
    """How an engine goes away."""

    grace_seconds: int = Field(
        default=30,
        ge=0,
        le=3600,
        description="How long an engine waits for its programs before it goes; programs left then end with `Draining`.",
    )


class PodTemplate(ApiModel):
    """Additions to the pods that the operator makes, and replacements of their parts."""

    labels: Labels = Field(default_factory=dict, description="More labels; those of the operator win.")
    annotations: Labels = Field(default_factory=dict, description="Annotations.")
    env: Annotated[list[EnvVar], Field(max_length=64)] = Field(
        default_factory=list,
        description="More environment; the same name replaces the operator's. Variables that begin with `TARTLET_` "
        "can't be given.",
        json_schema_extra=rules(env_rule("spec.podTemplate.env")),
    )
    volumes: Annotated[list[Volume], Field(max_length=32)] = Field(
        default_factory=list,
        description="More volumes, as in the core API; the same name replaces the operator's. Drivers: `csi`, `nfs`, "
        "`iscsi`, `fc`. None may be named `tls`.",
        json_schema_extra=rules(volumes_rule("spec.podTemplate.volumes")),
    )
    volume_mounts: Annotated[list[VolumeMount], Field(max_length=32)] = Field(
        default_factory=list,
        description="More mounts of the engine's container, as in the core API; the same path replaces the operator's. "
        "The engine's certificate can't be replaced.",
        json_schema_extra=rules(mounts_rule("spec.podTemplate.volumeMounts")),
    )
    service_account_name: Annotated[str, Field(max_length=253)] = Field(
        default="", description="The pods' service account."
    )
    priority_class_name: Annotated[str, Field(max_length=253)] = Field(
        default="", description="The pods' priority class."
    )
    runtime_class_name: Annotated[str, Field(max_length=253)] = Field(
        default="", description="The pods' runtime class."
    )
    image_pull_secrets: Annotated[list[SecretName], Field(max_length=16)] = Field(
        default_factory=list, description="Names of Secrets that let the image be pulled."
    )
    affinity: Affinity | None = Field(default=None, description="The pods' affinity, as in the core API.")
    fs_group: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Group that owns the files of volumes which support it. Unset: none; 10001, the group of our "
        "image, where `model.init` writes into `model.volumeClaim`.",
    )


class EnginePoolSpec(ApiModel):
    """What the pool should be."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.engine.backend == 'Fake' || (has(self.model.volumeClaim) || has(self.model.init)) != "
                "has(self.model.image)",
                "set spec.model.volumeClaim, spec.model.init or both of them, or else spec.model.image: an engine "
                "loads its checkpoint from there (spec.engine.backend: Fake needs none)",
            ),
            rule(
                "self.engine.backend != 'Fake' || !(has(self.model.volumeClaim) || has(self.model.init) || "
                "has(self.model.image))",
                "remove spec.model.volumeClaim, spec.model.init and spec.model.image, or set spec.engine.backend: "
                "Torch: a fake engine loads no checkpoint",
            ),
            rule(
                "!self.engine.device.startsWith('cuda') || (has(self.resources) && has(self.resources.limits) && "
                "self.resources.limits.exists(k, (k.contains('/gpu') || k.contains('/mig-')) && "
                "!string(self.resources.limits[k]).startsWith('0'))) || "
                "(has(self.resourceClaims) && size(self.resourceClaims) > 0)",
                "spec.engine.device: cuda needs a GPU: set spec.resources.limits, for example nvidia.com/gpu: 1, or "
                "spec.resourceClaims",
            ),
        )
    )

    model: Model = Field(description="The model.")
    engine: Engine = Field(default_factory=Engine, description="How each engine runs.")
    replicas: int = Field(
        default=1,
        ge=0,
        le=1000,
        description="Number of engines, each in a pod of its own. With `autoscaling` the operator sets it.",
    )
    autoscaling: Autoscaling | None = Field(
        default=None, description="Bounds within which the operator scales the pool on its waiting work; unset: never."
    )
    image: Annotated[str, Field(max_length=1024)] = Field(
        default="", description="Image; empty: the operator's default."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None, description="When the image is pulled; unset: the operator's default."
    )
    resources: Resources = Field(default_factory=Resources, description="Compute resources of each engine.")
    resource_claims: Annotated[list[ResourceClaim], Field(max_length=8)] = Field(
        default_factory=list,
        description="Devices that a driver allocates to each engine; needs Kubernetes 1.34.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    rollout: Literal["surge", "replace"] = Field(
        default="surge",
        description="How a new spec replaces engines, one at a time. `surge`: a new engine is ready before an old one "
        "goes, so there must be room for one more. `replace`: an old engine goes first, which also rolls a pool that "
        "has all the GPUs.",
    )
    node_selector: Labels = Field(default_factory=dict, description="Labels that a node must have.")
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = Field(
        default_factory=list, description="Taints that the pods tolerate, as in the core API."
    )
    topology_spread_constraints: Annotated[list[TopologySpread], Field(max_length=8)] = Field(
        default_factory=list,
        description="How the pods are spread, as in the core API; one without a labelSelector gets the pool's.",
    )
    min_available: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="Engines that voluntary disruptions must leave; unset, and at most: all but one, so that nodes can "
        "be drained.",
    )
    start_deadline_seconds: int = Field(
        default=600,
        ge=10,
        le=7200,
        description="How long an engine may take to load before its container is restarted.",
    )
    scheduling: Scheduling | None = Field(
        default=None,
        description="Which programs go first; unset: as control's settings say. A change takes effect at once, and no "
        "engine restarts.",
    )
    durability: Literal["on", "degrade", "off"] | None = Field(
        default=None,
        description="Journals of launches that don't say, of inferlets that don't say, whose model the pool serves; in "
        "quotes, as YAML takes on and off for booleans. `on`: a run whose journal can't be stored ends. `degrade`: it "
        "goes on without. `off`: there is none. Left out: the runtimes' default. A change holds for later launches at "
        "once, and no engine restarts. If pools that serve one model differ, the nearest to the tenant decides, of "
        "these the first by name.",
    )
    drain: Drain = Field(default_factory=Drain, description="How an engine goes away.")
    pod_template: PodTemplate = Field(default_factory=PodTemplate, description="Changes to the pods.")


class EngineStatus(ApiModel):
    """One engine."""

    pod: Annotated[str, Field(max_length=253)] = Field(description="The engine's pod.")
    state: Annotated[str, Field(max_length=64)] = Field(
        description="`Pending`, `Loading`, `Broken` (it ended, and is tried again), `Standby` (others serve the "
        "model, with another checkpoint, dtype or page size), `Ready`, `Joining` (it joined control again, and its pod "
        "isn't ready yet), `Draining`, `Lost` (control doesn't know it) or `Unknown` (control doesn't answer)."
    )
    reason: Annotated[str, Field(max_length=256)] = Field(default="", description="Why the engine isn't ready.")
    programs: int = Field(default=0, ge=0, description="Programs on the engine; updated every 10 s.")
    node: Annotated[str, Field(max_length=253)] = Field(default="", description="Node of the pod.")
    address: Annotated[str, Field(max_length=64)] = Field(default="", description="The pod's address.")


class EnginePoolStatus(ApiModel):
    """What the pool is."""

    observed_generation: int = Field(
        default=0, ge=0, description="The generation of the spec that this status speaks of."
    )
    conditions: Conditions = Field(
        default_factory=list,
        description="`Ready`: the pool is as its spec asks, and no run waits for a pool of 0 replicas. `Available`: an "
        "engine takes programs. `Progressing`: a rollout is under way. `Degraded`: something is wrong.",
    )
    replicas: int = Field(default=0, ge=0, description="Pods that are not going away.")
    ready_replicas: int = Field(default=0, ge=0, description="Engines that take programs.")
    updated_replicas: int = Field(default=0, ge=0, description="Pods of the current spec.")
    draining_replicas: int = Field(
        default=0, ge=0, description="Engines that wait for their programs to end before they go."
    )
    selector: Annotated[str, Field(max_length=1024)] = Field(default="", description="Selects the pool's pods.")
    engines: Annotated[list[EngineStatus], Field(max_length=1000)] = Field(
        default_factory=list, description="Each engine, by pod."
    )


class EnginePool(ApiModel):
    """Engines that serve one model, each in a pod of its own."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "size(self.metadata.name) <= 52",
                "metadata.name must have at most 52 characters: choose a shorter name, pods are named after it",
            ),
            rule(
                f"self.metadata.name.matches('{LABEL}')",
                "metadata.name must hold only lower-case letters, digits and '-': rename it, it becomes a label",
            ),
        )
    )

    spec: EnginePoolSpec = Field(description="What the pool should be.")
    status: EnginePoolStatus | None = Field(default=None, description="What the pool is; written by the operator.")


ENGINE_POOL = Resource(
    kind="EnginePool",
    plural="enginepools",
    short="epool",
    model=EnginePool,
    columns=(
        Column("Model", ".spec.model.name"),
        Column("Replicas", ".spec.replicas", "integer"),
        Column("Ready", ".status.readyReplicas", "integer"),
        condition_column("Available", "Available"),
        condition_column("Reason", "Ready", "reason"),
        Column("Device", ".spec.engine.device", priority=1),
        Column("Updated", ".status.updatedReplicas", "integer", priority=1),
        Column("Draining", ".status.drainingReplicas", "integer", priority=1),
        AGE,
    ),
    scale={
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    },
)
