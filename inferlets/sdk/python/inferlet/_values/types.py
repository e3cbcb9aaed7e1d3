"""The handles and values that calls take and return.

A handle is an integer that the program chose itself (docs/architecture.md, "Programs name what they use"). Each kind of
handle is a class of its own, so that the SDK can refuse a page where an embed belongs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple, Self

from inferlet._generated import abi


class KvPage(int):
    """A KV page, with room for the keys and values of `get_kv_page_size()` tokens.

    Example:
        >>> async def main():
        ...     page, *others = alloc_kvpage(3)
        ...     print(page, len(others))
        KvPage(0) 2
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"KvPage({int(self)})"


class Embed(int):
    """An embed: the input vector or the output vector of one token.

    Example:
        >>> async def main():
        ...     (embed,) = alloc_emb(1)
        ...     embed_txt(72, 0, embed)  # an input
        ...     forward([], [embed], oemb=[embed])  # the output, in the same place
        ...     print(embed, len(await get_next_dist(embed)))
        Embed(0) 256
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Embed({int(self)})"


class TokenSlot(int):
    """A token slot: a place on the device for one sampled token. `embed_txt` can read it on the device.

    Example:
        >>> async def main():
        ...     (slot,), (embed,) = alloc_slot(1), alloc_emb(1)
        ...     embed_txt(72, 0, embed)
        ...     forward([], [embed], oemb=[embed])
        ...     sample(embed, slot)
        ...     embed_txt(slot, 1, embed)  # the sampled token, which only the device knows
        ...     await synchronize()
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"TokenSlot({int(self)})"


class PageTable(int):
    """A page table: slots for the keys and values of a sequence of tokens, in rows of `get_kv_page_size()` slots.

    Example:
        >>> async def main():
        ...     prompt = await tokenize("Hi")
        ...     made, embeds = table(new_rows=1), alloc_emb(len(prompt))
        ...     embed_txt(prompt, range(len(prompt)), embeds)
        ...     forward_table(made, 0, embeds)
        ...     await synchronize()
        ...     print(made)
        PageTable(0)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"PageTable({int(self)})"


class CompiledGrammar(int):
    """A grammar that the engine has compiled, for `sample`.

    Example:
        >>> async def main():
        ...     print(await alloc_grammar(regex("[0-9]+")))
        CompiledGrammar(1)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"CompiledGrammar({int(self)})"


class Priority(IntEnum):
    """How urgent a queue's commands are, compared with the commands of other queues.

    Example:
        >>> Priority.LOW < Priority.NORMAL < Priority.HIGH
        True
    """

    LOW = abi.PRIORITY_LOW
    NORMAL = abi.PRIORITY_NORMAL
    HIGH = abi.PRIORITY_HIGH


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the host serves, with the facts that programs need.

    Example:
        >>> async def main():
        ...     model = await get_model()
        ...     print(model.name, model.page_size, model.top_k_limit)
        mini 16 256
    """

    index: int  # names the model in commands
    name: str
    page_size: int  # tokens of a KvPage
    vocab_size: int
    max_position: int  # positions are 0 .. max_position - 1
    stop_tokens: tuple[int, ...] = ()  # the end-of-sequence tokens
    bos_token: int | None = None
    top_k_limit: int = abi.DEFAULT_TOP_K  # most tokens that a Dist can hold
    max_batch_tokens: int = field(kw_only=True)  # tokens that one engine batch takes
    traits: tuple[str, ...] = field(default=())
    logprobs_limit: int = abi.MAX_LOGPROBS  # most tokens that `logprobs` of a sample may ask for
    description: str = ""  # what the checkpoint's model card says; "" if the card doesn't say
    version: str = ""
    license: str = ""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token that the device sampled.

    Example:
        >>> Sampled(token=72, ended=False, logprob=-0.5).token
        72
    """

    token: int
    ended: bool  # whether the token is one of the stop tokens given to `sample`, or completes its grammar's text
    logprob: float  # log-probability under the model's own distribution (temperature 1, no filter)
    logprobs: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Log-probabilities of the tokens asked for, under the same distribution: the best first, then the named ones."""
    token_bytes: bytes | None = None
    """The token's bytes, if they were asked for; None also if the engine can't tell them: ask `detokenize_bytes`."""
    forced: Sequence[int] = ()
    """The tokens that the grammar forces behind this one, if they were asked for. The text can go on behind them."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the program holds on its engine.

    Example:
        >>> Usage(pages=2, embeds=0, slots=1, page_limit=100, free_pages=98).pages
        2
    """

    pages: int
    embeds: int
    slots: int
    page_limit: int
    free_pages: int
    computed_tokens: int = 0  # that engines computed for the program so far
    cached_tokens: int = 0  # that needn't be computed, because rows of equal prompts were there


@dataclass(frozen=True, slots=True)
class Exported:
    """What a name stands for (`export_kvpage`): how many tokens, in which version, and a digest of them.

    Example:
        >>> Exported("documents", tokens=512, version=2, digest="00" * 16).version
        2
    """

    name: str
    tokens: int
    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class Imported:
    """What `import_kvpage` brings: the tokens that a name stands for, and a page table that holds them.

    Example:
        >>> Imported("greeting", [72, 105], version=1, digest="00" * 16, table=PageTable(0)).tokens
        [72, 105]
    """

    name: str
    tokens: Sequence[int]
    version: int
    digest: str
    table: PageTable | None = None


@dataclass(frozen=True, slots=True)
class Dist:
    """The most probable next tokens, at most `top_k` of them, best first (the OutputText trait of the paper).

    Example:
        >>> dist = Dist([7, 3], [0.75, 0.25])
        >>> dist.max_index(), dist.prob(3), dist.prob(5)
        (7, 0.25, 0.0)
        >>> dist
        Dist(2 tokens, 7: 0.75, 3: 0.25)
    """

    tokens: Sequence[int]
    probs: Sequence[float]

    def __repr__(self) -> str:
        best = [f"{token}: {prob:.3g}" for token, prob in zip(self.tokens[:4], self.probs[:4], strict=True)]
        more = ["..."] if len(self) > len(best) else []
        return ", ".join([f"Dist({len(self)} tokens", *best, *more]) + ")"

    def max_index(self) -> int:
        """Return the most probable token."""
        return self.tokens[0]

    def prob(self, token: int) -> float:
        """Return the probability of `token`, 0.0 for a token that is not in the distribution."""
        try:
            return self.probs[self.tokens.index(token)]
        except ValueError:
            return 0.0

    def sample(self, u: float) -> int:
        """Return the token at `u` (0 <= u < 1) of the cumulative probabilities, scaled to a sum of 1."""
        left = u * sum(self.probs)
        for token, prob in zip(self.tokens, self.probs, strict=True):
            left -= prob
            if left < 0:
                return token
        return self.tokens[-1]

    def __len__(self) -> int:
        return len(self.tokens)


class Adapter(int):
    """A LoRA adapter of a model: its number, by which `forward` knows it, and facts about it.

    Attributes:
        name: what the operator of the engines calls it.
        rank: the greatest rank of its matrices.
        digest: sha-256 of its configuration and weights. Adapters of one digest have one number.

    Example:
        >>> async def main():
        ...     for adapter in await get_all_adapters():
        ...         print(adapter, adapter.rank)
        Adapter('loud') 4
    """

    name: str
    rank: int
    digest: str

    def __new__(cls, number: int, name: str, rank: int, digest: str) -> Self:
        """Make the handle of an adapter that the host has told of."""
        made = super().__new__(cls, number)
        made.name, made.rank, made.digest = name, rank, digest
        return made

    def __repr__(self) -> str:
        return f"Adapter({self.name!r})"


class ChatPrompt(NamedTuple):
    """What a chat template makes of messages (`tokenize_chat`): a text, and the text's tokens.

    Example:
        >>> ChatPrompt("Hi", [72, 105]).tokens
        [72, 105]
    """

    text: str
    tokens: list[int]


Role = Literal["system", "user", "assistant", "tool"] | str  # noqa: PYI051 - templates know more roles than these
Message = dict[str, object]
"""A chat message with the keys `role` and `content`, and further keys that the model's template understands."""
Tool = dict[str, object]
"""A tool for a chat template: `{"type": "function", "function": {"name": ..., "parameters": JSON schema}}`."""
