"""The options of a `sample`: bias, allowed tokens, penalties with their history, and log-probabilities to tell.

Control checks them once, and engines apply them (docs/abi.md, "Noise and sampling").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from tartlet_common.abi import MAX_NAMED, SAMPLE_OPTIONS, SampleFlag
from tartlet_common.errors.registry import InvalidArgument, MalformedSubmission

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]

BANNED: Final = -100.0
"""A bias of at most this makes a token impossible."""
MAX_BIAS: Final = 1_000_000.0
MAX_REPETITION: Final = 1_000.0
MAX_HISTORY: Final = 1 << 16
"""Most tokens of a prompt, and of an output, that one command puts into a history."""


@dataclass(frozen=True, slots=True)
class Penalties:
    """How earlier tokens change logits: of prompt and output by `repetition`, of the output alone by the others."""

    repetition: float  # divides positive logits and multiplies negative ones; 1 is off
    frequency: float  # is subtracted once for each earlier occurrence; 0 is off
    presence: float  # is subtracted once; 0 is off


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """What one `sample` asks for beyond its filters. None, 0 and empty arrays ask for nothing."""

    top: int  # tell the log-probabilities of so many tokens, the best first
    named: I32  # and of these
    bias_token: I32
    bias: F32  # added to the logits of `bias_token`
    allowed: I32 | None  # only these tokens may be sampled
    mask: npt.NDArray[np.uint8] | None  # or only those with a set bit: packed, least significant bit first
    penalties: Penalties | None
    history: tuple[I32, I32] | None  # prompt and output tokens that the slot's history is set to
    grammar: tuple[int, I32] | None = None  # the grammar's id (0: the slot's matcher goes on), tokens it takes first
    forced: bool = False  # tell the tokens that the grammar forces behind this one

    def permitted(self, vocab: int) -> npt.NDArray[np.bool_] | None:
        """Return [vocab]: which tokens may be sampled, or None if all may."""
        banned = self.bias_token[self.bias <= BANNED]
        if self.allowed is None and self.mask is None and not len(banned):
            return None
        if self.mask is not None:
            seen = np.unpackbits(self.mask, bitorder="little", count=vocab).astype(np.bool_)
        elif self.allowed is not None:
            seen = np.zeros(vocab, np.bool_)
            seen[self.allowed] = True
        else:
            seen = np.ones(vocab, np.bool_)
        seen[banned] = False
        return seen


def read(data: bytes | memoryview) -> SampleOptions:
    """Read abi.SAMPLE_OPTIONS and its lists.

    Raises:
        MalformedSubmission: the bytes aren't as long as the head says, or a flag is unknown.
    """
    if len(data) < SAMPLE_OPTIONS.itemsize:
        raise MalformedSubmission(detail=f"options of sample need {SAMPLE_OPTIONS.itemsize} bytes, not {len(data)}")
    head = np.frombuffer(data, SAMPLE_OPTIONS, count=1)[0]
    flags = int(head["flags"])
    n_bias, *counts = (int(head[name]) for name in ("n_bias", "n_allowed", "n_named", "n_prompt", "n_output"))
    size = SAMPLE_OPTIONS.itemsize + 4 * (2 * n_bias + sum(counts))
    grammar = None
    if flags & SampleFlag.GRAMMAR:
        grammar = _grammar(data, size)
        size = len(data)  # the tokens of the matcher are all that follows
    both = SampleFlag.ALLOWED | SampleFlag.MASK
    lone_history = flags & SampleFlag.HISTORY and not flags & SampleFlag.PENALTIES
    lone_forced = flags & SampleFlag.FORCED and not flags & SampleFlag.GRAMMAR
    bad_flags = flags >= 2 * max(SampleFlag) or flags & both == both or lone_history or lone_forced
    if bad_flags or size != len(data):
        raise MalformedSubmission(detail=f"options of sample with flags {flags} and {size} bytes, not {len(data)}")
    words = np.frombuffer(data, np.int32, offset=SAMPLE_OPTIONS.itemsize)
    ids, bias, allowed, named, prompt, output, _ = np.split(words, np.cumsum([n_bias, n_bias, *counts]))
    penalties = (float(head[name]) for name in ("repetition", "frequency", "presence"))
    return SampleOptions(
        top=int(head["top"]),
        named=named,
        bias_token=ids,
        bias=bias.view(np.float32),
        allowed=allowed if flags & SampleFlag.ALLOWED else None,
        mask=allowed.view(np.uint8) if flags & SampleFlag.MASK else None,
        penalties=Penalties(*penalties) if flags & SampleFlag.PENALTIES else None,
        history=(prompt, output) if flags & SampleFlag.HISTORY else None,
        grammar=grammar,
        forced=bool(flags & SampleFlag.FORCED),
    )


def _grammar(data: bytes | memoryview, at: int) -> tuple[int, I32]:
    """Read the grammar's id behind the lists, which end `at`, and the tokens that its matcher takes."""
    if len(data) < at + 4 or len(data) % 4:
        raise MalformedSubmission(detail=f"options of sample with a grammar need {at + 4} bytes, not {len(data)}")
    words = np.frombuffer(data, np.int32, offset=at)
    return int(words[0].view(np.uint32)), words[1:]


def named_grammar(options: SampleOptions, data: bytes) -> tuple[int, int] | None:
    """Return the id of the grammar that options name, and where it stands in their bytes; None if they name none."""
    if options.grammar is None or not options.grammar[0]:
        return None
    return options.grammar[0], len(data) - 4 * (1 + len(options.grammar[1]))


@lru_cache(maxsize=256)
def read_again(data: bytes) -> SampleOptions:
    """Read options as `read` does; a generation repeats the same bytes at every token."""
    return read(data)


def check(options: SampleOptions, vocab: int, top_limit: int) -> None:
    """Check that an engine with `vocab` tokens can apply the options.

    Raises:
        InvalidArgument: a value is out of its range, or no token is left to sample.
    """
    if options.top > top_limit:
        raise InvalidArgument(argument="logprobs", detail=f"{options.top}, the engine's limit is {top_limit}")
    if len(options.named) > MAX_NAMED:
        raise InvalidArgument(argument="logprobs_of", detail=f"{len(options.named)} tokens, more than {MAX_NAMED}")
    if len(options.bias) > MAX_NAMED:
        raise InvalidArgument(argument="logit_bias", detail=f"{len(options.bias)} tokens, more than {MAX_NAMED}")
    prompt, output = options.history or (options.named, options.named)
    longest = max(len(prompt), len(output))
    if longest > MAX_HISTORY:
        raise InvalidArgument(argument="history", detail=f"{longest} tokens, more than {MAX_HISTORY}")
    lists = {
        "logprobs_of": options.named,
        "logit_bias": options.bias_token,
        "allowed": options.named if options.allowed is None else options.allowed,
        "history": prompt,
        "output": output,
        "grammar": options.grammar[1] if options.grammar is not None else output,
    }
    for name, ids in lists.items():
        if len(ids) and int(ids.view(np.uint32).max()) >= vocab:
            worst = int(ids.view(np.uint32).max())
            raise InvalidArgument(argument=name, detail=f"{worst} is not in the vocabulary of {vocab}")
    if not (np.abs(options.bias) <= MAX_BIAS).all():
        raise InvalidArgument(argument="logit_bias", detail=f"a value is not within -{MAX_BIAS} to {MAX_BIAS}")
    if len(np.unique(options.bias_token)) < len(options.bias_token):
        raise InvalidArgument(argument="logit_bias", detail="a token stands in it twice")
    if options.mask is not None and len(options.mask) != 4 * -(-vocab // 32):
        detail = f"{len(options.mask)} bytes, the vocabulary of {vocab} needs {4 * -(-vocab // 32)}"
        raise InvalidArgument(argument="allowed", detail=detail)
    _check_penalties(options.penalties)
    if options.grammar is not None and len(options.grammar[1]) > MAX_HISTORY:
        detail = f"its matcher shall take {len(options.grammar[1])} tokens first, more than {MAX_HISTORY}"
        raise InvalidArgument(argument="grammar", detail=detail)
    permitted = options.permitted(vocab)
    if permitted is not None and not permitted.any():
        raise InvalidArgument(argument="allowed", detail="no token of the vocabulary may be sampled")


def _check_penalties(penalties: Penalties | None) -> None:
    if penalties is None:
        return
    if not 1 / MAX_REPETITION <= penalties.repetition <= MAX_REPETITION:
        detail = f"{penalties.repetition} is not within {1 / MAX_REPETITION} to {MAX_REPETITION}"
        raise InvalidArgument(argument="repetition_penalty", detail=detail)
    for name, value in (("frequency_penalty", penalties.frequency), ("presence_penalty", penalties.presence)):
        if not abs(value) <= MAX_REPETITION:
            raise InvalidArgument(argument=name, detail=f"{value} is not within -{MAX_REPETITION} to {MAX_REPETITION}")
