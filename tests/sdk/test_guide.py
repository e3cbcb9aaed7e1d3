"""The programming guide's examples run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.sdk.host.harness import held, run_source
from tests.sdk.host.mini_host import MiniHost

GUIDE = Path(__file__).resolve().parents[2] / "docs/guide.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
@pytest.mark.parametrize("page_size", [1, 16])
def test_an_example_of_the_guide_runs(number: int, page_size: int) -> None:
    host = MiniHost(page_size=page_size)
    host.deliver(b"hello")
    run_source(host, EXAMPLES[number], "an argument")
    assert held(host) == (0, 0, 0)


def test_the_guide_has_examples() -> None:
    assert len(EXAMPLES) == 13
