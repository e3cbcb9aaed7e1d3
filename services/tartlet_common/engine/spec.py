"""The description that an engine gives of itself when its worker joins control (Hello)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tartlet_common.engine import defaults

ADAPTER_TRAIT: Final = "Adapter"
"""The trait of engines that have LoRA adapters."""


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """A LoRA adapter that an engine has."""

    name: str
    digest: str  # sha-256 of its configuration and weights
    rank: int  # the greatest of its matrices

    @property
    def number(self) -> int:
        """The number by which `forward` names the adapter: above 0, and the same wherever the weights are the same."""
        return int(self.digest[:8], 16) or 1


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Facts of one engine that control, runtimes and programs rely on.

    Engines of one form of a model agree in `model_digest`, `page_size`, `dtype`, `traits` and a few others; in
    `adapters` too, unless these come and go.
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
    adapters: tuple[AdapterSpec, ...] = ()  # by name; an engine that has any has the trait "Adapter" too
    live_adapters: bool = False  # adapters come and go while the engine runs; it has the trait even without any
    retiring: tuple[AdapterSpec, ...] = ()  # adapters that it still has and offers no more

    def adapter(self, number: int) -> AdapterSpec | None:
        """Return the adapter of a number, offered or retiring; None if the engine has none of it."""
        return next((adapter for adapter in (*self.adapters, *self.retiring) if adapter.number == number), None)


def with_adapters(spec: EngineSpec, adapters: Sequence[AdapterSpec], *, live: bool = False) -> EngineSpec:
    """Return the spec of an engine that has these adapters besides; `live`: they come and go."""
    if not adapters and not live:
        return spec
    return replace(spec, adapters=tuple(adapters), traits=(*spec.traits, ADAPTER_TRAIT), live_adapters=live)


def adapters_of(objects: Iterable[dict[str, Any]]) -> tuple[AdapterSpec, ...]:
    """Return the adapters that a spec's JSON lists.

    Raises:
        TypeError: a field is missing, or isn't one.
    """
    return tuple(AdapterSpec(**fields) for fields in objects)
