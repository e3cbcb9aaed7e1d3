"""The key of a page's WebSocket: browsers can send no header with it, and a key in the address would be logged.

So the page offers two subprotocols, `tartlet` and `tartlet.key.KEY`, and the gateway chooses the first. Keys consist of
letters, digits and `_`, which a subprotocol may have.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

NAME: Final = "tartlet"
_KEY: Final = "tartlet.key."


def chosen(scope: Scope) -> str | None:
    """Return the subprotocol that the gateway accepts; None if the client offers none."""
    return NAME if NAME in scope.get("subprotocols", ()) else None


def key_of(scope: Scope) -> str:
    """Return the key that a WebSocket's client offers, "" for none.

    Example:
        >>> key_of({"subprotocols": ["tartlet", "tartlet.key.tlk_abc"]})
        'tlk_abc'
    """
    return next((p.removeprefix(_KEY) for p in scope.get("subprotocols", ()) if p.startswith(_KEY)), "")
