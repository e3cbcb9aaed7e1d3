"""What an engine says of itself in Hello."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Facts of one engine that control, runtimes and programs rely on.

    Engines of one model name must agree in `model_digest`, `page_size`, `dtype` and `traits`, else Hello is refused.
    """

    model: str
    model_digest: str  # sha-256 of config and weights
    family: str  # "llama", "mistral", "qwen2", "qwen3", "fake"
    dtype: str  # "bfloat16" | "float32"
    device: str  # "cpu", "cuda:0"
    page_size: int  # tokens, 1 to 32
    num_pages: int
    num_embeds: int
    num_slots: int
    vocab_size: int
    max_position: int  # positions a token may have are 0 .. max_position - 1
    max_batch_tokens: (
        int  # most tokens one Forward batch may bring (a single command may have more, then it runs alone)
    )
    max_batch_commands: int
    top_k_limit: int  # largest top_k of get_next_dist
    kv_bytes_per_token: int
    tokenizer_digest: str  # sha-256 of tokenizer.json, "" if the engine has none
    stop_tokens: tuple[int, ...] = ()  # what the checkpoint names as end of sequence
    bos_token: int | None = None
    chat_template: str = ""
    chat_bos: str | None = None  # what the template's `bos_token` stands for; None: the text of our `bos_token`
    chat_eos: str | None = None  # the same of `eos_token`; None: the text of the first of our `stop_tokens`
    batch_invariant: bool = False
    traits: tuple[str, ...] = field(
        default=("core", "Allocate", "Forward", "InputText", "Tokenize", "OutputText", "Sample")
    )
