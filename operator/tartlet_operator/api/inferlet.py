"""Inferlet: a program that can be run by name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from tartlet_operator.api.common import (
    AGE,
    OBJECT_NAME,
    ApiModel,
    Column,
    Conditions,
    Name,
    OutputMode,
    Resource,
    Text,
    a_model,
    an_object,
    between,
    condition_column,
    rule,
    rules,
)

HTTP_HOST = r"^(https?://)?([*]|([*][.])?[A-Za-z0-9_.-]+|[\\[][0-9A-Fa-f:.]+[\\]])(:([0-9]{1,5}|[*]))?$"
"""A host that programs may ask; backslashes as CEL wants them."""
SOURCE_BYTES = 1 << 20
"""Most bytes of an inline source: an object of the API may hold 1.5 MiB in all."""


class ConfigMapKey(ApiModel):
    """A key of a ConfigMap in the same namespace."""

    name: Name = Field(description="The ConfigMap's name.", json_schema_extra=an_object("spec.source.configMap.name"))
    key: Annotated[str, Field(min_length=1, max_length=253)] = Field(
        description="The key; its value is the source (`data`) or the module (`binaryData`)."
    )


class UrlSource(ApiModel):
    """A file on a web server, pinned by its digest."""

    url: Annotated[str, Field(max_length=2048)] = Field(
        description="Address of the file; the operator must allow the host.",
        json_schema_extra=rules(
            rule(
                "self.matches('^https?://[^/?#@ ]+(/[^ ]*)?$') && isURL(self)",
                "spec.source.url.url must be an http(s) URL with a path and without user information: write it like "
                "https://example.org/program.py",
            ),
        ),
    )
    digest: Annotated[str, Field(max_length=71)] = Field(
        description="`sha256:` and the content's SHA-256, hex.",
        json_schema_extra=rules(
            rule(
                "self.matches('^sha256:[0-9a-f]{64}$')",
                "spec.source.url.digest must be sha256: and 64 hex digits: compute it with sha256sum",
            )
        ),
    )


class Source(ApiModel):
    """The program; exactly one field is set."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "(has(self.inline) ? 1 : 0) + (has(self.configMap) ? 1 : 0) + (has(self.url) ? 1 : 0) == 1",
                "set exactly one of spec.source.inline, spec.source.configMap and spec.source.url",
            ),
            rule(
                f"!has(self.inline) || size(bytes(self.inline)) <= {SOURCE_BYTES}",
                f"spec.source.inline may have at most {SOURCE_BYTES} bytes: give a larger program by spec.source.url",
            ),
        )
    )

    inline: Annotated[str, Field(min_length=1, max_length=SOURCE_BYTES)] | None = Field(
        default=None, description="The program's text."
    )
    config_map: ConfigMapKey | None = Field(
        default=None, description="The program is in a ConfigMap; the operator follows changes."
    )
    url: UrlSource | None = Field(default=None, description="The program is fetched from a web server.")


class Limits(ApiModel):
    """Limits of each run. An unset limit is the runtime's default, which is also the most."""

    memory: Annotated[str, Field(max_length=20)] | None = Field(
        default=None,
        description="Memory, a quantity.",
        json_schema_extra=rules(
            rule(
                f"isQuantity(self) && {between('1Mi', '1Pi')}",
                "spec.limits.memory must be a quantity of at least 1Mi and at most 1Pi: write it like 256Mi",
            )
        ),
    )
    cpu_slice_seconds: int | None = Field(
        default=None, ge=1, le=3600, description="Longest time that the program may compute without waiting."
    )
    pages: int | None = Field(default=None, ge=1, le=2**31 - 1, description="KV pages held at once.")
    commands_in_flight: int | None = Field(default=None, ge=1, le=1 << 20, description="Commands not yet answered.")


SharedNames = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^*]*[*]?$")]], Field(max_length=64)
]


class Capabilities(ApiModel):
    """What a program may reach beyond its engine."""

    http: Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=64)] = Field(
        default_factory=list,
        description="Hosts that the program may send HTTP requests to: [scheme://]host[:port], *.host for all names "
        "below one.",
        json_schema_extra=rules(
            rule(
                f"self.all(host, host.matches('{HTTP_HOST}'))",
                "spec.capabilities.http holds hosts: api.example.org, *.example.org:8443, https://example.org",
            )
        ),
    )
    secrets: Annotated[list[Annotated[str, Field(max_length=127)]], Field(max_length=64)] = Field(
        default_factory=list,
        description="Names of secrets of the runtimes that the program may have put into headers of its requests.",
        json_schema_extra=rules(
            rule(
                "self.all(name, name.matches('^[A-Za-z0-9_-][A-Za-z0-9._-]*$'))",
                "spec.capabilities.secrets holds names: letters, digits and . _ - make one",
            )
        ),
    )

    topics: SharedNames | None = Field(
        default=None,
        description="Topics that the program may use, within what control's settings allow: names, or beginnings of "
        "names with a * behind them. Left out: as control's settings allow.",
    )
    names: SharedNames | None = Field(
        default=None, description="Names of contexts that the program may export and import, likewise."
    )
    spawn: SharedNames | None = Field(
        default=None, description="Names of Inferlets that the program may start, likewise."
    )


class InferletSpec(ApiModel):
    """What the program is and how it runs."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!(has(self.model) && size(self.model) > 0 && has(self.pool) && size(self.pool) > 0)",
                "set at most one of spec.model and spec.pool: a pool names its model",
            ),
            rule(
                "self.language != 'Wasm' || !has(self.source.inline)",
                "spec.source.inline holds Python text: give a Wasm module by spec.source.configMap (binaryData) or "
                "spec.source.url",
            ),
            rule(
                "self.language != 'Python' || !has(self.limits) || !has(self.limits.memory) || "
                "!isQuantity(self.limits.memory) || !quantity(self.limits.memory).isLessThan(quantity('22Mi'))",
                "spec.limits.memory: a Python program needs at least 22Mi to start: raise it, or leave it out",
            ),
        )
    )

    source: Source = Field(description="The program.")
    language: Literal["Python", "Wasm"] = Field(
        default="Python",
        description="Language of the program. Python: a text, or an archive that `tartlet build` has made.",
    )
    args: Annotated[list[Text], Field(max_length=128)] = Field(
        default_factory=list, description="Arguments for InferletRuns that give none; clients give their own."
    )
    model: Annotated[str, Field(max_length=128)] = Field(
        default="",
        description="Name of the model that the program runs on; with neither model nor pool: the first by name that "
        "has a ready engine.",
        json_schema_extra=a_model("spec.model"),
    )
    pool: Annotated[str, Field(max_length=63)] = Field(
        default="",
        description="Name of an EnginePool in the namespace; the program runs on its model.",
        json_schema_extra=rules(
            rule(
                f"size(self) == 0 || self.matches('{OBJECT_NAME}')",
                "spec.pool must be an EnginePool's name: lower-case letters, digits and '-'; `kubectl get enginepools` "
                "lists them",
            )
        ),
    )
    limits: Limits = Field(default_factory=Limits, description="Limits of each run.")
    durability: Literal["on", "degrade", "off"] | None = Field(
        default=None,
        description="Journals of launches that don't say, in quotes: YAML takes on and off for booleans. `on`: a run "
        "whose journal can't be stored ends. `degrade`: it goes on without. `off`: there is none. Left out: the "
        "pool's, or else the runtimes' default.",
    )
    capabilities: Capabilities = Field(
        default_factory=Capabilities,
        description="The most that each run may reach, within what the runtimes' settings allow. Left out: nothing.",
    )
    output: OutputMode = Field(
        default="status",
        description="`none` keeps the output, results, tracebacks and messages of all the program's runs out of "
        "statuses, conditions and events. The error's type and remedy stay. `status` keeps them in the run's status.",
    )
    description: Annotated[str, Field(max_length=1024)] = Field(
        default="", description="What the program does, for people."
    )


class InferletStatus(ApiModel):
    """Whether and where the program can run."""

    observed_generation: int = Field(
        default=0, ge=0, description="The generation of the spec that this status speaks of."
    )
    conditions: Conditions = Field(
        default_factory=list,
        description="`Ready`: the source is validated and in the catalogue. `Runnable`: it is, and runs are launched "
        "at once: a ready pool serves its model, or it names neither model nor pool and the namespace has no pool. "
        "While it isn't Ready, clients that launch it by name get the last valid version, if there was one.",
    )
    digest: Annotated[str, Field(max_length=71)] = Field(
        default="", description="Digest of the source that is in the catalogue."
    )
    model: Annotated[str, Field(max_length=128)] = Field(default="", description="The model that the program runs on.")
    pools: Annotated[list[Name], Field(max_length=64)] = Field(
        default_factory=list, description="Pools of the namespace that can run the program now."
    )


class Inferlet(ApiModel):
    """A program that InferletRuns and clients run by name."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "size(self.metadata.name) <= 128",
                "metadata.name must have at most 128 characters: choose a shorter name, the catalogue keeps it",
            )
        )
    )

    spec: InferletSpec = Field(description="What the program is and how it runs.")
    status: InferletStatus | None = Field(
        default=None, description="Whether the program can run; written by the operator."
    )


INFERLET = Resource(
    kind="Inferlet",
    plural="inferlets",
    short="ilet",
    model=Inferlet,
    columns=(
        Column("Language", ".spec.language"),
        Column("Model", ".status.model"),
        condition_column("Ready", "Ready"),
        condition_column("Runnable", "Runnable"),
        Column("Reason", '.status.conditions[?(@.status!="True")].reason'),  # of the first that isn't as it should be
        Column("Digest", ".status.digest", priority=1),
        AGE,
    ),
)
