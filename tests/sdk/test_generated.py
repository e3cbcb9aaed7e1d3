"""Generated files are fresh, and the checks that say so can fail."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from inferlet import errors
from inferlet._generated import error_registry as _errors
from tartlet_common.errors.registry import REGISTRY, PageQuotaExceeded
from tools import gen_abi as abi_gen
from tools import gen_abi_vectors as abi_vectors
from tools import gen_errors as errors_gen

GENERATORS = [(abi_gen, abi_gen.TARGET), (abi_vectors, abi_vectors.TARGET), (errors_gen, errors_gen.SDK)]


@pytest.mark.parametrize(("module", "target"), GENERATORS, ids=lambda v: getattr(v, "__name__", ""))
def test_generated_files_are_fresh(repo: Path, module: ModuleType, target: Path) -> None:
    assert module.main(["--check"], repo) == 0


@pytest.mark.parametrize(("module", "target"), GENERATORS, ids=lambda v: getattr(v, "__name__", ""))
def test_a_stale_file_is_noticed_and_mended(
    tmp_path: Path, module: ModuleType, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / target).parent.mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / target).write_text("old")
    assert module.main(["--check"], tmp_path) == 1
    assert "is stale" in capsys.readouterr().err
    assert module.main([], tmp_path) == 0
    assert module.main(["--check"], tmp_path) == 0


def test_every_error_has_its_exception_with_number_message_and_group() -> None:
    assert set(_errors.REGISTRY) == set(REGISTRY)
    for number, cls in REGISTRY.items():
        mine = _errors.REGISTRY[number]
        assert (mine.__name__, mine.number, mine.message) == (cls.__name__, number, cls.message)
        assert (mine.remedy, mine.retryable) == (cls.remedy, cls.retryable)
        assert mine.__bases__[0].__name__ == errors_gen.GROUPS[number // 100][0]


def test_an_error_keeps_its_fields_and_remedy_over_the_wire() -> None:
    sent = PageQuotaExceeded(held=96, asked=8, limit=100)
    got = errors.from_wire(sent.number, sent.to_json())
    assert (str(got), got.fields) == (str(sent), sent.fields)
    assert got.__notes__ == [sent.remedy]


@pytest.mark.parametrize("payload", [b"", b"[]", b"{", b"\xff"])
def test_an_error_of_a_newer_release_or_with_broken_fields_is_still_an_error(payload: bytes) -> None:
    assert isinstance(errors.from_wire(877, payload), errors.UnknownError)
    assert isinstance(errors.from_wire(301, payload), errors.PageQuotaExceeded)
