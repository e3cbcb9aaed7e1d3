"""Archives of programs of several files: what goes in, and that the same files give the same bytes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlet._running import bundle as in_guest
from tartlet import Source
from tartlet_common.bundles import layout
from tartlet_common.bundles.checking import check_bundle
from tartlet_common.bundles.packing import amended, pack
from tartlet_common.bundles.project import bundle
from tartlet_common.errors.registry import BundleTooLarge, InvalidBundle, NativePackage

MAIN = b"from pkg import answer\nasync def main(args):\n    return answer\n"

_names = st.lists(st.text("abcdefgh_", min_size=1, max_size=6), min_size=1, max_size=3).map(
    lambda parts: "/".join(f"m{part}" for part in parts) + ".py"
)
_files = st.dictionaries(_names, st.binary(max_size=200), max_size=8).map(lambda files: files | {"main.py": MAIN})


@given(_files, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_same_files_give_the_same_archive_which_holds_them(files: dict[str, bytes], chance: random.Random) -> None:
    shuffled = list(files.items())
    chance.shuffle(shuffled)
    made = pack(files)
    assert pack(dict(shuffled)) == made
    assert check_bundle(made) == "main.py"
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        read = {name: archive.read(name) for name in archive.namelist()}
    assert json.loads(read.pop(layout.MANIFEST)) == {"bundle": 1, "entry": "main.py"}
    assert read == files


def _project(at: Path) -> Path:
    (at / "pkg").mkdir(parents=True)
    (at / "main.py").write_bytes(MAIN)
    (at / "pkg" / "__init__.py").write_text("answer = 42\n")
    (at / "pkg" / "words.txt").write_text("one two\n")
    return at


def test_a_directory_s_digest_depends_on_its_files_alone(tmp_path: Path) -> None:
    one, other = _project(tmp_path / "one"), _project(tmp_path / "other")
    os.utime(other / "main.py", (1, 1))
    (other / "main.py").chmod(0o755)
    for left_out in (
        "__pycache__/main.cpython-311.pyc",
        ".git/config",
        ".venv/pyvenv.cfg",
        "env/lib/x.py",
        "env/pyvenv.cfg",
    ):
        (other / left_out).parent.mkdir(exist_ok=True, parents=True)
        (other / left_out).write_text("x")
    assert Source.from_file(one).digest == Source.from_directory(other).digest
    (other / "pkg" / "words.txt").write_text("one two three\n")
    assert Source.from_file(one).digest != Source.from_file(other).digest


def test_pyproject_names_the_entry_and_what_is_left_out(tmp_path: Path) -> None:
    project = _project(tmp_path / "p")
    (project / "notes").mkdir()
    (project / "notes" / "a.md").write_text("x")
    (project / "main.py").rename(project / "agent.py")
    with pytest.raises(InvalidBundle):
        bundle(project)
    (project / "pyproject.toml").write_text('[tool.tartlet]\nentry = "agent.py"\nexclude = ["notes", "*.txt"]\n')
    made = bundle(project)
    assert check_bundle(made) == "agent.py"
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        assert sorted(archive.namelist()) == ["agent.py", "pkg/__init__.py", "pyproject.toml", "tartlet.json"]


@pytest.mark.parametrize(
    "text",
    [
        "[tool.tartlet]\nentry = 3\n",
        '[tool.tartlet]\nentri = "a.py"\n',
        "tool = 1\n",
        "[",
        '[tool.tartlet]\nentry = "../a.py"',
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, text: str) -> None:
    project = _project(tmp_path / "p")
    (project / "pyproject.toml").write_text(text)
    with pytest.raises(InvalidBundle):
        bundle(project)


def test_links_and_pipes_and_machine_code_in_a_directory_are_refused(tmp_path: Path) -> None:
    for kind in ("file", "folder", "dangling", "pipe"):
        project = _project(tmp_path / kind)
        if kind == "pipe":
            os.mkfifo(project / "odd")
        else:
            (project / "odd").symlink_to({"file": "/etc/passwd", "folder": "/etc", "dangling": "/nowhere"}[kind])
        with pytest.raises(InvalidBundle):
            bundle(project)
    project = _project(tmp_path / "machine")
    (project / "pkg" / "_fast.cpython-311-x86_64-linux-gnu.so").write_bytes(b"\x7fELF")
    with pytest.raises(NativePackage):
        bundle(project)


def test_a_module_that_would_hide_one_of_python_s_is_refused(tmp_path: Path) -> None:
    own = [path.name for path in (Path(__file__).parents[3] / "inferlets" / "guest").glob("*.py")]
    made = ["wit_world/__init__.py", "componentize_py_types.py", "componentize_py_runtime.py"]
    for name in ("queue.py", "json/__init__.py", "inferlet/extra.py", *own, *made):
        with pytest.raises(InvalidBundle):
            pack({"main.py": MAIN, name: b""})
    with pytest.raises(InvalidBundle):
        pack({"src/main.py": MAIN, "src/types.py": b""}, "src/main.py")
    pack({"main.py": MAIN, "pkg/queue.py": b"", "json/data.json": b"{}"})


def _zip(*files: tuple[str | zipfile.ZipInfo, bytes], comment: bytes = b"") -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = comment
        for name, data in files:
            archive.writestr(name, data)
    return made.getvalue()


def _link() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("link.py")
    info.create_system, info.external_attr = 3, 0o120777 << 16
    return info


def _lying(size: int) -> bytes:
    """An archive whose second file declares another size than it has."""
    data = bytearray(_zip(("main.py", MAIN), ("big.bin", bytes(100_000))))
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = size.to_bytes(4, "little")
    return bytes(data)


def _far() -> bytes:
    """An archive whose manifest is at 2**64 - 1, as its zip64 field says."""
    info = zipfile.ZipInfo("tartlet.json")
    info.extra = b"\x01\x00\x08\x00" + b"\xff" * 8
    data = bytearray(_zip((info, b"{}"), ("main.py", MAIN)))
    at = data.index(b"PK\x01\x02")
    data[at + 42 : at + 46] = b"\xff" * 4
    return bytes(data)


HOSTILE = {
    "a place that no file has": (_far(), InvalidBundle),
    "climbs": (_zip(("main.py", MAIN), ("../../etc/cron.d/x", b"")), InvalidBundle),
    "absolute": (_zip(("main.py", MAIN), ("/etc/passwd", b"")), InvalidBundle),
    "a drive": (_zip(("main.py", MAIN), ("C:/x.py", b"")), InvalidBundle),
    "backslashes": (_zip(("main.py", MAIN), ("a/..\\..\\x.py", b"")), InvalidBundle),
    "a control character": (_zip(("main.py", MAIN), ("a\x1b[2J.py", b"")), InvalidBundle),
    "a long name": (_zip(("main.py", MAIN), ("a" * 300, b"")), InvalidBundle),
    "a link": (_zip(("main.py", MAIN), (_link(), b"/etc/passwd")), InvalidBundle),
    "a folder": (_zip(("main.py", MAIN), ("folder/", b"")), InvalidBundle),
    "machine code": (_zip(("main.py", MAIN), ("site-packages/fast/_c.so", b"\x7fELF")), NativePackage),
    "no entry": (_zip(("other.py", MAIN)), InvalidBundle),
    "a manifest of another version": (_zip(("tartlet.json", b'{"bundle": 2, "entry": "main.py"}')), InvalidBundle),
    "a manifest that is none": (_zip(("tartlet.json", b"[" * 4000), ("main.py", MAIN)), InvalidBundle),
    "a large manifest": (_zip(("tartlet.json", b" " * 100_000), ("main.py", MAIN)), BundleTooLarge),
    "an entry outside": (_zip(("tartlet.json", b'{"bundle": 1, "entry": "../main.py"}')), InvalidBundle),
    "a bomb": (_zip(("main.py", MAIN), ("zeros", bytes(65 << 20))), BundleTooLarge),
    "a bomb by its directory": (_lying(1 << 30), BundleTooLarge),
    "many files": (_zip(("main.py", MAIN), *((f"m{i}.py", b"") for i in range(5000))), BundleTooLarge),
    "a comment": (_zip(("main.py", MAIN), comment=b"x" * 100), InvalidBundle),
    "something in front": (b"PK\x03\x04" + b"x" * 100 + _zip(("main.py", MAIN)), InvalidBundle),
    "cut": (_zip(("main.py", MAIN))[:-1], InvalidBundle),
    "noise": (b"PK\x03\x04" + bytes(100), InvalidBundle),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", [*HOSTILE, "twice"])
def test_a_hostile_archive_is_refused_with_a_typed_error(name: str) -> None:
    data, kind = HOSTILE.get(name) or (_zip(("main.py", MAIN), ("a.py", b"1"), ("a.py", b"2")), InvalidBundle)
    with pytest.raises(kind):
        check_bundle(data)


@given(st.binary(max_size=60), st.integers(0, 400), st.integers(1, 40))
@settings(max_examples=80, deadline=None)
def test_a_damaged_archive_is_refused_or_still_an_archive(noise: bytes, at: int, cut: int) -> None:
    whole = pack({"main.py": MAIN, "pkg/__init__.py": b"answer = 42"})
    damaged = whole[:at] + noise + whole[at + cut :]
    with contextlib.suppress(InvalidBundle, BundleTooLarge, NativePackage):
        check_bundle(damaged)


def test_a_file_that_holds_more_than_it_declares_is_read_no_further() -> None:
    read = in_guest.Bundle(_lying(10).decode("latin-1"), "p")
    with pytest.raises(zipfile.BadZipFile):  # its checksum is that of the whole
        read.read("big.bin")


def test_an_amended_archive_has_one_file_changed() -> None:
    made = amended(pack({"main.py": MAIN, "a.py": b"1"}), "a.py", lambda text: text + b"\n2")
    assert made == pack({"main.py": MAIN, "a.py": b"1\n2"})


def test_the_sdk_and_the_host_agree_on_the_form() -> None:
    assert (in_guest.MAGIC.encode("latin-1"), in_guest.MANIFEST, in_guest.PACKAGES) == (
        layout.MAGIC,
        layout.MANIFEST,
        layout.PACKAGES,
    )
