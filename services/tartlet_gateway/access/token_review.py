"""Tokens of Kubernetes service accounts: the API server says whose they are."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Final

import jwt

from tartlet_common.errors.registry import InvalidConfig
from tartlet_gateway.access.fetching import AwayError, Fetcher
from tartlet_gateway.access.identity import Identity, UnauthorizedError, checked_tenant
from tartlet_gateway.access.oidc import issuer_of
from tartlet_gateway.openai.errors import ApiError

log = logging.getLogger("tartlet.gateway")

_PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCOUNT: Final = "system:serviceaccount:"


class TokenReview:
    """Asks the API server about each token."""

    def __init__(self, audience: str, server: str, credentials: Path) -> None:
        """Begin without a connection.

        Raises:
            InvalidConfig: the API server isn't known.
        """
        self._audience = audience
        self._server = (server or _own_server()).rstrip("/")
        self._token = credentials / "token"
        self._fetcher = Fetcher(credentials / "ca.crt", system=False)

    def takes(self, token: str) -> bool:
        """Tell whether a token has a JWT's form: the API server need not be asked about any other."""
        return issuer_of(token) != ""

    async def identify(self, token: str) -> Identity:
        """Return whose token it is."""
        spec = {"token": token, "audiences": [self._audience]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        try:
            mine = self._token.read_text().strip()  # it is renewed on disk
            headers = {"authorization": f"Bearer {mine}"}
            told = await self._fetcher.json("POST", self._server + _PATH, json=body, headers=headers)
        except (AwayError, OSError) as e:
            log.warning("tokens can't be reviewed: %s", e)
            told_why = "The token can't be checked now: the Kubernetes API server doesn't review it."
            raise ApiError(503, told_why, code="issuer_away") from e
        status: Any = told.get("status") if isinstance(told, dict) else None
        status = status if isinstance(status, dict) else {}
        user = status.get("user")
        if not status.get("authenticated") or not isinstance(user, dict):
            raise UnauthorizedError(
                f"The token isn't valid here: ask Kubernetes for one with the audience {self._audience!r}, such as by "
                f"`kubectl create token ACCOUNT --audience={self._audience}`."
            )
        if self._audience not in (status.get("audiences") or ()):  # an API server that knows no audiences
            raise UnauthorizedError("The token isn't valid: the API server didn't check its audience.")
        name = str(user.get("username"))
        namespace = name.removeprefix(_ACCOUNT).partition(":")[0] if name.startswith(_ACCOUNT) else None
        tenant = checked_tenant(namespace, "user is no service account, and")
        expires_s = jwt.decode(token, options={"verify_signature": False}).get("exp")
        return Identity(tenant, subject=f"kubernetes:{name}"[:256], expires_s=float(expires_s) if expires_s else None)

    async def close(self) -> None:
        """Close all connections."""
        await self._fetcher.close()


def _own_server() -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        remedy = "Set token_review_server, or run in a pod."
        raise InvalidConfig(role="gateway", detail="token_review: no API server is known", remedy=remedy)
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
