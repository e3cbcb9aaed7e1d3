"""Settings of the runtime about programs' HTTP requests."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field


class HttpSettings(BaseModel):
    """Which hosts programs may ask, and how their requests travel."""

    http_hosts: str = Field(
        "",
        pattern=r"^[^/@#?\\]*(https?://[^/@#?\\]*)*$",
        json_schema_extra={"means": "[scheme://]host[:port], such as *.example.org or team-a=https://example.org"},
        description="hosts that programs may send HTTP requests to, separated by commas, where their launches ask for "
        "them too; *. stands for all names below one, TENANT= before a host gives it to one tenant alone; empty: none",
    )
    http_private_hosts: str = Field(
        "",
        pattern=r"^\s*([A-Za-z0-9*?._:\[\]-]+(/[0-9]{1,3})?\s*(,\s*|$))*$",
        json_schema_extra={"means": "hosts and networks, such as tools.example.org:8443 or 10.1.0.0/16"},
        description="hosts and networks among http_hosts that may have private addresses, separated by commas",
    )
    http_proxy: str = Field(
        "",
        json_schema_extra={"means": "http://HOST:PORT"},
        description="proxy of programs' HTTP requests, which then chooses the addresses; empty: none",
    )
    http_authority: Path | None = Field(
        None, description="PEM certificates of CAs that programs' HTTPS requests trust beside the system's"
    )
    http_secrets_dir: Path | None = Field(
        None, description="directory with a file for each secret, named as the secret; unset: there are none"
    )
    http_secrets: str = Field(
        "",
        pattern=r"^[^@#?\\]*$",
        json_schema_extra={"means": "[TENANT/]NAME=HOST, such as openai=api.openai.com or team-a/key=*.example.org"},
        description="hosts that each secret may be sent to, separated by commas: [TENANT/]NAME=HOST; without a tenant "
        "for all of them; over https unless HOST begins with http://",
    )
