"""Drives the run of a response by messages to its program."""

from __future__ import annotations

import uuid

import httpx


def program_of(response_id: str) -> str:
    return str(uuid.UUID(hex=response_id.removeprefix("resp_")))


def say(http: httpx.Client, response_id: str, *messages: str) -> None:
    for text in messages:
        reply = http.post(f"/v1/programs/{program_of(response_id)}/messages", json={"text": text})
        assert reply.status_code == 200, reply.text
