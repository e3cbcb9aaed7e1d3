"""Settings of the gateway about tokens that others issue: an OIDC issuer, and a Kubernetes API server."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field


class TokenSettings(BaseModel):
    """Whose tokens let callers in beside API keys."""

    oidc_issuer: str = Field(
        "",
        pattern=r"^(https?://[^\s?#]+)?$",
        json_schema_extra={"means": "https://HOST/PATH, exactly as `iss` of the tokens"},
        description="OIDC issuer whose tokens let callers in; empty: none",
    )
    oidc_audience: str = Field("", description="what `aud` of these tokens must name; needed with oidc_issuer")
    oidc_tenant_claim: str = Field("tenant", min_length=1, description="claim of these tokens that names the tenant")
    oidc_authority: Path | None = Field(
        None, description="PEM certificates of CAs that the issuer's HTTPS is trusted by beside the system's"
    )
    token_review: bool = Field(
        default=False, description="let Kubernetes service accounts in; a tenant is the account's namespace"
    )
    token_review_audience: str = Field("tartlet", min_length=1, description="audience that their tokens must have")
    token_review_server: str = Field(
        "",
        pattern=r"^(https://[^\s?#]+)?$",
        json_schema_extra={"means": "https://HOST:PORT"},
        description="API server that reviews tokens; empty: the one of the pod",
    )
    token_review_credentials: Path = Field(
        Path("/var/run/secrets/kubernetes.io/serviceaccount"),
        description="directory with token and ca.crt of the account that asks the API server",
    )
