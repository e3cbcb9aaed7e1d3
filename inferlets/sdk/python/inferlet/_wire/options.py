"""Packs the options of a SAMPLE: bias, allowed tokens, log-probabilities, penalties and their history."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from operator import index
from typing import Any

from inferlet._generated import abi, packers
from inferlet._values.arguments import shown
from inferlet.errors import InvalidArgument

_MOST = 3.0e38  # a float of 32 bits


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `sample`, as the program gave them; `Queue.sample` describes them."""

    logit_bias: Mapping[int, float] | None = None
    allowed: Sequence[int] | bytes | None = None
    logprobs: int = 0
    logprobs_of: Sequence[int] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    follows: bool = False  # whether the text is one of a grammar
    forced: bool = False  # whether the answer tells the tokens that the grammar forces

    @property
    def penalises(self) -> bool:
        """Whether earlier tokens change the logits."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)

    def pack(
        self,
        vocab_size: int,
        history: tuple[Collection[int], Collection[int]] | None = None,
        grammar: tuple[int, Sequence[int]] | None = None,
    ) -> bytes:
        """Return the bytes that follow the stop tokens of a SAMPLE; none if nothing is asked for.

        Args:
            vocab_size: the model's, 0 if it isn't known; many allowed tokens then go as bits.
            history: prompt and output tokens that the slot's history is set to.
            grammar: the grammar that the slot's text begins to follow, 0 for the one that it follows already, and the
                tokens that the text has before this one.

        Raises:
            InvalidArgument: an option is of the wrong kind or does not fit its bits.
        """
        if self == _NOTHING and history is None and grammar is None:
            return b""
        if self.follows and grammar is None:
            grammar = (0, ())
        if self.logit_bias is not None and not isinstance(self.logit_bias, Mapping):
            raise _wrong("logit_bias", "it is a dict of token ids and numbers", self.logit_bias)
        bias = dict(self.logit_bias or {})
        values = array("f", [_real("logit_bias", value) for value in bias.values()])
        prompt, output = _history(history)
        flags, allowed = self._allowed(vocab_size)
        if self.penalises or history is not None:
            flags |= abi.SAMPLE_PENALTIES
        if history is not None:
            flags |= abi.SAMPLE_HISTORY
        if grammar is not None:
            flags |= abi.SAMPLE_GRAMMAR | (abi.SAMPLE_FORCED if self.forced else 0)
        named = _ids("logprobs_of", self.logprobs_of)
        (top,) = _ids("logprobs", [self.logprobs])
        ids = _ids("logit_bias", bias)
        matcher = b""
        if grammar is not None:
            (number,) = _ids("grammar", [grammar[0]])
            matcher = packers.sample_grammar(number, _ids("matched", grammar[1]))
        return packers.sample_options(
            flags,
            top,
            ids,
            values,
            allowed,
            named,
            prompt,
            output,
            _real("repetition_penalty", self.repetition_penalty),
            _real("frequency_penalty", self.frequency_penalty),
            _real("presence_penalty", self.presence_penalty),
            matcher,
        )

    def _allowed(self, vocab_size: int) -> tuple[int, array[int]]:
        """Return the flag for the allowed tokens, and their list or their bits, whichever is shorter."""
        given = self.allowed
        if given is None:
            return 0, array("I")
        if isinstance(given, (bytes, bytearray)):
            return abi.SAMPLE_MASK, array("I", bytes(given).ljust(-(-len(given) // 4) * 4, b"\0"))
        ids = _ids("allowed", given)
        words = -(-vocab_size // 32)
        if len(ids) <= words or not vocab_size or max(ids) >= vocab_size:
            return abi.SAMPLE_ALLOWED, ids
        bits = bytearray(4 * words)
        for token in ids:
            bits[token >> 3] |= 1 << (token & 7)
        return abi.SAMPLE_MASK, array("I", bytes(bits))


_NOTHING = Options()


def _wrong(argument: str, wanted: str, given: Any) -> InvalidArgument:
    return InvalidArgument(argument=argument, detail=f"{wanted}, not {shown(given)}")


def _ids(argument: str, given: Any) -> array[int]:
    """Return token ids as u32."""
    try:
        if isinstance(given, (str, bytes)) or hasattr(given, "__await__"):
            raise TypeError
        return array("I", [index(token) for token in given])
    except (TypeError, OverflowError, ValueError):
        wanted = "a whole number" if argument == "logprobs" else "token ids, whole numbers"
        raise _wrong(argument, f"it takes {wanted} from 0 to {2**32 - 1}", given) from None


def _history(given: Any) -> tuple[array[int], array[int]]:
    """Return prompt and output tokens as u32."""
    if given is None:
        return array("I"), array("I")
    try:
        prompt, output = given
    except (TypeError, ValueError):
        raise _wrong("history", "it is two lists of token ids, of the prompt and of the output", given) from None
    return _ids("history", prompt), _ids("history", output)


def _real(argument: str, given: Any) -> float:
    """Return a number that fits 32 bits."""
    try:
        value = float(given) if hasattr(given, "__float__") or hasattr(given, "__index__") else None
    except (TypeError, ValueError, OverflowError):
        value = None
    if value is None or not isfinite(value) or abs(value) > _MOST:
        raise _wrong(argument, "it takes finite numbers", given)
    return value
