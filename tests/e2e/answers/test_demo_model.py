"""The demo model over real processes: the torch engine on a CPU, and on a GPU where there is one."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tartlet
from tests.e2e.serving import Serving, client_of, out, serving, ten_at_once_give_what_each_gives_alone

REPO = Path(__file__).parents[3]
MODEL = REPO / "models" / "demo"
ADDITION = (str(REPO / "inferlets" / "std" / "text_completion.py"), "--prompt", "374+588=", "--max-tokens", "64")


@pytest.fixture(scope="module")
def torch_server() -> Iterator[Serving]:
    """A server with the demo model in batch-invariant mode, shared by the module's tests."""
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    try:
        with serving(
            directory, "--model", str(MODEL), engine="torch", TARTLET_WORKER_BATCH_INVARIANT="true"
        ) as running:
            yield running
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_the_demo_model_adds(torch_server: Serving) -> None:
    printed = out(torch_server.run_dir, "run", "--server", "local", *ADDITION)
    assert "so 962" in printed


TOOL_CALL = """
from inferlet import Context

async def main():
    ctx = Context()
    ctx.chat("What is the price of Karo?")
    call = await ctx.generate_until(max_tokens=64)
    ctx.chat([{"role": "tool", "content": "27"}])
    return call, await ctx.generate_until(max_tokens=64), ctx.tokens.count(ctx.model.bos_token)
"""


@pytest.mark.parametrize("mode", [(), ("--native",)])
def test_a_second_turn_in_a_context_continues_the_dialogue(
    torch_server: Serving, tmp_path: Path, mode: tuple[str, ...]
) -> None:
    (tmp_path / "tool.py").write_text(TOOL_CALL)
    printed = out(torch_server.run_dir, "run", "--server", "local", *mode, str(tmp_path / "tool.py"))
    assert '"name": "lookup"' in printed
    assert "'The price of Karo is 27.', 1)" in printed


async def test_the_guide_s_program_that_calls_a_tool_has_its_client_do_it(torch_server: Serving) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", (REPO / "docs/guide.md").read_text(), re.DOTALL | re.MULTILINE)
    [source] = [example for example in examples if '"role": "tool"' in example]
    async with client_of(torch_server) as client:
        run = await client.run(tartlet.Source.python(source))
        async for event in run:
            if isinstance(event, tartlet.Message):
                call = json.loads(event.text)
                assert call == {"name": "lookup", "arguments": {"entity": "Karo", "attribute": "price"}}
                await client.send(run.program_id, "27")
        assert run.ended is not None
        assert run.ended.result == "The price of Karo is 27."


async def test_ten_programs_at_once_give_bit_for_bit_what_each_gives_alone(torch_server: Serving) -> None:
    async with client_of(torch_server) as client:
        (model,) = (await client.state()).control["models"]
        assert model["name"] == "demo"
        assert await ten_at_once_give_what_each_gives_alone(client) >= 8  # the model is sure of some answers


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_demo_model_adds_on_a_gpu(run_dir: Path) -> None:
    printed = out(run_dir, "run", "--model", str(MODEL), *ADDITION, timeout_s=100, TARTLET_WORKER_DEVICE="cuda")
    assert "so 962" in printed
