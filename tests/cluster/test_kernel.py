"""The kernel's settings, on a file tree like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster.own import kernel


def test_one_that_cannot_be_set_is_told_of_and_the_others_are_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vm").mkdir()
    (tmp_path / "vm/overcommit_memory").write_text("1")
    file = tmp_path / "kernel.json"
    file.write_text('{"kernel/panic": "0", "vm/overcommit_memory": "0"}')
    kernel.put_back(file, tmp_path)
    assert kernel.settings(tmp_path) == {"vm/overcommit_memory": "0"}
    assert "kernel/panic stays None, and was 0" in capsys.readouterr().err


def test_what_a_kubelet_changes_is_put_back_and_nothing_else_is_written(tmp_path: Path) -> None:
    for name, value in (("vm/overcommit_memory", "0\n"), ("kernel/panic", "0\n"), ("vm/swappiness", "60\n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(value)
    file = tmp_path / "kernel.json"
    kernel.put_back(file, tmp_path)  # no cluster was ever up
    kernel.note(file, tmp_path)
    (tmp_path / "vm/overcommit_memory").write_text("1\n")
    (tmp_path / "vm/swappiness").write_text("10\n")
    (tmp_path / "kernel/panic").chmod(0o444)
    kernel.put_back(file, tmp_path)
    assert kernel.settings(tmp_path) == {"kernel/panic": "0", "vm/overcommit_memory": "0"}
    assert (tmp_path / "vm/swappiness").read_text() == "10\n"
    assert (tmp_path / "kernel/panic").read_text() == "0\n"  # the kernel adds a newline
