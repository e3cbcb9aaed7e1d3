"""Settings of the gateway about how much clients may take."""

from __future__ import annotations

from pydantic import BaseModel, Field


class GatewayBounds(BaseModel):
    """What all clients of a gateway may have open, and what each tenant may ask for."""

    tenant_requests_per_minute: int = Field(0, ge=0, description="requests a minute of a tenant; 0: without bound")
    tenant_tokens_per_minute: int = Field(0, ge=0, description="tokens a minute of a tenant; 0: without bound")
    tenant_concurrency: int = Field(0, ge=0, description="requests and programs of a tenant at once; 0: without bound")
    replicas: int = Field(1, ge=1, le=1000, description="gateways that share tenants' rates evenly")
    body_bytes: int = Field(16 << 20, ge=1 << 10, le=48 << 20, description="longest body of a request")
    max_connections: int = Field(4096, ge=1, le=1 << 20, description="clients' connections that are open at once")
