"""Settings of each role. A field's name gives its flag, its environment variable and its key in the chart's values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from tartlet_common.config.allowed_settings import AllowedSettings
from tartlet_common.config.gateway_bounds import GatewayBounds
from tartlet_common.config.http_settings import HttpSettings
from tartlet_common.config.paths import cache_dir, run_dir
from tartlet_common.config.token_settings import TokenSettings
from tartlet_common.engine import defaults

RENAMED: Final = {"policy": "batching", "policy_k": "batching_k", "policy_t_s": "batching_t_s"}
"""Earlier names of settings, and what they are called now. An earlier name is refused, and the error names the new."""


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    log_format: Literal["text", "json"] = Field("text", description="format of log lines on standard error")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe line logged")
    health_address: str = Field("", description="host:port that serves /livez, /readyz and /metrics; empty: none")
    tls_certificate: Path | None = Field(None, description="PEM certificate of this role, for TCP addresses")
    tls_key: Path | None = Field(None, description="PEM key of that certificate")
    tls_authority: Path | None = Field(
        None, description="PEM certificate of the CA that signed the other roles' certificates"
    )
    tls_domain: str = Field(
        "",
        max_length=180,
        pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$",
        json_schema_extra={"means": "a DNS name in lower case, such as tartlet.prod.tartlet.internal"},
        description="domain of the release: a role's certificate names ROLE.DOMAIN; empty: it names ROLE",
    )


class ControlSettings(AllowedSettings, _Settings):
    """Settings of `tartlet serve --role control`."""

    address: str = Field(
        default_factory=lambda: f"unix:{run_dir()}/control.sock", description="address that control serves at"
    )
    batching: Literal["adaptive", "eager", "k-only", "t-only"] = Field(
        "adaptive", description="batching policy (Pie, Table 5)"
    )
    batching_k: int = Field(
        8, ge=1, le=65_536, description="k-only: form a step when this many commands of a kind wait"
    )
    batching_t_s: float = Field(0.016, gt=0, le=10, description="t-only: seconds between steps")
    order: Literal["round-robin", "fcfs", "mlfq", "plas", "atlas", "gittins"] = Field(
        "round-robin", description="which programs go first when an engine can't take all that waits (Autellix 4.2)"
    )
    order_quanta_s: str = Field(
        "0.25,0.5,1,2,4,8",
        pattern=r"^[0-9.]+(,[0-9.]+)*$",
        description="mlfq, plas, atlas: device time, in seconds, at which a program falls into the next queue",
    )
    order_starved_at: float | None = Field(
        None,
        ge=0,
        description="a program that has waited this many times its service goes first for one quantum; 0: never; "
        "unset: 64 with gittins, 8 with the other orders",
    )
    order_preempt: Literal["step", "quantum", "call"] = Field(
        "step", description="when a call may be stopped for others: at each step, after its quantum, or not at all"
    )
    order_every: int = Field(
        1, ge=1, le=1024, description="steps for which the choice of calls stands, with order_preempt step"
    )
    placement: Literal["sticky", "least-used", "round-robin", "autellix", "locality"] = Field(
        "sticky", description="which engine a program or context is placed on (Autellix 4.3)"
    )
    placement_short_tokens: int = Field(
        2048, ge=0, description="autellix: a call of at most this many tokens goes where the fewest calls are"
    )
    tenant_shares: str = Field(
        "",
        description="weights of tenants' shares of each engine's device time, as TENANT=WEIGHT,...; others have 1",
    )
    steps_in_flight: int = Field(
        2, ge=1, le=8, description="steps sent to an engine before the first of them is answered"
    )
    runtime_grace_s: float = Field(
        5.0, ge=0, le=3600, description="seconds that a runtime may be gone before its programs end"
    )
    takeover_grace_s: float = Field(
        30.0, ge=0, le=3600, description="seconds that a program whose runtime is gone waits for another one"
    )
    engine_grace_s: float = Field(
        1.0, ge=0, le=3600, description="seconds that an engine may be gone before control gives it up"
    )
    rebuild_share: float = Field(
        0.5, gt=0, le=1, description="share of a step's tokens that may make lost state again while other programs wait"
    )
    rebuild_grace_s: float = Field(
        60.0, ge=0, le=3600, description="seconds that a program whose engine was lost waits for another one"
    )
    prefix_cache: bool = Field(
        default=True, description="whether programs of a tenant take over rows of equal prompts instead of computing"
    )
    name_tokens: int = Field(
        1 << 20, ge=0, description="tokens that the exported contexts of a tenant may have; more end the longest unused"
    )
    name_ttl_s: float = Field(
        86_400.0, ge=0, description="seconds without use after which an exported context ends, if its export says none"
    )
    program_pages: int = Field(
        0, ge=0, description="KV pages of a program, at most; a launch may ask for fewer; 0: all of the engine's"
    )
    program_commands: int = Field(4096, ge=1, le=1 << 20, description="commands that a program may have in flight")
    max_programs: int = Field(4096, ge=1, le=1 << 20, description="programs that control holds at once")
    session_idle_s: float = Field(900.0, ge=1, description="seconds after which a session without a run ends")
    step_spans_per_s: int = Field(
        100, ge=0, le=1_000_000, description="spans of steps per second and engine, where traces are exported; 0: none"
    )
    shared_pools: str = Field(
        "",
        pattern=r"^\s*([^/,\s]*/[^/,\s]+\s*(,\s*|$))*$",
        json_schema_extra={"means": "TENANT/POOL or TENANT/*, separated by commas"},
        description="pools of one tenant whose engines serve all tenants, TENANT/POOL or TENANT/* each; empty: none",
    )
    catalogue_dir: Path | None = Field(
        None, description="directory that keeps the catalogue over restarts; unset: memory only"
    )
    lease_url: str = Field(
        "",
        description="lease by which one of several controls leads: redis://HOST:PORT, rediss:// or file:///PATH on one "
        "machine; empty: this control is the only one",
    )
    advertise: str = Field(
        "",
        description="HOST:PORT at which other controls reach this one: a control that stands by listens at `address` "
        "and passes connections on to the leader; empty: it doesn't listen",
    )
    lease_password_file: Path | None = Field(None, description="file with the password of the lease's Redis")
    lease_ca_file: Path | None = Field(None, description="PEM certificate of the CA of the lease's Redis")
    lease_s: float = Field(
        2.0, ge=0.5, le=60, description="seconds for which the lease in Redis is valid; a standby takes over behind it"
    )
    directory_url: str = Field(
        "",
        json_schema_extra={"means": "redis://HOST:PORT/DB or rediss://HOST:PORT/DB, without a password"},
        description="Redis in which names of contexts, the places of pages and past runs outlive control: "
        "redis://HOST:PORT or rediss://; empty: control's memory alone",
    )
    directory_password_file: Path | None = Field(None, description="file with the password of the directory's Redis")
    directory_ca_file: Path | None = Field(None, description="PEM certificate of the CA of the directory's Redis")
    directory_release: str = Field(
        "tartlet",
        pattern=r"^[A-Za-z0-9._/-]{1,128}$",
        description="names the directory, the store and the lease, so that several releases may share a Redis",
    )
    store_url: str = Field(
        "", description="Redis that keeps the programs' store and messages on topics; empty: they end with control"
    )
    store_password_file: Path | None = Field(None, description="file with the password of the store's Redis")
    store_ca_file: Path | None = Field(None, description="PEM certificate of the CA of the store's Redis")
    check_books: Path | None = Field(
        None,
        description="for tests: compare programs' books with their histories at random, and write to this directory",
    )


class RuntimeSettings(HttpSettings, _Settings):
    """Settings of `tartlet serve --role runtime`."""

    address: str = Field(
        default_factory=lambda: f"unix:{run_dir()}/runtime.sock", description="address that clients use"
    )
    advertise: str = Field("", description="address that other runtimes use; empty: `address`")
    control: str = Field(default_factory=lambda: f"unix:{run_dir()}/control.sock", description="control's address")
    guest_socket: Path = Field(
        default_factory=lambda: run_dir() / "guest.sock", description="Unix socket that native programs use"
    )
    cache_dir: Path = Field(default_factory=cache_dir, description="directory of compiled components and tokenizers")
    journal_dir: Path = Field(
        default_factory=lambda: run_dir() / "journals", description="directory of running programs' journals"
    )
    journal_url: str = Field(
        "",
        json_schema_extra={"means": "redis://HOST:PORT/DB or rediss://HOST:PORT/DB, without a password"},
        description="the journals' Redis: redis://HOST:PORT, or rediss:// for TLS; empty: files in journal_dir",
    )
    journal_password_file: Path | None = Field(None, description="file with the password of the journals' Redis")
    journal_authority: Path | None = Field(
        None, description="PEM certificate of the CA that signed the journals' Redis's; unset: the system's CAs"
    )
    journal_grace_s: float = Field(
        5.0, gt=0, le=3600, description="seconds that the journals' Redis may store nothing before programs end"
    )
    journal_unstored_bytes: int = Field(
        16 << 20, ge=1024, description="bytes of journals that aren't stored yet, at which programs get no answers"
    )
    durability: Literal["on", "degrade", "off"] = Field(
        "on",
        description="journals of launches that don't say: on, off, or degrade (go on if it can't be stored)",
    )
    keep_journals: bool = Field(default=False, description="keep the journals of programs that succeeded")
    capacity: int = Field(1000, ge=1, le=10_000, description="programs that the runtime runs at once")
    boundary: Literal["auto", "shim", "ctypes"] = Field(
        "auto", description="how host calls cross into Wasm; auto: the shim where a C compiler is found"
    )
    process_memory_bytes: int = Field(
        0,
        ge=0,
        description="bytes of memory of the runtime with its programs and compilers; 0: the cgroup's, or the machine's",
    )
    memory_bytes: int = Field(256 << 20, ge=1 << 20, description="bytes of memory of a program, at most")
    program_reserved_bytes: int = Field(
        8 << 20,
        ge=1 << 20,
        description="bytes that a program holds from its launch, which names no limit of memory",
    )
    cpu_slice_s: float = Field(5.0, gt=0, description="seconds that a program may compute without waiting")
    source_bytes: int = Field(16 << 20, ge=1024, le=64 << 20, description="bytes of a program's source, at most")
    output_bytes: int = Field(8 << 20, ge=1024, description="bytes of unread output that a program may have")
    inbox_messages: int = Field(1024, ge=1, description="unread messages that a program may have")
    commands_in_flight: int = Field(4096, ge=1, description="commands that a program may have in flight")
    journal_bytes: int = Field(64 << 20, ge=1024, description="bytes of a journal, at most")
    journals_bytes: int = Field(2 << 30, ge=1 << 20, description="bytes of all journals on disk, at most")
    journal_takeover_s: float = Field(
        60.0,
        ge=0,
        description="least seconds that a program's file waits for its next runtime, whatever journals_bytes is",
    )
    client_grace_s: float = Field(
        10.0, ge=0, le=3600, description="seconds that the client of a run may take to come back; then the run ends"
    )
    compile_timeout_s: float = Field(60.0, gt=0, description="seconds that compiling an uploaded module may take")
    ended_kept: int = Field(1000, ge=0, description="ended programs whose output stays readable, at most")
    ended_kept_s: float = Field(600.0, ge=0, description="seconds that an ended program's output stays readable")


class GatewaySettings(TokenSettings, GatewayBounds, _Settings):
    """Settings of `tartlet serve --role gateway`."""

    address: str = Field(
        "127.0.0.1:8200", description="host:port of the HTTP API; without `keys` this machine's own only"
    )
    runtime: str = Field(default_factory=lambda: f"unix:{run_dir()}/runtime.sock", description="the runtime's address")
    control: str = Field("", description="control's address, for the catalogue; empty: beside the runtime's socket")
    keys: Path | None = Field(None, description="file of API keys (`tartlet keys create`); empty: none is asked for")
    http_certificate: Path | None = Field(None, description="PEM certificate for HTTPS; read again when it changes")
    http_key: Path | None = Field(None, description="PEM key of that certificate")
    responses_kept_s: float = Field(
        86_400.0, ge=0, le=2_592_000, description="seconds that the Responses API stores responses; 0: none is stored"
    )
    responses_resume_s: float = Field(
        30.0, ge=0, le=3600, description="seconds that a stored, streamed response goes on while no client reads it"
    )
    origins: str = Field(
        "",
        description="origins whose pages may call, separated by commas; without `keys`, this machine's may besides",
    )


class WorkerSettings(_Settings):
    """Settings of `tartlet serve --role worker`."""

    control: str = Field(default_factory=lambda: f"unix:{run_dir()}/control.sock", description="control's address")
    engine: Literal["torch", "fake"] = Field("torch", description="what computes; fake: a stand-in without a model")
    model: Path | None = Field(None, description="checkpoint directory; needed where engine is torch")
    model_name: str = Field("", description="name of the model for programs; empty: the directory's name")
    adapters: str = Field(
        "",
        pattern=r"^\s*([A-Za-z0-9][A-Za-z0-9._-]{0,63}=[^,]+(,\s*|$))*$",
        json_schema_extra={"means": "NAME=DIRECTORY, separated by commas"},
        description="LoRA adapters of the model: NAME=DIRECTORY as PEFT saves it, separated by commas; empty: none",
    )
    adapters_file: Path | None = Field(None, description="file of lines NAME=DIRECTORY, followed while the engine runs")
    pool: str = Field(
        "",
        max_length=128,
        pattern=r"^([^/*,\s]*/)?[^/*,\s]*$",
        json_schema_extra={"means": "TENANT/POOL or POOL"},
        description="pool of the engine, TENANT/POOL; over TLS the certificate names the tenant; empty: none",
    )
    engine_id: str = Field("", max_length=253, description="name of the engine in control; empty: a random name")
    device: str = Field("cpu", description="torch device: cpu, cuda or cuda:N")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="number type of weights and KV pages; auto: the checkpoint's"
    )
    page_size: int = Field(defaults.PAGE_SIZE, ge=1, le=32, description="tokens of a KV page")
    kv_memory_bytes: Annotated[int, Field(ge=1 << 16)] | Literal["auto"] = Field(
        defaults.KV_MEMORY_GIB << 30, description="bytes of memory for KV pages; auto: what the device has left"
    )
    host_kv_bytes: int = Field(
        0, ge=0, description="bytes of host memory for the KV pages of suspended programs; 0: they are computed again"
    )
    num_embeds: int = Field(defaults.NUM_EMBEDS, ge=16, description="embedding slots, one token each")
    num_slots: int = Field(defaults.NUM_SLOTS, ge=16, description="token slots")
    max_batch_tokens: int = Field(defaults.MAX_BATCH_TOKENS, ge=1, description="tokens of one forward batch, at most")
    max_batch_commands: int = Field(defaults.MAX_BATCH_COMMANDS, ge=1, description="commands of one batch, at most")
    logprobs_limit: int = Field(
        defaults.LOGPROBS_LIMIT, ge=0, le=4096, description="tokens whose log-probabilities one sample may ask for"
    )
    threads: int = Field(1, ge=1, le=1024, description="threads that compute on the CPU")
    batch_invariant: bool = Field(default=False, description="compute the same bits whatever else is in the batch")
    attention: Literal["auto", "flashinfer", "triton", "torch-gather"] = Field(
        "auto", description="how a CUDA device attends; auto: flashinfer where it serves the model, else triton"
    )
    graphs: Literal["auto", "on", "off"] = Field(
        "auto",
        description="capture decode steps as CUDA graphs; auto: on CUDA devices, where attention can be captured",
    )
    graph_buckets: str = Field(
        "",
        pattern=r"^[0-9,\s]*$",
        json_schema_extra={"means": "numbers separated by commas, such as 1, 2, 4, 8"},
        description="rows of the captured batches; empty: 1, 2, 4, 8, by 8 to 128, by 16 to 256",
    )
    fake_step_s: float = Field(0.0, ge=0, description="fake engine: seconds that a step takes")
    fake_token_s: float = Field(0.0, ge=0, description="fake engine: seconds that a computed token takes")
    fake_fail_token: int = Field(
        -1, ge=-1, description="fake engine: a command that embeds this token id fails; -1: none"
    )
    fake_break_token: int = Field(
        -1, ge=-1, description="fake engine: embedding this token id breaks the engine; -1: none"
    )
    drain_grace_s: float = Field(
        30.0, ge=0, le=3600, description="seconds that the engine's programs have to end after SIGTERM"
    )


class OperatorSettings(_Settings):
    """Settings of `tartlet serve --role operator`."""

    namespaces: str = Field("", description="namespaces to watch, separated by commas; empty: the operator's own")
    namespace: str = Field("", description="namespace that the operator runs in; empty: the service account's")
    kubeconfig: Path | None = Field(
        None, description="kubeconfig file of the API server; unset: the pod's service account"
    )
    control: str = Field(default_factory=lambda: f"unix:{run_dir()}/control.sock", description="control's address")
    runtime: str = Field(default_factory=lambda: f"unix:{run_dir()}/runtime.sock", description="address of a runtime")
    lease_name: str = Field("tartlet-operator", description="name of the Lease that the leading replica holds")
    lease_duration_s: float = Field(15.0, ge=1, le=600, description="seconds until a Lease that isn't renewed expires")
    identity: str = Field("", description="name of this replica in the Lease; empty: the host's name and a random part")
    concurrency: int = Field(12, ge=1, le=256, description="objects that are worked on at once")
    resync_s: float = Field(
        900.0, ge=1, le=86_400, description="seconds until an object is looked at again, even if nothing changed"
    )
    heartbeat_s: float = Field(
        60.0, ge=0.1, le=600, description="seconds between control's signs of life; changes are reported at once"
    )
    max_retries: int = Field(
        5, ge=0, le=100, description="retries after a failure, until the object waits for the next resync"
    )
    max_runs: int = Field(256, ge=1, le=10_000, description="InferletRuns that are followed at once")
    run_ttl_s: int = Field(
        604_800,
        ge=-1,
        le=31_536_000,
        description="seconds after its end until an InferletRun that names no time is deleted; -1: never",
    )
    source_hosts: str = Field(
        "",
        pattern="^[^/@#]*$",
        json_schema_extra={"means": "hosts, not URLs, such as example.org or *.example.org:8443"},
        description="hosts that sources may be fetched from, as patterns separated by commas; empty: none",
    )
    source_private_hosts: str = Field(
        "",
        pattern=r"^\s*([A-Za-z0-9*?._:\[\]-]+(/[0-9]{1,3})?\s*(,\s*|$))*$",
        json_schema_extra={"means": "hosts and networks, such as git.example.org, *.example.org or 10.1.0.0/16"},
        description="hosts and networks among source_hosts that may have private addresses, separated by commas; * in "
        "a host stands for any characters, and * alone for every host",
    )
    shared_pools: str = Field(
        "",
        description="control's setting of this name: such pools of 0 replicas tell if other namespaces wait for them",
    )
    release_pools: str = Field(
        "", description="ConfigMap of the operator's namespace with the pools of its release's values; empty: none"
    )
    worker_image: str = Field("tartlet-worker:latest", description="container image of pools that name none")
    worker_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        "IfNotPresent", description="image pull policy of pools that name none"
    )
    worker_control: str = Field("", description="control's address for workers; empty: the operator's own setting")
    worker_tls_secret: str = Field("", description="Secret with the workers' tls.crt, tls.key and ca.crt; empty: none")
    worker_service_account: str = Field("", description="service account of workers' pods; empty: the default one")
    worker_pull_secrets: str = Field("", description="Secrets that let workers' images be pulled, separated by commas")
    worker_otlp_endpoint: str = Field("", description="address that workers export traces and metrics to; empty: none")


ROLES: dict[str, type[_Settings]] = {
    "control": ControlSettings,
    "runtime": RuntimeSettings,
    "gateway": GatewaySettings,
    "worker": WorkerSettings,
    "operator": OperatorSettings,
}
