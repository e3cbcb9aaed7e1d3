"""The random kills, with stand-ins for everything that they kill."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e2e.cluster.kube import Refused, until
from e2e.tests.support import havoc as havocs
from e2e.tests.support.havoc import DECK, Patient, Toll, havoc

SOON = (0.0, 0.002)
NOBODYS: Any = SimpleNamespace(cluster=None)
"""A cluster that the harness didn't make."""


class Cluster:
    """A cluster whose kubectl prints the given messages first, one at each call, and then succeeds."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.asked = directory / "asked"
        lines = "".join(f'if [ "$n" = {n} ]; then echo "{word}" >&2; exit 1; fi\n' for n, word in enumerate(words))
        self.program = directory / "kubectl"
        count = f'n=$(wc -l < {self.asked} 2>/dev/null || echo 0)\necho asked "$@" >> {self.asked}\n'
        self.program.write_text(f"#!/bin/sh\n{count}{lines}echo well\n")
        self.program.chmod(0o700)

    def kubectl(self) -> list[str]:
        return [str(self.program)]


def test_who_is_patient_asks_until_the_api_server_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    cluster: Any = Cluster(tmp_path, "The connection to the server was refused", "unexpected EOF")
    assert Patient(cluster, "ns")("get", "pods") == "well\n"
    assert len(cluster.asked.read_text().splitlines()) == 3


def test_what_the_api_server_itself_refuses_is_refused(tmp_path: Path) -> None:
    cluster: Any = Cluster(tmp_path, 'Error from server (NotFound): pods "p" not found')
    with pytest.raises(Refused, match="NotFound"):
        Patient(cluster, "ns")("get", "pod/p")
    assert len(cluster.asked.read_text().splitlines()) == 1


def order(monkeypatch: pytest.MonkeyPatch, seed: int) -> list[str]:
    """Returns the parts that are killed until each was killed once."""
    seen: list[str] = []
    missed: list[str] = []

    def end(kube: Any, what: str, *_: object) -> bool:
        missed.extend([what] if what == "engine" else [])
        there = what != "engine" or len(missed) > 2  # no process exists until then
        seen.extend([what] if there else [])
        return there

    monkeypatch.setattr(havocs, "_ended", end)
    with havoc(NOBODYS, "pool", seed, SOON) as toll:
        until(lambda: toll.complete, "everything has ended", 5)
    return seen[: len(toll.deck)]


def test_a_seed_is_an_order_and_everything_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    first = order(monkeypatch, 1)
    assert sorted(first) == sorted(what for what in DECK if what != havocs.API_SERVER), "only our own API server ends"
    assert order(monkeypatch, 1) == first
    assert any(order(monkeypatch, seed) != first for seed in (2, 3))


def test_what_cannot_be_ended_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def end(*_: object) -> bool:
        asked.set()
        raise Refused("it is protected")

    def disturbed() -> None:
        with havoc(NOBODYS, "pool", 1, SOON):
            assert asked.wait(5)

    monkeypatch.setattr(havocs, "_ended", end)
    with pytest.raises(Refused, match="protected"):
        disturbed()


def test_programs_may_be_lost_with_what_they_run_on() -> None:
    toll = Toll(DECK)
    toll.counts.update(DECK)
    assert toll.complete
    assert toll.programs == 4
    toll.counts["operator"] -= 1
    assert not toll.complete
