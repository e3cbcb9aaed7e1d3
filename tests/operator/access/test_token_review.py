"""Tokens of service accounts at the gateway, reviewed by a real API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tartlet_gateway.access.identities import Identities
from tartlet_gateway.access.token_review import TokenReview
from tartlet_gateway.openai.errors import ApiError
from tests.operator.api_server import TOKEN, ApiServer


def account(server: ApiServer, namespace: str, name: str) -> None:
    server.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})


def token(server: ApiServer, namespace: str, name: str, audience: str = "tartlet") -> str:
    spec = {"audiences": [audience], "expirationSeconds": 600}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    told: str = server.call("POST", path, body)["status"]["token"]
    return told


@contextlib.asynccontextmanager
async def reviewing(server: ApiServer, directory: Path, own: str) -> AsyncIterator[Identities]:
    """A gateway's checks with the rights of the token `own`."""
    (directory / "token").write_text(own + "\n")
    (directory / "ca.crt").write_bytes((server.directory / "ca.pem").read_bytes())
    identities = Identities(None, [TokenReview("tartlet", server.base, directory)])
    try:
        yield identities
    finally:
        await identities.close()


async def refused(identities: Identities, given: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await identities.identify(given)
    assert given not in caught.value.message
    return caught.value


async def test_an_account_acts_for_its_namespace(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    account(api_server, namespace, "bot")
    account(api_server, namespace, "gateway")
    binding: dict[str, Any] = {
        "metadata": {"name": f"{namespace}-reviews"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:auth-delegator"},
        "subjects": [{"kind": "ServiceAccount", "name": "gateway", "namespace": namespace}],
    }
    own = token(api_server, namespace, "gateway", "https://kubernetes.default.svc")
    async with reviewing(api_server, tmp_path, own) as identities:
        forbidden = await refused(identities, token(api_server, namespace, "bot"))
        assert (forbidden.status, forbidden.code) == (503, "issuer_away")  # the gateway may not review yet
    api_server.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    async with reviewing(api_server, tmp_path, own) as identities:
        given = token(api_server, namespace, "bot")
        found = await identities.identify(given)
        assert (found.tenant, found.subject) == (namespace, f"kubernetes:system:serviceaccount:{namespace}:bot")
        assert found.expires_s is not None
        for wrong in (token(api_server, namespace, "bot", "other"), given[:-4] + "AAAA", own):
            error = await refused(identities, wrong)
            assert (error.status, error.code) == (401, "invalid_token")
        assert (await refused(identities, TOKEN)).code == "invalid_api_key"  # no JWT: the API server isn't asked
        api_server.call("DELETE", f"/api/v1/namespaces/{namespace}/serviceaccounts/bot")
        async with asyncio.timeout(60):  # the API server itself remembers a token for 10 s
            while await identities.still_valid(given):
                identities._valid.clear()
                await asyncio.sleep(0.5)


async def test_nobody_is_let_in_while_the_api_server_is_away(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    account(api_server, namespace, "bot")
    given = token(api_server, namespace, "bot")
    async with reviewing(api_server, tmp_path, TOKEN) as identities:
        assert (await identities.identify(given)).tenant == namespace
    (tmp_path / "token").unlink()
    identities = Identities(None, [TokenReview("tartlet", "https://127.0.0.1:1", tmp_path)])
    assert (await refused(identities, given)).status == 503
    await identities.close()
