"""Decides whether a tokenizer's cost is bounded by its texts, whatever the texts are. Pure.

The runtime's process works with tame tokenizers alone. The parts of a tokenizer.json are code of a kind: a `Replace`
may make a megabyte of each letter, and a regular expression may take hours for a line. Such parts run in a process of
their own (`isolated.IsolatedTokenizer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

MOST_GROWTH: Final = 128
"""Bytes that a tame tokenizer may make of one byte before it looks for tokens. NFKC makes 11 at most."""
_MOST_PARTS: Final = 32
_MOST_ADDED: Final = 64  # special tokens around a text
_MOST_WORD_CHARS: Final = 1000  # WordPiece takes time with the square of a word's length
_MOST_TOKEN_CHARS: Final = 1024  # Unigram takes time with the length of its longest token

_GROWTH: Final = {
    "BertNormalizer": 3,
    "Lowercase": 2,
    "NFC": 3,
    "NFD": 4,
    "NFKC": 11,
    "NFKD": 11,
    "Nmt": 1,
    "Strip": 1,
    "StripAccents": 1,
    "ByteLevel": 2,
    "BertPreTokenizer": 1,
    "Whitespace": 1,
    "WhitespaceSplit": 1,
    "Punctuation": 1,
    "Digits": 1,
    "CharDelimiterSplit": 1,
    "UnicodeScripts": 1,
}
"""Growth of parts that have no content of their own."""
_DECODERS: Final = frozenset({"ByteLevel", "ByteFallback", "Fuse", "Strip", "WordPiece", "Metaspace"})
_ENGLISH: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_KNOWN_REGEXES: Final = frozenset(
    {
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
        *(
            _ENGLISH + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            for digits in (r"\p{N}", r"\p{N}{1,3}", r"\p{N}{1,2}")  # Qwen 2 and 3, Llama 3, OLMo
        ),
        *(
            rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{english}|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{english}"
            rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            for english in (_ENGLISH + "?", "")  # GPT-4o and Llama 4, Mistral's Tekken
            for digits in (r"\p{N}{1,3}", r"\p{N}")
        ),
        r"\p{N}",
        r"\p{N}{1,3}",
        r"\d",
        r"\d{1,3}",
        "[0-9]",
        "[0-9]{1,3}",
        "[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        r"\s+",
        " ",
    }
)
"""Regular expressions of published tokenizers; each takes time that grows with the text alone."""


def is_tame(fields: dict[str, Any]) -> bool:
    """Return whether time and memory of every call are bounded by the size of its text. `fields`: a tokenizer.json.

    Example:
        >>> model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
        >>> swell = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
        >>> is_tame({"model": model}), is_tame({"model": model, "normalizer": swell})
        (True, False)
    """
    try:
        growth = 1.0
        for part in [*_leaves(fields.get("normalizer")), *_leaves(fields.get("pre_tokenizer"))]:
            growth *= _growth(part)
        decoders = all(_is_tame_decoder(part) for part in _leaves(fields.get("decoder")))
        added = all(_is_tame_processor(part) for part in _leaves(fields.get("post_processor")))
        return growth <= MOST_GROWTH and decoders and added and _is_tame_model(fields["model"])
    except (KeyError, TypeError, AttributeError, ValueError):  # what isn't known isn't tame
        return False


def _leaves(part: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the parts that a sequence of parts consists of, at any depth.

    Raises:
        ValueError: There are too many.
    """
    if part is None:
        return
    for name in ("normalizers", "pretokenizers", "decoders", "processors"):
        if name in part:
            if depth == _MOST_PARTS or len(part[name]) > _MOST_PARTS:
                raise ValueError
            for inner in part[name]:
                yield from _leaves(inner, depth + 1)
            return
    yield part


def _growth(part: dict[str, Any]) -> float:
    """Return the most bytes that a normalizer or pre-tokenizer makes of one byte.

    Raises:
        KeyError: The part is not known, or its bound isn't.
    """
    match part["type"]:
        case "Prepend":
            return 1 + len(part["prepend"].encode())
        case "Metaspace":
            return 1 + len(part["replacement"].encode())
        case "Replace":
            return max(1.0, len(part["content"].encode()) / len(_pattern(part).encode()))
        case "Split":
            _pattern(part)
            return 1
        case kind:
            return _GROWTH[kind]


def _pattern(part: dict[str, Any]) -> str:
    """Return a pattern that is a text or a known regular expression.

    Raises:
        KeyError: It is another one, or an empty text.
    """
    pattern = part["pattern"]
    text: str = pattern["String"] if "String" in pattern else pattern["Regex"]
    if not text or ("String" not in pattern and (part["type"] == "Replace" or text not in _KNOWN_REGEXES)):
        raise KeyError(text)
    return text


def _is_tame_decoder(part: dict[str, Any]) -> bool:
    if part["type"] == "Replace":
        return len(part["content"].encode()) <= 4 * len(_pattern(part).encode())
    return part["type"] in _DECODERS


def _is_tame_processor(part: dict[str, Any]) -> bool:
    if part["type"] != "TemplateProcessing":
        return part["type"] in ("ByteLevel", "BertProcessing", "RobertaProcessing")
    texts = sum("Sequence" in piece for piece in part["single"])
    ids = sum(len(special["ids"]) for special in part["special_tokens"].values())
    return texts <= 1 and len(part["single"]) * max(1, ids) <= _MOST_ADDED


def _is_tame_model(model: dict[str, Any]) -> bool:
    match model["type"]:
        case "BPE" | "WordLevel":
            return True
        case "WordPiece":
            return bool(model["max_input_chars_per_word"] <= _MOST_WORD_CHARS)
        case "Unigram":
            return max((len(token) for token, _ in model["vocab"]), default=0) <= _MOST_TOKEN_CHARS
        case _:
            return False
