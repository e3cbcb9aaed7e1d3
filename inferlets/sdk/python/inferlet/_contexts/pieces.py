"""Pieces of generated text."""

from __future__ import annotations

from collections.abc import Mapping

from inferlet._values.types import Sampled


class Piece(str):
    """A piece of generated text, a `str` with the token that completed it.

    Example:
        >>> async def main():
        ...     ctx = Context(seed=1)
        ...     ctx.fill("Hello,")
        ...     piece = await anext(ctx.generate(max_tokens=1))
        ...     print(isinstance(piece, str), piece.token == ctx.tokens[-1], piece.logprob < 0)
        True True True
    """

    __slots__ = ("logprob", "logprobs", "token", "token_bytes")

    token: int
    logprob: float  # of the token, under the model's own distribution
    logprobs: Mapping[int, float]  # of the tokens that `generate` was asked to tell, the best first
    token_bytes: Mapping[int, bytes]  # the bytes of this token, of those of `logprobs`, and perhaps of others

    @classmethod
    def of(cls, text: str, sampled: Sampled, known: Mapping[int, bytes]) -> Piece:
        """Make the piece of a token; `known` holds the bytes of tokens."""
        piece = cls(text)
        piece.token = sampled.token
        piece.logprob = sampled.logprob
        piece.logprobs = sampled.logprobs
        piece.token_bytes = known
        return piece
