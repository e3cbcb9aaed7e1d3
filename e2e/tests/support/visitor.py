"""Asks a gateway as the `openai` client does, and opens its page in Chromium.

Run in the cluster's network: `python visitor.py URL BINARY`, with the key on standard input. Standard output is `Visit`
as JSON.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TypedDict

import openai
from playwright.sync_api import expect, sync_playwright

QUESTION = "374+588="
WAIT_MS = 30_000


class Visit(TypedDict):
    """What a visitor saw."""

    models: list[str]
    answer: str
    streamed: str
    """The same answer, as a stream."""
    engine: str
    """The page's words on the engine."""
    wrong: list[str]
    """Errors of the page's scripts, and what its policy refused."""


def asked(url: str, key: str) -> tuple[list[str], str, str]:
    """Returns the models that a gateway lists, and its answer, whole and as a stream."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key)
    models = [model.id for model in client.models.list()]
    chat = client.chat.completions
    whole = chat.create(model="demo", messages=[{"role": "user", "content": QUESTION}], temperature=0)
    pieces = chat.create(model="demo", messages=[{"role": "user", "content": QUESTION}], temperature=0, stream=True)
    streamed = "".join(choice.delta.content or "" for piece in pieces for choice in piece.choices)
    return models, whole.choices[0].message.content or "", streamed


def looked_at(url: str, key: str, binary: str) -> tuple[str, list[str]]:
    """Opens the page, gives the key, and returns its words on the engine and what went wrong."""
    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda m: wrong.append(m.text) if "Content Security Policy" in m.text else None)
        page.goto(url)
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Use this key").click()
        expect(page.get_by_text("No program runs.")).to_be_visible(timeout=WAIT_MS)
        page.get_by_role("link", name="engines").click()
        engine = page.get_by_role("heading", name="ready")
        expect(engine).to_be_visible(timeout=WAIT_MS)
        said = engine.inner_text()
        page.get_by_role("link", name="playground").click()
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.get_by_text(re.compile(r"^\d+ tokens in"))).to_be_visible(timeout=WAIT_MS)
        browser.close()
    return said, wrong


def main() -> None:
    """Prints a visit."""
    (url, binary), key = sys.argv[1:], sys.stdin.read().strip()
    models, answer, streamed = asked(url, key)
    engine, wrong = looked_at(url, key, binary)
    seen: Visit = {"models": models, "answer": answer, "streamed": streamed, "engine": engine, "wrong": wrong}
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main()
