"""The bytes of tokens, as a tokenizer.json has them. A character may be split over tokens."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Final

MAX_TOKEN_BYTES: Final = 256
"""Longest bytes of a token that the answer to a SAMPLE carries. Tokens of known models have at most 128."""
_MAX_IDS: Final = 1 << 20
_SPACE_MARK: Final = "\u2581"  # SentencePiece's visible space


def byte_table(
    tokenizer: Mapping[str, Any], vocabulary: Mapping[str, int], added: Collection[str], size: int
) -> list[bytes] | None:
    """Return the bytes of the tokens below `size`; None if the decoder is neither byte-level nor SentencePiece's.

    Args:
        tokenizer: the fields of the tokenizer.json.
        vocabulary: ids by token as it is written there, added tokens included.
        added: the added tokens, which stand for themselves.
        size: above all ids.
    """
    kinds = set(_decoder_types(tokenizer.get("decoder")))
    if "ByteLevel" in kinds:
        to_bytes = _byte_level
    elif kinds & {"ByteFallback", "Metaspace"}:
        to_bytes = _sentencepiece
    else:
        return None
    table = [b""] * size
    for token, number in vocabulary.items():
        table[number] = token.encode() if token in added else to_bytes(token)
    return table


def bytes_told(tokenizer_json: bytes) -> list[bytes]:
    """Return the bytes of each token that answers tell; b"" for a token that is longer than `MAX_TOKEN_BYTES`.

    The list is empty if the file can't be read.
    """
    try:
        tokenizer = json.loads(tokenizer_json)
        vocabulary, added = _vocabulary(tokenizer)
        size = max(vocabulary.values(), default=-1) + 1
        if not 0 <= min(vocabulary.values(), default=0) <= size <= _MAX_IDS:
            return []
        table = byte_table(tokenizer, vocabulary, added, size)
        if table is None:
            table = [b""] * size
            for token, number in vocabulary.items():
                table[number] = token.encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
    return [told if len(told) <= MAX_TOKEN_BYTES else b"" for told in table]


def _vocabulary(tokenizer: Mapping[str, Any]) -> tuple[dict[str, int], set[str]]:
    """Return the ids of tokens, and which tokens were added."""
    known = tokenizer["model"]["vocab"]
    ids = dict(known) if isinstance(known, dict) else {token: i for i, (token, _) in enumerate(known)}
    added = {each["content"]: each["id"] for each in tokenizer.get("added_tokens") or ()}
    return ids | added, set(added)


def _decoder_types(decoder: Mapping[str, Any] | None) -> list[str]:
    if not decoder:
        return []
    inner = [name for part in decoder.get("decoders", ()) for name in _decoder_types(part)]
    return [decoder.get("type", ""), *inner]


@lru_cache(maxsize=1)
def _alphabet() -> dict[str, int]:
    """Return the characters that byte-level BPE writes for bytes: printable Latin-1 as is, others from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in printable]
    table.update({chr(0x100 + i): byte for i, byte in enumerate(hidden)})
    return table


def _byte_level(token: str) -> bytes:
    alphabet = _alphabet()
    try:
        return bytes([alphabet[c] for c in token])
    except KeyError:
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace(_SPACE_MARK, " ").encode()
