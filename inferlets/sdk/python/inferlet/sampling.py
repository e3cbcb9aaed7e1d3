"""Samplers: how the next token is chosen. They run on the device, and `|` combines them.

Example:
    >>> Temperature(0.7) | TopP(0.9)
    Sampler(temperature=0.7, top_p=0.9)
    >>> Greedy() == Sampler()
    True

A program can also choose tokens itself: every function that takes a `Dist` and returns a token id is a sampler. Each
token then costs a round trip, because the device waits for the program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from inferlet._values.arguments import number, whole
from inferlet._values.types import Dist


@dataclass(frozen=True, repr=False)
class Sampler:
    """Parameters of sampling on the device. A parameter that is not given is off; without any, sampling is greedy.

    The temperature applies first, then the filters `top_k`, `top_p` and `min_p` in this order. `seed` is the key of the
    random numbers; by default each context draws a seed from `random`.

    Example:
        >>> Sampler(temperature=0.7, top_p=0.9, seed=1) == Temperature(0.7) | TopP(0.9) | Sampler(seed=1)
        True
    """

    temperature: float | None = None  # 0 is greedy; 1.0 where only filters are given
    top_k: int | None = None  # keeps the k most probable tokens
    top_p: float | None = None  # keeps the most probable tokens that together reach probability p
    min_p: float | None = None  # keeps tokens with at least this fraction of the best token's probability
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            TypeError: a value is no number.
            ValueError: a value is out of its range.
        """
        for name, check in (
            ("temperature", number),
            ("top_k", whole),
            ("top_p", number),
            ("min_p", number),
            ("seed", whole),
        ):
            if getattr(self, name) is not None:
                check(name, getattr(self, name))
        if self.temperature is not None and not self.temperature >= 0:  # a NaN is not
            raise ValueError(f"temperature is {self.temperature}, it must be at least 0")
        if self.top_k is not None and self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}, it must be at least 0 (0: off)")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, it must be in (0, 1]")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p}, it must be in [0, 1]")

    def __or__(self, other: Sampler) -> Sampler:
        """Combine two samplers. A parameter that both set has the value of `other`."""
        if not isinstance(other, Sampler):
            return NotImplemented
        merged = {
            f.name: mine if (theirs := getattr(other, f.name)) is None else theirs
            for f in fields(Sampler)
            for mine in (getattr(self, f.name),)
        }
        return Sampler(**merged)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sampler) and all(
            getattr(self, f.name) == getattr(other, f.name) for f in fields(Sampler)
        )

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, f.name) for f in fields(Sampler)))

    def __repr__(self) -> str:
        known = [(f.name, getattr(self, f.name)) for f in fields(Sampler)]
        return f"Sampler({', '.join(f'{name}={value}' for name, value in known if value is not None)})"

    @property
    def resolved_temperature(self) -> float:
        """The temperature that applies: as given, else 1 with a filter and 0 (greedy) without one."""
        if self.temperature is not None:
            return self.temperature
        return 0.0 if self.top_k is None and self.top_p is None and self.min_p is None else 1.0


class Greedy(Sampler):
    """Takes the most probable token.

    Example:
        >>> Greedy().resolved_temperature
        0.0
    """

    def __init__(self) -> None:
        super().__init__()


class Temperature(Sampler):
    """Samples with the logits divided by a temperature.

    Example:
        >>> Temperature(0.7) | Sampler(seed=1)  # the same tokens at every run
        Sampler(temperature=0.7, seed=1)
    """

    def __init__(self, temperature: float) -> None:
        super().__init__(temperature=temperature)


class TopK(Sampler):
    """Samples among the k most probable tokens.

    Example:
        >>> TopK(40).resolved_temperature
        1.0
    """

    def __init__(self, k: int) -> None:
        super().__init__(top_k=k)


class TopP(Sampler):
    """Samples among the most probable tokens that together reach probability p.

    Example:
        >>> TopP(0.9) | Temperature(0.7)
        Sampler(temperature=0.7, top_p=0.9)
    """

    def __init__(self, p: float) -> None:
        super().__init__(top_p=p)


class MinP(Sampler):
    """Samples among the tokens that are at least p times as probable as the best token.

    Example:
        >>> MinP(0.1)
        Sampler(min_p=0.1)
    """

    def __init__(self, p: float) -> None:
        super().__init__(min_p=p)


@dataclass(frozen=True)
class End:
    """What a sampler of the program's own returns to end its generation, perhaps with a last token.

    `Generation.stopped_by` is "sampler" then.

    Example:
        >>> def until_unsure(dist):
        ...     return dist.max_index() if dist.probs[0] > 0.9 else End()
        >>> async def main():
        ...     async with Context() as ctx:
        ...         ctx.fill("Hello,")
        ...         generation = ctx.generate(sampler=until_unsure)
        ...         async for _ in generation:
        ...             pass
        ...         print(generation.stopped_by, generation.tokens)
        sampler []
    """

    token: int | None = None  # the last token; None for no further one


CustomSampler = Callable[[Dist], int | End]
AnySampler = Sampler | CustomSampler
