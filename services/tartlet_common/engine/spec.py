"""The description that an engine gives of itself when its worker joins control (Hello)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tartlet_common.engine import defaults


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Facts of one engine that control, runtimes and programs rely on.

    Engines of one model name must agree in `model_digest`, `page_size`, `dtype` and `traits`; control refuses the Hello
    of an engine that differs.
    """

    model: str
    model_digest: str  # sha-256 of config and weights
    family: str  # "llama", "mistral", "qwen2", "qwen3", "gemma", "fake"
    dtype: str  # "bfloat16" | "float32"
    device: str  # "cpu", "cuda:0"
    page_size: int  # tokens, 1 to 32
    num_pages: int
    num_embeds: int
    num_slots: int
    vocab_size: int
    max_position: int  # a token's position is within 0 .. max_position - 1
    max_batch_tokens: int  # tokens of one Forward batch, at most; a single command with more runs alone
    max_batch_commands: int
    top_k_limit: int  # largest top_k of get_next_dist
    kv_bytes_per_token: int
    tokenizer_digest: str  # sha-256 of tokenizer.json, "" if the engine has none
    stop_tokens: tuple[int, ...] = ()  # the checkpoint's end-of-sequence tokens
    bos_token: int | None = None
    chat_template: str = ""
    chat_bos: str | None = None  # value of the chat template's `bos_token`; None: the text of `bos_token`
    chat_eos: str | None = None  # value of the template's `eos_token`; None: the text of the first of `stop_tokens`
    batch_invariant: bool = False
    host_pages: int = 0  # pages for which the worker keeps host memory, to which suspended programs' pages go
    host_page_ns: int = 0  # nanoseconds to bring one of many pages there, or back
    logprobs_limit: int = defaults.LOGPROBS_LIMIT  # best tokens whose log-probabilities one `sample` may ask for
    description: str = ""  # as the checkpoint's model card says; "" if the card doesn't say
    version: str = ""
    license: str = ""
    traits: tuple[str, ...] = field(
        default=("core", "Allocate", "Forward", "InputText", "Tokenize", "OutputText", "Sample")
    )
