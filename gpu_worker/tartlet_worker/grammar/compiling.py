"""Makes matchers of grammars' texts with llguidance, within limits.

The limits count llguidance's own units of work, so that one step of one matcher takes milliseconds at most. They don't
bound every way to compile: `trial` tries a text in a process that can be killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from

from tartlet_common.abi import GrammarKind
from tartlet_common.errors.registry import GrammarRefused

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_LIMITS: Final = LLParserLimits(
    initial_lexer_fuel=1_000_000,  # about 20 ms
    step_lexer_fuel=60_000,  # about 4 ms a step
    step_max_items=40_000,  # about 2 ms a step
    max_lexer_states=20_000,  # about 40 MB
    max_grammar_size=200_000,
    verbose_errors=False,
)
_JSON_STYLE: Final[JsonCompileOptions] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as `json.dumps` writes it: free white space could go on for ever. A schema's `x-guidance` may say otherwise."""
_SHOWN_CHARS: Final = 400


def tokenizer_of(tokenizer_json: bytes, vocab_size: int, stop_tokens: tuple[int, ...]) -> LLTokenizer:
    """Return the tokens of a model in llguidance's form.

    Args:
        tokenizer_json: the checkpoint's file.
        vocab_size: the model's number of logits, at least that of the tokenizer's tokens.
        stop_tokens: the model's end-of-sequence tokens, at least one. A mask allows them where a text is complete.

    Raises:
        ValueError: llguidance can't use this tokenizer.
    """
    try:
        return LLTokenizer(tokenizer_json.decode(), n_vocab=vocab_size, eos_token=list(stop_tokens))
    except Exception as e:
        raise ValueError(str(e)[:_SHOWN_CHARS]) from e


def source_of(kind: int, text: str) -> str:
    """Return a grammar in llguidance's own form, of which not everything is checked yet.

    Raises:
        GrammarRefused: the text can't be read.
    """
    try:
        match kind:
            case GrammarKind.JSON_SCHEMA:
                return LLMatcher.grammar_from_json_schema(text, defaults=_JSON_STYLE)
            case GrammarKind.REGEX:
                return LLMatcher.grammar_from_regex(text)
            case GrammarKind.EBNF:
                return grammar_from("ebnf", text)
            case _:
                return LLMatcher.grammar_from_lark(text)
    except (ValueError, TypeError, RecursionError) as e:
        raise GrammarRefused(detail=str(e)[:_SHOWN_CHARS]) from e


def compiled(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    """Return a matcher at the start of the texts of a grammar in llguidance's form. Other threads run meanwhile.

    Raises:
        GrammarRefused: the source is no grammar, or passes a limit.
    """
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise GrammarRefused(detail=matcher.get_error()[:_SHOWN_CHARS])
    return matcher
