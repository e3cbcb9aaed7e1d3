"""Who a caller is, and why one isn't let in."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tartlet_common.api_keys import TENANT
from tartlet_gateway.http.exchange import Headers
from tartlet_gateway.openai.errors import ApiError

MOST_CHARS = 16 << 10
"""The longest credential that is looked at."""


class Identity(NamedTuple):
    """A caller.

    Attributes:
        tenant: For whom the caller's requests run.
        key_id: The API key's id, "" for tokens.
        subject: Whom a token names, as the audit log has it, "" for API keys.
        expires_s: Unix time from which on the credential must not be used; None: its holder knows.
    """

    tenant: str
    key_id: str = ""
    subject: str = ""
    expires_s: float | None = None


class Authenticator(Protocol):
    """Checks one kind of token."""

    def takes(self, token: str) -> bool:
        """Tell whether a token is of this kind, as far as its form shows."""

    async def identify(self, token: str) -> Identity:
        """Return whose token it is.

        Raises:
            ApiError: 401, the token isn't valid; 403, it names no tenant; 503, it can't be checked now.
        """

    async def close(self) -> None:
        """Close all connections."""


class UnauthorizedError(ApiError):
    """A credential that isn't valid. The credential never stands in the error."""

    def __init__(self, message: str, code: str = "invalid_token") -> None:
        super().__init__(401, message, code=code)

    @property
    def headers(self) -> Headers:
        """The reply's headers."""
        reason = b' error="invalid_token"' if self.code == "invalid_token" else b""
        return [*super().headers, (b"www-authenticate", b"Bearer" + reason)]


def checked_tenant(name: object, where: str) -> str:
    """Return a tenant's name that a token gave.

    Raises:
        ApiError: 403, it is none.
    """
    if isinstance(name, str) and TENANT.fullmatch(name):
        return name
    told = f"The token's {where} names no tenant: 1 to 64 letters, digits, dots, hyphens and underscores are wanted."
    raise ApiError(403, told, code="no_tenant")
