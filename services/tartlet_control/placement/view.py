"""What a placement is told: the engines that may be chosen, and what is known of who looks for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineView:
    """An engine that takes programs.

    Attributes:
        id: control's name of the engine.
        calls: threads that wait for it or compute there, or did a moment ago (Autellix: calls in the system).
        programs: that are placed there.
        waiting_s: device time of all that waits for it, in seconds.
        free_pages: pages that nobody holds.
        token_s: device time of one more token of a prompt, in seconds.
        held_tokens: of the context's beginning, the tokens whose pages are there.
    """

    id: str
    calls: int = 0
    programs: int = 0
    waiting_s: float = 0.0
    free_pages: int = 0
    token_s: float = 0.0
    held_tokens: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """The engines, ordered by id, of which one is to be chosen. `turn`: placements of the model before this one."""

    engines: tuple[EngineView, ...]
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Hints:
    """What is known of a context that looks for an engine.

    Attributes:
        tokens: of the call with which the context begins.
        pages: that it asks for.
        home: the engine to which its program's long contexts went; "" if it had none.
        last: the engine where its program's last context was; "" if this is the first.
    """

    tokens: int = 0
    pages: int = 0
    home: str = ""
    last: str = ""


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a context begins, for what knows where equal beginnings have pages.

    Attributes:
        tenant: of the program.
        model_digest: of the model.
        page_size: slots of a page.
        tokens: the first tokens, as far as the program has sent them.
        adapter: digest of the LoRA adapter under which they are computed; "" for none.
    """

    tenant: str
    model_digest: str
    page_size: int
    tokens: tuple[int, ...]
    adapter: str = ""


HeldTokens = Callable[[Beginning], Mapping[str, int]]
"""Returns how many of a beginning's tokens each engine has pages of, by engine; engines without any may be left out."""


def nothing_held(_: Beginning) -> Mapping[str, int]:
    """Return that no engine has pages of any beginning."""
    return {}
