"""A failure that a program catches doesn't end it; an unseen failure does. Inside and outside the sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.serving import Serving, tartlet_cli

_CAUGHT = """
from inferlet import *

async def main(args):
    ctx = Context()
    ctx.fill("a" * 500)
    queue = create_queue()
    queue.dealloc_emb([Embed(3)])
    answers = []
    for awaited in (lambda: ctx.generate_until(max_tokens=3), lambda: synchronize(queue)):
        try:
            await awaited()
        except errors.TartletError as error:
            answers.append(type(error).__name__)
    return answers
"""
_UNSEEN = """
from inferlet import *

async def main():
    create_queue().get_next_dist(Embed(3))
    return "well"
"""


@pytest.mark.parametrize("mode", ["--sandbox", "--native"])
def test_a_caught_failure_is_not_the_program_s_and_one_that_nobody_saw_is(
    server: Serving, tmp_path: Path, mode: str
) -> None:
    flags = ["run", "--server", "local", "--max-pages", "2", *([mode] if mode == "--native" else [])]
    (tmp_path / "caught.py").write_text(_CAUGHT)
    (tmp_path / "unseen.py").write_text(_UNSEEN)
    caught = tartlet_cli(server.run_dir, *flags, str(tmp_path / "caught.py"))
    assert caught.returncode == 0, caught.stderr
    assert "['PageQuotaExceeded', 'UnknownResource']" in caught.stdout
    unseen = tartlet_cli(server.run_dir, *flags, str(tmp_path / "unseen.py"))
    assert unseen.returncode == 1
    assert "embed 3 is not allocated" in unseen.stderr
