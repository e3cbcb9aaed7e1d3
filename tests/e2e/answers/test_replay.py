"""Replays programs that decode, fork and sample from their journals, without an engine."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import tartlet
from tartlet import LaunchSpec, Source
from tartlet_runtime.guests.build import python_guest
from tartlet_runtime.journal.records import read_journal
from tartlet_runtime.journal.replay import Replayed, replay_wasm
from tartlet_runtime.wasm import HostConfig, WasmHost
from tartlet_runtime.wasm.compiling.engine_flags import flags_digest
from tests.e2e.serving import client_of, program, serving

STD = Path(__file__).parents[3] / "inferlets" / "std"
RECORDS = {
    "work": [[1, '{"enum": ["left or right", "left"]}'], [2, "(abc|xyz){3}"]],
    "prompt": "A record: ",
    "seed": 1,
    "temperature": 0.9,
    "max_tokens": 60,
    "together": 2,
}
SPECS = [
    LaunchSpec(source=program("grammars"), args=[json.dumps(RECORDS | {"run_ahead": 4})]),
    LaunchSpec(source=program("grammars"), args=[json.dumps(RECORDS | {"run_ahead": 0, "skip_forced": True})]),
    LaunchSpec(source=program("sampled"), args=["hello", "1.0", "0", "1.0", "7"]),
    LaunchSpec(source=program("optioned")),
    LaunchSpec(source=program("shares"), args=["alone", "one", "two"]),
    LaunchSpec(source=program("forks"), args=["200", "4"]),
    LaunchSpec(source=Source.from_file(STD / "text_completion.py"), args=["--prompt", "hi", "--max-tokens", "40"]),
    LaunchSpec(source=Source.from_file(STD / "fork.py"), args=["--prompt", "Once", "--temperature", "1.5"]),
    LaunchSpec(source=Source.from_file(STD / "autoregressive.py")),
]


def replay(wasm: WasmHost, path: Path) -> Replayed:
    """Replays a journal. The replay itself compares the digest of the commands at every wait."""
    header, records = read_journal(path)
    compiled = python_guest()
    return replay_wasm(wasm, wasm.load(compiled), f"{compiled.digest}-{flags_digest()}", header, records)


async def test_programs_that_used_an_engine_give_the_same_commands_and_result_again() -> None:
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    ended: dict[str, tartlet.Ended] = {}
    try:
        with serving(directory, TARTLET_RUNTIME_KEEP_JOURNALS="true") as server:
            async with client_of(server) as client:
                # all at once, so that batches and timing differ from the replay
                async for _, event in client.run_many(SPECS):
                    assert not isinstance(event, tartlet.TartletError), event
                    if isinstance(event, tartlet.Ended):
                        assert event.success, event.error
                        ended[event.program_id] = event
        assert len(ended) == len(SPECS)
        with WasmHost(HostConfig(max_guests=8)) as wasm:
            for program_id, event in ended.items():
                again = replay(wasm, directory / "journals" / f"{program_id}.journal")
                assert again.ended
                assert again.error is None
                assert (again.text or None) == event.result
                assert len(again.submissions) > 3
    finally:
        shutil.rmtree(directory, ignore_errors=True)
