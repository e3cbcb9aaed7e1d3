"""Settings of each role. Field names are flags, environment variables and the chart's `ROLE.settings`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from tartlet_common.config.paths import cache_dir, run_dir
from tartlet_common.engine import defaults

RENAMED: Final = {"policy": "batching", "policy_k": "batching_k", "policy_t_s": "batching_t_s"}
"""Earlier names of settings, and what they are called now. An earlier name is refused, and the error names the new."""


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    log_format: Literal["text", "json"] = Field("text", description="form of log lines on stderr")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe line logged")
    health_address: str = Field("", description="host:port of /livez, /readyz and /metrics; empty: nowhere")
    tls_certificate: Path | None = Field(None, description="PEM certificate for TCP addresses")
    tls_key: Path | None = Field(None, description="PEM key for TCP addresses")
    tls_authority: Path | None = Field(None, description="PEM certificate of the CA that signed the peers'")


class ControlSettings(_Settings):
    """Settings of `tartlet serve --role control`."""

    address: str = Field(default_factory=lambda: f"unix:{run_dir()}/control.sock", description="where control serves")
    batching: Literal["adaptive", "eager", "k-only", "t-only"] = Field(
        "adaptive", description="batching policy (Pie, Table 5)"
    )
    batching_k: int = Field(8, ge=1, le=65_536, description="k-only: dispatch when so many commands of a kind wait")
    batching_t_s: float = Field(0.016, gt=0, le=10, description="t-only: dispatch every so many seconds")
    steps_in_flight: int = Field(2, ge=1, le=8, description="steps sent to an engine before the first is answered")
    runtime_grace_s: float = Field(
        5.0, ge=0, le=3600, description="how long a runtime may be gone before its programs end"
    )
    program_pages: int = Field(
        0, ge=0, description="page limit of a program, and the most a launch may ask for; 0: the engine's all"
    )
    program_commands: int = Field(4096, ge=1, le=1 << 20, description="commands a program may have in flight")
    max_programs: int = Field(4096, ge=1, le=1 << 20, description="programs at once")
    step_spans_per_s: int = Field(
        100, ge=0, le=1_000_000, description="traced: spans of steps, so many a second for each engine; 0: none"
    )
    catalogue_dir: Path | None = Field(None, description="keeps the catalogue over restarts; unset: in memory")


class RuntimeSettings(_Settings):
    """Settings of `tartlet serve --role runtime`."""

    address: str = Field(default_factory=lambda: f"unix:{run_dir()}/runtime.sock", description="where clients reach it")
    advertise: str = Field("", description="where other runtimes reach it; empty: `address`")
    control: str = Field(default_factory=lambda: f"unix:{run_dir()}/control.sock", description="control's address")
    guest_socket: Path = Field(default_factory=lambda: run_dir() / "guest.sock", description="for native programs")
    cache_dir: Path = Field(default_factory=cache_dir, description="compiled components and tokenizers")
    journal_dir: Path = Field(
        default_factory=lambda: run_dir() / "journals", description="journals of running programs"
    )
    keep_journals: bool = Field(default=False, description="keep the journals of programs that ended well")
    capacity: int = Field(1000, ge=1, le=10_000, description="programs at once")
    boundary: Literal["auto", "shim", "ctypes"] = Field("auto", description="how host calls cross into Wasm")
    memory_bytes: int = Field(256 << 20, ge=1 << 20, description="memory limit of a program")
    cpu_slice_s: float = Field(5.0, gt=0, description="longest computation of a program without waiting")
    source_bytes: int = Field(16 << 20, ge=1024, le=64 << 20, description="largest program accepted")
    output_bytes: int = Field(8 << 20, ge=1024, description="unread output a program may have")
    inbox_messages: int = Field(1024, ge=1, description="unread messages a program may have")
    commands_in_flight: int = Field(4096, ge=1, description="commands a program may have in flight")
    journal_bytes: int = Field(64 << 20, ge=1024, description="size limit of a journal")
    compile_timeout_s: float = Field(60.0, gt=0, description="time limit for compiling an uploaded module")
    ended_kept: int = Field(1000, ge=0, description="ended programs whose output stays readable")
    ended_kept_s: float = Field(600.0, ge=0, description="how long it stays readable")


class WorkerSettings(_Settings):
    """Settings of `tartlet serve --role worker`."""

    control: str = Field(default_factory=lambda: f"unix:{run_dir()}/control.sock", description="control's address")
    engine: Literal["torch", "fake"] = Field("torch", description="backend")
    model: Path | None = Field(None, description="checkpoint directory (torch)")
    model_name: str = Field("", description="what programs call it; empty: the directory's name")
    engine_id: str = Field("", max_length=253, description="what control calls the engine; empty: a random name")
    device: str = Field("cpu", description="torch device")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="of weights and KV; auto: the checkpoint's"
    )
    page_size: int = Field(defaults.PAGE_SIZE, ge=1, le=32, description="tokens a KV page")
    kv_memory_bytes: int = Field(defaults.KV_MEMORY_GIB << 30, ge=1 << 16, description="memory for KV pages")
    num_embeds: int = Field(defaults.NUM_EMBEDS, ge=16, description="embedding slots (tokens)")
    num_slots: int = Field(defaults.NUM_SLOTS, ge=16, description="token slots")
    max_batch_tokens: int = Field(defaults.MAX_BATCH_TOKENS, ge=1, description="tokens of one forward batch")
    max_batch_commands: int = Field(defaults.MAX_BATCH_COMMANDS, ge=1, description="commands of one batch")
    threads: int = Field(1, ge=1, le=1024, description="torch threads")
    batch_invariant: bool = Field(default=False, description="same bits whatever else is in the batch")
    fake_step_s: float = Field(0.0, ge=0, description="fake engine: seconds a step")
    fake_token_s: float = Field(0.0, ge=0, description="fake engine: seconds a computed token")
    fake_fail_token: int = Field(-1, ge=-1, description="fake engine: embedding this token id fails its command")
    fake_break_token: int = Field(-1, ge=-1, description="fake engine: embedding this token id breaks the engine")
    drain_grace_s: float = Field(
        30.0, ge=0, le=3600, description="how long SIGTERM waits for the engine's programs to end"
    )


class OperatorSettings(_Settings):
    """Settings of `tartlet serve --role operator`."""

    namespaces: str = Field("", description="namespaces to watch, separated by commas; empty: the operator's own")
    namespace: str = Field("", description="where the operator runs; empty: the service account's")
    kubeconfig: Path | None = Field(None, description="how to reach the API server; unset: as a pod does")
    control: str = Field(default_factory=lambda: f"unix:{run_dir()}/control.sock", description="control's address")
    runtime: str = Field(default_factory=lambda: f"unix:{run_dir()}/runtime.sock", description="a runtime's address")
    lease_name: str = Field("tartlet-operator", description="Lease that the leading replica holds")
    lease_duration_s: float = Field(15.0, ge=1, le=600, description="how long a Lease lasts that isn't renewed")
    identity: str = Field("", description="this replica's name in the Lease; empty: the host's, and a random part")
    concurrency: int = Field(12, ge=1, le=256, description="objects worked on at once")
    resync_s: float = Field(900.0, ge=1, le=86_400, description="every object is looked at again so often")
    heartbeat_s: float = Field(
        60.0, ge=0.1, le=600, description="control says so often that it is there; what changes it tells at once"
    )
    max_retries: int = Field(
        5, ge=0, le=100, description="tries after a failure, before the object waits for the next resync"
    )
    max_runs: int = Field(256, ge=1, le=10_000, description="InferletRuns followed at once")
    source_hosts: str = Field(
        "",
        pattern="^[^/@#]*$",
        json_schema_extra={"means": "hosts, not URLs, such as example.org or *.example.org:8443"},
        description="hosts that sources may be fetched from, patterns separated by commas; empty: none",
    )
    worker_image: str = Field("tartlet-worker:latest", description="image of pools that name none")
    worker_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        "IfNotPresent", description="image pull policy of pools that name none"
    )
    worker_control: str = Field("", description="control's address for workers; empty: the operator's")
    worker_tls_secret: str = Field("", description="Secret with the workers' tls.crt, tls.key and ca.crt; empty: none")
    worker_service_account: str = Field("", description="service account of workers' pods; empty: the default one")
    worker_pull_secrets: str = Field("", description="Secrets that let workers' images be pulled, separated by commas")
    worker_otlp_endpoint: str = Field("", description="where workers send traces and metrics; empty: nowhere")


def listed(text: str) -> list[str]:
    """What a setting lists, separated by commas, each once.

    Example:
        >>> listed("a, b,,a ")
        ['a', 'b']
    """
    return list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


ROLES: dict[str, type[_Settings]] = {
    "control": ControlSettings,
    "runtime": RuntimeSettings,
    "worker": WorkerSettings,
    "operator": OperatorSettings,
}
