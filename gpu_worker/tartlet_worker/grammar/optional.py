"""Finds out whether an engine can have grammars, without need of llguidance: a fake engine may be without it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tartlet_worker.grammar.grammars import Grammars
    from tartlet_worker.grammar.matchers import Matchers

log = logging.getLogger("tartlet.worker")

TRAIT: Final = "Grammar"
"""The trait of engines whose samples can follow grammars."""


class GrammarSupport(NamedTuple):
    """What an engine with grammars has."""

    grammars: Grammars
    matchers: Matchers


def load(tokenizer_json: bytes, vocab_size: int, stop_tokens: tuple[int, ...]) -> GrammarSupport | None:
    """Return what the engine of a model needs for grammars; None, with a line in the log, if it can't have them."""
    try:
        from tartlet_worker.grammar.grammars import Grammars  # llguidance: only where it is installed
        from tartlet_worker.grammar.matchers import Matchers

        grammars = Grammars(tokenizer_json, vocab_size, stop_tokens)
    except (ModuleNotFoundError, ValueError) as e:
        log.info("samples can't follow grammars: %s", e)
        return None
    return GrammarSupport(grammars, Matchers(grammars))
