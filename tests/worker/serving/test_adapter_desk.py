"""The worker follows its list of adapters: what it loads, refuses, retires and unloads."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.config.settings import WorkerSettings
from tartlet_common.errors.registry import AdapterRefused, InvalidConfig
from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_control.serving.specs import adapter_report, spec_from_json
from tartlet_protos import engine_pb2
from tartlet_worker.app import load
from tartlet_worker.engine import Engine
from tartlet_worker.fake import FakeEngine, FakeOptions
from tartlet_worker.fake.adapters import adapter_named
from tartlet_worker.serving.adapter_desk import MAX_ADAPTERS, MAX_REFUSED, AdapterDesk
from tests.worker.adapters import directory
from tests.worker.families import checkpoint
from tests.worker.serving.test_link import rig

MODEL = "llama3-grouped"
FAKE = FakeOptions(live_adapters=True)


@dataclass
class Desk:
    """A desk without a thread and without a connection."""

    file: Path
    engine: Engine = field(default_factory=lambda: FakeEngine(FAKE))
    told: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.desk = AdapterDesk(self.engine, self.file, lambda call: call(), lambda: self.told.append(True))

    async def says(self, *lines: str) -> None:
        """Let the file have other lines."""
        self.file.write_text("\n".join(lines))
        await self.desk.look()

    def report(self) -> tuple[list[str], list[str], dict[str, Any]]:
        """Return the names that the desk's next report offers and retires, and what it refuses."""
        sent = self.desk.report()
        assert sent is not None
        spec = spec_from_json(self.desk.spec_json())
        told = adapter_report(spec, sent)
        assert (told.offered, told.retiring) == (spec.adapters, spec.retiring)
        return [a.name for a in told.offered], [a.name for a in told.retiring], dict(told.refused)

    @property
    def has(self) -> list[str]:
        """Return the names of what the engine has."""
        assert isinstance(self.engine, FakeEngine)
        return sorted(adapter.name for adapter in self.engine.state.adapters.values())


def numbers(*names: str) -> list[int]:
    return [adapter_named(name).number for name in names]


async def test_what_the_file_lists_is_offered_and_goes_when_control_says_so(tmp_path: Path) -> None:
    d = Desk(tmp_path / "list")
    await d.says("# ours", "b = /b", "", "a=c/d")
    assert d.report() == (["a", "b"], [], {})
    assert d.desk.report() is None
    await d.desk.look()
    assert d.desk.report() is None
    await d.says("a=/a", "c=/c")
    assert d.report() == (["a", "c"], ["b"], {})
    assert d.has == ["a", "b", "c"]
    d.desk.unload(numbers("b", "a"))  # the latter is on the list
    assert d.report() == (["a", "c"], [], {})
    assert d.has == ["a", "c"]
    await d.says()
    assert d.report() == ([], ["a", "c"], {})
    await d.says("a=/a")
    d.desk.unload(numbers("a", "c", "b"))
    assert d.report() == (["a"], [], {})
    assert d.has == ["a"]


async def test_wrong_lines_are_refused_and_a_file_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    d = Desk(tmp_path / "list")
    await d.says("a=/a", "x:y=/c", "a=/b", "nothing")
    names, _, refused = d.report()
    assert names == ["a"]
    assert {*refused} == {"x:y=/c", "a=/b", "nothing"}
    assert {type(error) for error in refused.values()} == {AdapterRefused}
    d.file.unlink()
    d.told.clear()
    await d.desk.look()
    assert not d.told
    await d.says("a=/a")
    assert d.report() == (["a"], [], {})
    await d.says(*(f"n{i}=/n" for i in range(MAX_ADAPTERS + 2)))
    names, retiring, refused = d.report()
    assert (len(names), retiring, len(refused)) == (MAX_ADAPTERS - 1, ["a"], 3)
    d.desk.unload(numbers("a"))
    await d.desk.look()
    names, retiring, refused = d.report()
    assert (len(names), retiring, len(refused)) == (MAX_ADAPTERS, [], 2)
    d.file.unlink()
    with pytest.raises(InvalidConfig, match="adapters_file"):
        await Desk(d.file).desk.begin()


async def test_a_file_of_nonsense_costs_neither_the_engine_nor_the_lines_that_make_sense(tmp_path: Path) -> None:
    d = Desk(tmp_path / "list")
    await d.says("b=/b\0c", *(f"nonsense {i}" for i in range(2 * MAX_REFUSED)), "a=/a")
    names, _, refused = d.report()
    assert names == ["a"]
    assert len(refused) == MAX_REFUSED
    assert "b=/b\0c" in refused
    await d.desk.begin()
    await d.desk.end()


async def test_bad_directories_are_refused_by_type_and_taken_once_they_are_good(tmp_path: Path) -> None:
    settings = WorkerSettings(model=checkpoint(MODEL), adapters_file=tmp_path / "list", kv_memory_bytes=1 << 20)
    d = Desk(tmp_path / "list", await asyncio.to_thread(load, settings, lambda _: None))
    good, dora, cut = directory(MODEL, "all"), tmp_path / "dora", tmp_path / "cut"
    for path in (dora, cut):
        shutil.copytree(directory(MODEL, "patterns"), path)
    config = json.loads((dora / "adapter_config.json").read_text())
    (dora / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    weights = cut / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    other = directory("gemma", "all")
    await d.says("cut=cut", f"dora={dora}", f"good={good}", "gone=/nowhere", f"other={other}", f"same={good}")
    names, _, refused = d.report()
    assert names == ["good", "same"]
    assert {*refused} == {"cut", "dora", "gone", "other"}
    assert all(isinstance(error, AdapterRefused) for error in refused.values())
    assert "DoRA" in str(refused["dora"])
    await d.desk.look()
    assert d.desk.report() is None
    weights.write_bytes(whole)
    await d.desk.look()
    assert d.report()[0] == ["cut", "good", "same"]
    before = spec_from_json(d.desk.spec_json()).adapters[0]
    (cut / "adapter_config.json").write_text("{")  # until it can be read again, the name stands for what it did
    await d.desk.look()
    names, retiring, refused = d.report()
    assert (names, retiring) == (["cut", "good", "same"], [])
    assert "cut" in refused
    (cut / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 3}))
    await d.desk.look()
    names, retiring, refused = d.report()
    assert (names, retiring) == (["cut", "good", "same"], ["cut"])
    assert "cut" not in refused
    assert spec_from_json(d.desk.spec_json()).retiring == (before,)


def test_a_worker_takes_one_of_the_settings(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="both"):
        load(WorkerSettings(engine="fake", adapters="a=/a", adapters_file=tmp_path), lambda _: None)


async def test_a_worker_follows_its_file_while_it_is_connected(run_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "list"
    file.write_text("a=/a")
    async with rig(run_dir, options=FAKE, adapters_file=file) as r, asyncio.timeout(20):
        await r.until_hello()
        spec = spec_from_json(r.end.hellos[0].spec_json)
        assert spec.adapters == (adapter_named("a"),)

        async def until(offered: list[str], retiring: list[str]) -> engine_pb2.AdapterReport:
            while True:
                frame = await r.end.frames.get()
                if frame.HasField("adapters"):
                    told = adapter_report(spec, frame.adapters)
                    if ([x.name for x in told.offered], [x.name for x in told.retiring]) == (offered, retiring):
                        return frame.adapters

        await until(["a"], [])
        write(file, "b=/b\n?")
        report = await until(["b"], ["a"])
        assert {type(error_from_proto(error)) for error in report.refused.values()} == {AdapterRefused}
        frame = engine_pb2.EngineFrame(worker_incarnation=r.end.hellos[-1].incarnation, unload=numbers("a"))
        r.end.to_send.put_nowait(frame)
        await until(["b"], [])


def write(file: Path, text: str) -> None:
    """Replace a file at once, as editors and the kubelet do."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)
