"""Handles and values that calls take and give.

Handles are integers, the program's own names for its pages, embeds and slots (architecture, invariant 2); the classes
keep one from being passed for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from inferlet._generated import abi


class KvPage(int):
    """A KV page: room for the keys and values of `get_kv_page_size()` tokens.

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
    """An embedding slot: one token's input or output vector.

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
    """A place on the device for one sampled token, which `embed_txt` can read without the program seeing it.

    Example:
        >>> async def main():
        ...     (slot,), (embed,) = alloc_slot(1), alloc_emb(1)
        ...     embed_txt(72, 0, embed)
        ...     forward([], [embed], oemb=[embed])
        ...     sample(embed, slot)
        ...     embed_txt(slot, 1, embed)  # the sampled token, known to the device alone
        ...     await synchronize()
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"TokenSlot({int(self)})"


class Priority(IntEnum):
    """How urgent a queue's commands are, beside those of other queues.

    Example:
        >>> Priority.LOW < Priority.NORMAL < Priority.HIGH
        True
    """

    LOW = abi.PRIORITY_LOW
    NORMAL = abi.PRIORITY_NORMAL
    HIGH = abi.PRIORITY_HIGH


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the host serves, and what a program must know of it.

    Example:
        >>> async def main():
        ...     model = await get_model()
        ...     print(model.name, model.page_size, model.top_k_limit)
        mini 16 256
    """

    index: int  # what commands call it
    name: str
    page_size: int  # tokens of a KvPage
    vocab_size: int
    max_position: int  # positions are 0 .. max_position - 1
    stop_tokens: tuple[int, ...] = ()  # its end-of-sequence tokens
    bos_token: int | None = None
    top_k_limit: int = abi.DEFAULT_TOP_K  # most tokens that a Dist can hold
    max_batch_tokens: int = field(kw_only=True)  # tokens that one engine batch takes
    traits: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token that the device sampled.

    Example:
        >>> Sampled(token=72, ended=False, logprob=-0.5).token
        72
    """

    token: int
    ended: bool  # it is one of the stop tokens given to `sample`
    logprob: float  # under the model's own distribution (temperature 1, nothing filtered)


@dataclass(frozen=True, slots=True)
class Usage:
    """What the program holds of its engine.

    Example:
        >>> Usage(pages=2, embeds=0, slots=1, page_limit=100, free_pages=98).pages
        2
    """

    pages: int
    embeds: int
    slots: int
    page_limit: int
    free_pages: int


@dataclass(frozen=True, slots=True)
class Dist:
    """The most probable next tokens, best first (the paper's OutputText trait; at most `top_k` of them).

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
        """The most probable token."""
        return self.tokens[0]

    def prob(self, token: int) -> float:
        """Probability of `token`; 0.0 if it is not among the top ones."""
        try:
            return self.probs[self.tokens.index(token)]
        except ValueError:
            return 0.0

    def sample(self, u: float) -> int:
        """The token at `u` (0 <= u < 1) of the cumulated, renormalised probabilities."""
        left = u * sum(self.probs)
        for token, prob in zip(self.tokens, self.probs, strict=True):
            left -= prob
            if left < 0:
                return token
        return self.tokens[-1]

    def __len__(self) -> int:
        return len(self.tokens)


Role = Literal["system", "user", "assistant", "tool"] | str  # noqa: PYI051 - templates know more roles than these
Message = dict[str, object]
"""A chat message: at least `role` and `content`, further keys as the model's template understands them."""
Tool = dict[str, object]
"""A tool as chat templates take one: `{"type": "function", "function": {"name": ..., "parameters": JSON schema}}`."""
