"""InferletRun: one launch of an inferlet, like a Job."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from tartlet_operator.api.common import (
    AGE,
    ApiModel,
    Column,
    Conditions,
    OutputMode,
    Resource,
    Text,
    a_model,
    an_object,
    condition_column,
    rule,
    rules,
)

OUTPUT_BYTES = 64 << 10
"""Bytes of output kept in a status, the last ones."""
TRACEBACK_CHARS = 16 << 10
STDERR_BYTES = 4 << 10


class InferletRunSpec(ApiModel):
    """What to launch. Immutable."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("self == oldSelf", "spec is immutable: create another InferletRun to run it again"),
        )
    )

    inferlet: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        description="Name of the Inferlet, in the same namespace.", json_schema_extra=an_object("spec.inferlet")
    )
    args: Annotated[list[Text], Field(max_length=128)] | None = Field(
        default=None, description="Arguments; unset: the Inferlet's."
    )
    model: Annotated[str, Field(max_length=128)] = Field(
        default="",
        description="Model; empty: the Inferlet's. Another model than the pool's gives up the pool.",
        json_schema_extra=a_model("spec.model"),
    )
    deadline_seconds: int = Field(
        default=600,
        ge=1,
        le=604_800,
        description="How long the run may take in all, waiting and retries included; then it fails with "
        "`DeadlineExceeded`.",
    )
    retries: int = Field(default=0, ge=0, le=10, description="How often the program is launched again after a failure.")
    loss_retries: int = Field(
        default=3,
        ge=0,
        le=100,
        description="How often the program is launched again, from its beginning, after its engine, control or its "
        "runtime was lost or drained. Such losses don't count against `retries`. 0: never, for a program that must not "
        "begin twice.",
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        le=31_536_000,
        description="The object is deleted this long after the run's end; unset: after the operator's setting "
        "run_ttl_s, by default 7 days.",
    )
    output: OutputMode = Field(
        default="status",
        description="`none` keeps the run's texts out of status, conditions and events, as the Inferlet's "
        "`spec.output: none` does for all its runs. `status` doesn't undo the Inferlet's `none`.",
    )


class RunError(ApiModel):
    """Why a run failed."""

    name: Annotated[str, Field(max_length=128)] = Field(description="The error's name, as in the list of errors.")
    number: int = Field(default=0, ge=0, le=65_535, description="Its number.")
    message: Annotated[str, Field(max_length=TRACEBACK_CHARS)] = Field(default="", description="What happened.")
    remedy: Annotated[str, Field(max_length=4096)] = Field(default="", description="What to do about it.")
    traceback: Annotated[str, Field(max_length=TRACEBACK_CHARS)] = Field(
        default="", description="The program's own traceback; of a long one the end."
    )
    stderr: Annotated[str, Field(max_length=STDERR_BYTES)] = Field(
        default="", description="The end of what the program wrote to standard error, at most 4 KiB."
    )


class Tokens(ApiModel):
    """Tokens that programs used."""

    input: int = Field(default=0, ge=0, description="Embedded from ids.")
    output: int = Field(default=0, ge=0, description="Sampled.")


class RunPause(ApiModel):
    """A time for which the program stood still because a part of the release was gone."""

    cause: Annotated[str, Field(max_length=16)] = Field(description="The part: worker, control or runtime.")
    seconds: float = Field(ge=0, description="How long.")


class InferletRunStatus(ApiModel):
    """The state of the run."""

    observed_generation: int = Field(
        default=0, ge=0, description="The generation of the spec that this status speaks of."
    )
    conditions: Conditions = Field(default_factory=list, description="`Succeeded`, `Failed`, `Running`.")
    phase: Literal["Pending", "Running", "Unknown", "Succeeded", "Failed"] = Field(
        default="Pending",
        description="The run in one word. `Unknown`: the program was launched, and its runtime doesn't answer.",
    )
    attempts: int = Field(default=0, ge=0, description="Launches so far.")
    losses: int = Field(
        default=0, ge=0, description="Launches that ended because an engine, control or a runtime was lost or drained."
    )
    program_id: Annotated[str, Field(max_length=64)] = Field(
        default="", description="Id of the latest launch's program."
    )
    output: Annotated[str, Field(max_length=OUTPUT_BYTES)] = Field(
        default="",
        description="What the program sent and printed; the last 64 KiB, less where JSON escapes much of it.",
    )
    output_truncated: bool = Field(default=False, description="The start of the output is missing.")
    output_kept: bool = Field(
        default=True,
        description="Whether texts of the latest launch are kept here: false if `spec.output` of the run or of its "
        "Inferlet was `none` at the launch.",
    )
    result: Annotated[str, Field(max_length=OUTPUT_BYTES)] | None = Field(
        default=None, description="What the program's main returned; of a long text the last 64 KiB."
    )
    error: RunError | None = Field(default=None, description="Why the latest launch failed.")
    tokens: Tokens = Field(
        default_factory=Tokens,
        description="Tokens that all launches used together; while the program runs, as of some seconds ago.",
    )
    paused_seconds: float = Field(
        default=0.0,
        ge=0,
        description="For how long the latest launch's program stood still because a part of the release was gone.",
    )
    pauses: Annotated[list[RunPause], Field(max_length=16)] = Field(
        default_factory=list, description="The last 16 of these pauses, oldest first."
    )
    earlier_tokens: Tokens = Field(
        default_factory=Tokens, description="The part of `tokens` that launches before the latest one used."
    )
    start_time: str | None = Field(
        default=None, description="When the operator first saw the run.", json_schema_extra={"format": "date-time"}
    )
    launch_time: str | None = Field(
        default=None, description="When the latest launch was made.", json_schema_extra={"format": "date-time"}
    )
    completion_time: str | None = Field(
        default=None, description="When the run ended.", json_schema_extra={"format": "date-time"}
    )


class InferletRun(ApiModel):
    """One launch of an inferlet; like a Job, it ends in success or failure and keeps its output."""

    spec: InferletRunSpec = Field(description="What to launch. Immutable.")
    status: InferletRunStatus | None = Field(default=None, description="The state of the run; written by the operator.")


INFERLET_RUN = Resource(
    kind="InferletRun",
    plural="inferletruns",
    short="irun",
    model=InferletRun,
    columns=(
        Column("Inferlet", ".spec.inferlet"),
        Column("Phase", ".status.phase"),
        condition_column("Reason", "Succeeded", "reason"),
        Column("Tokens", ".status.tokens.output", "integer"),
        Column("Attempts", ".status.attempts", "integer", priority=1),
        Column("Losses", ".status.losses", "integer", priority=1),
        Column("Program", ".status.programId", priority=1),
        AGE,
    ),
)
