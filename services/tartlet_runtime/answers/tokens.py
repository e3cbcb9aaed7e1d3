"""A tokenizer whose detokenisation is exact: bytes out, so that a character split over tokens comes out whole.

`detokenize(a) + detokenize(b) == detokenize(a + b)` holds for the tokenizers of every supported family: byte-level BPE
(Llama 3, Qwen) and SentencePiece BPE with byte fallback (Llama 2, Mistral). For others the library decodes, whole call
by whole call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tartlet_common.engine.token_bytes import byte_table
from tartlet_common.errors.registry import InvalidArgument

_MOST_TEXT_BYTES = 64 << 20
"""Bound of one decoded text: a token may stand for megabytes."""
_MOST_IDS = 1 << 20
"""Bound of a tokenizer's ids: its tables have an entry for each. Vocabularies of known models end below 300,000."""


class TokenizerEntry:
    """One tokenizer with its table of bytes; made in a thread, used on the loop."""

    def __init__(self, tokenizer_json: bytes) -> None:
        """Parse a tokenizer.json.

        Raises:
            InvalidArgument: it can't be parsed, or an id is too high.
        """
        with _refusing():
            self._tokenizer = Tokenizer.from_str(tokenizer_json.decode())
            fields = json.loads(tokenizer_json)
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self._special = {token["id"] for token in fields.get("added_tokens", ()) if token.get("special")}
            self.size = self._count_ids()
            self._bytes = self._byte_table(fields)
            self._vocabulary = _Vocabulary(self._bytes or self._fallback_table())

    def encode(self, text: str, *, special: bool) -> bytes:
        """Token ids of `text`, packed u32; `special` adds what the model wants around it (such as its BOS).

        Raises:
            InvalidArgument: the tokenizer fails at this text.
        """
        with _refusing():
            return np.array(self._tokenizer.encode(text, add_special_tokens=special).ids, "<u4").tobytes()

    def decode(self, ids: Sequence[int], *, special: bool) -> bytes:
        """Return the bytes of `ids`, without special tokens unless `special`.

        Raises:
            InvalidArgument: an id is not in the vocabulary, the text would be longer than 64 MiB, or the tokenizer
                fails at these ids.
        """
        table, hidden = self._bytes, frozenset() if special else self._special
        for token in ids:
            if token >= self.size:
                raise InvalidArgument(argument="ids", detail=f"{token} is not below the vocabulary's {self.size}")
        length = self._vocabulary.length(ids)
        if length > _MOST_TEXT_BYTES:
            raise InvalidArgument(argument="ids", detail=f"their text of {length} bytes is over {_MOST_TEXT_BYTES}")
        if table is None:
            with _refusing():
                text: str = self._tokenizer.decode(list(ids), skip_special_tokens=not special)
                return text.encode()
        return b"".join([table[token] for token in ids if token not in hidden])

    def words(self, first: int, count: int) -> bytes:
        """Return the answer to GET_VOCABS: the bytes of `count` tokens (0: all the rest) from `first` on."""
        return self._vocabulary.run(first, first + count if count else None)

    def text_of(self, token: int | None) -> str:
        """Return a token as it is written in the vocabulary, "" for None.

        Raises:
            InvalidArgument: the tokenizer fails at this token.
        """
        with _refusing():
            return (self._tokenizer.id_to_token(token) or "") if token is not None else ""

    def _count_ids(self) -> int:
        highest: int = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if highest >= _MOST_IDS:
            raise InvalidArgument(argument="tokenizer.json", detail=f"the id {highest} is not below {_MOST_IDS}")
        return highest + 1

    def _byte_table(self, fields: dict[str, Any]) -> list[bytes] | None:
        added = {token.content for token in self._tokenizer.get_added_tokens_decoder().values()}
        return byte_table(fields, self._tokenizer.get_vocab(with_added_tokens=True), added, self.size)

    def _fallback_table(self) -> list[bytes]:
        return [self.text_of(token).encode() for token in range(self.size)]


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn an error or a panic of the library into InvalidArgument.

    A panic is a BaseException without a public class: uncaught it would end the whole process.
    """
    try:
        yield
    except InvalidArgument:
        raise
    except Exception as e:  # the library raises bare Exception
        raise InvalidArgument(argument="tokenizer.json", detail=str(e) or type(e).__name__) from e
    except BaseException as e:
        if type(e).__name__ != "PanicException":
            raise
        raise InvalidArgument(argument="tokenizer.json", detail=f"the tokenizers library panicked: {e}") from e


class _Vocabulary:
    """The bytes of all tokens, kept so that those of any run of them are a slice."""

    def __init__(self, table: list[bytes]) -> None:
        self._lengths = np.array([*map(len, table)], "<u4")
        self._starts = np.concatenate(([0], np.cumsum(self._lengths, dtype=np.int64)))
        self._bytes = b"".join(table)

    def length(self, ids: Sequence[int]) -> int:
        """Bytes of these tokens together."""
        return int(self._lengths[np.asarray(ids, np.int64)].sum(dtype=np.int64))

    def run(self, first: int, end: int | None) -> bytes:
        """Their number, their lengths (all u32), their bytes."""
        lengths = self._lengths[first:end]
        begin = min(first, len(self._lengths))
        words = self._bytes[self._starts[begin] : self._starts[begin + len(lengths)]]
        return b"".join((len(lengths).to_bytes(4, "little"), lengths.tobytes(), words))
