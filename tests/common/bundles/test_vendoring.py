"""The packages of a requirements.txt, from wheels in a folder: pip runs, and no network is asked."""

from __future__ import annotations

import importlib.util
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from tartlet_common.bundles.project import bundle
from tartlet_common.bundles.requirements import lines_of, read_requirements
from tartlet_common.errors.registry import InvalidBundle, NativePackage, PackagesMissing, PermissionDenied

MORE = "--extra-index{}".format("-url")
pytestmark = pytest.mark.timeout(300)  # each test starts pip


def wheel(at: Path, name: str, files: dict[str, str], tag: str = "py3-none-any", needs: tuple[str, ...] = ()) -> Path:
    """Write a wheel of version 1.0."""
    made = at / f"{name}-1.0-{tag}.whl"
    info = f"{name}-1.0.dist-info"
    requires = "".join(f"Requires-Dist: {need}\n" for need in needs)
    own = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    own[f"{info}/RECORD"] = "".join(f"{each},,\n" for each in [*own, f"{info}/RECORD"])
    with zipfile.ZipFile(made, "w") as archive:
        for each, text in own.items():
            archive.writestr(each, text)
    return made


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARTLET_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "agent"
    (made / "wheels").mkdir(parents=True)
    (made / "pyproject.toml").write_text('[tool.tartlet]\nexclude = ["wheels"]\n')
    (made / "main.py").write_text("import greeting\nasync def main(): return greeting.text\n")
    wheel(made / "wheels", "greeting", {"greeting/__init__.py": "import base\ntext = 'hi'\n"}, needs=("base",))
    wheel(made / "wheels", "base", {"base.py": ""})
    return made


def _names(data: bytes) -> set[str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return set(archive.namelist())


def test_wheels_and_what_they_need_are_brought(project: Path) -> None:
    (project / "requirements.txt").write_text("--no-index\n--find-links wheels\ngreeting\n")
    made = bundle(project)
    packages = {"greeting/__init__.py", "base.py", "greeting-1.0.dist-info/METADATA", "base-1.0.dist-info/METADATA"}
    assert {f"site-packages/{name}" for name in packages} <= _names(made)
    assert not any(name.endswith(("RECORD", "INSTALLER", "direct_url.json")) for name in _names(made))


def test_packages_are_resolved_once_for_the_same_text(project: Path, tmp_path: Path) -> None:
    (project / "requirements.txt").write_text("./wheels/base-1.0-py3-none-any.whl\n")
    made = bundle(project)
    [kept] = (tmp_path / "cache" / "packages").iterdir()
    (kept / "base.py").write_text("# from the cache\n")
    assert bundle(project) != made
    assert bundle(project, upgrade=True) == made

    (kept / "_base.so").write_bytes(b"\x7fELF")  # a wheel for every system may hide machine code
    with pytest.raises(NativePackage):
        bundle(project)
    (kept / "_base.so").unlink()
    (project / "site-packages").mkdir()
    (project / "site-packages" / "base.py").write_text("")
    with pytest.raises(InvalidBundle):
        bundle(project)


def test_a_package_of_machine_code_is_refused(project: Path) -> None:
    (project / "requirements.txt").write_text("--no-index\n--find-links wheels\nfast\n")
    wheel(project / "wheels", "fast", {"fast.py": ""}, tag="cp311-cp311-manylinux_2_17_x86_64")
    with pytest.raises(NativePackage) as refused:
        bundle(project)
    assert refused.value.fields["package"] == "fast"


def test_a_package_that_is_nowhere_is_told(project: Path) -> None:
    (project / "requirements.txt").write_text("--no-index\n--find-links wheels\nnowhere\n")
    with pytest.raises(PackagesMissing):
        bundle(project)


def hostile(at: Path, mark: Path) -> Path:
    """Write a package whose build backend writes `mark`."""
    at.mkdir()
    (at / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'
        '[project]\nname = "hostile"\nversion = "1.0"\n'
    )
    (at / "own.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    made = at.parent / "hostile-1.0.tar.gz"
    with tarfile.open(made, "w:gz") as archive:
        archive.add(at, "hostile-1.0")
    return made


@pytest.fixture(params=["pip", "uv"])
def _tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "uv":
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)


@pytest.mark.usefixtures("_tool")
def test_nothing_of_the_directory_runs(project: Path, tmp_path: Path) -> None:
    mark = tmp_path / "it-ran"
    made = hostile(project / "pkg", mark)
    python = project / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\ntouch {mark}\nexit 1\n")
    python.chmod(0o755)
    (project / "uv.toml").write_text("no-binary = true\n")
    (project / "requirements.txt").write_text("--no-index\n--find-links wheels\ngreeting\n")
    assert "site-packages/base.py" in _names(bundle(project))

    wheel(project / "wheels", "innocent", {"innocent.py": ""}, needs=(f"hostile @ {made.as_uri()}",))
    for text in (
        "./pkg\n",
        f"hostile @ {(project / 'pkg').as_uri()}\n",
        f"--no-index\n--find-links {project}\n--no-binary :all:\nhostile\n",
        "--no-index\n--find-links wheels\ninnocent\n",
    ):
        (project / "requirements.txt").write_text(text)
        with pytest.raises(PackagesMissing):
            bundle(project)
    assert not mark.exists()


@pytest.mark.parametrize(
    "line",
    [
        *(".", "pkg/", "-e .", "--editable=pkg", "-r other.txt", "-c other.txt", "hostile-1.0.tar.gz/", "wheels.whl"),
        *("--no-binary :all:", "--only-binary=:none:", "--no-index --no-binary=:all:", "base \\\n --no-binary=:all:"),
        *("base --config-settings=a=b", "git+https://example.org/a.whl", "a @ git+ssh://example.org/a", "a;b -e ."),
        *("https://example.org/a.tar.gz", "a @ https://example.org/a.zip", "file:///etc/x.tar.gz", "ftp://a/b.whl"),
        *(
            "-f nowhere",
            "-i ../simple",
            "-i",
            "-i https://example.org/${SECRET}",
            "https://[/a.whl",
            "a\0.whl",
        ),
        "x" * 5000 + ".whl",
    ],
)
def test_what_would_be_built_and_other_options_are_refused(project: Path, line: str) -> None:
    (project / "pkg").mkdir()
    (project / "wheels.whl").mkdir()
    with pytest.raises(PackagesMissing):
        read_requirements(project, lines_of(line))


def test_names_and_wheels_and_places_are_taken(project: Path) -> None:
    text = (
        "# packages\nmarkdown-it-py[a, b] >=3.0,<4 ; python_version >= '3.9'  # why\nbase==1.0 \\\n  --hash=sha256:0a\n"
        "a (>=1)\nwheels/base-1.0-py3-none-any.whl\nb @ https://example.org/b-1-py3-none-any.whl#sha256=0a\n"
        f"--no-index -f wheels\n{MORE}=https://example.org/simple\n"
    )
    wanted = read_requirements(project, lines_of(text))
    whl = (project / "wheels" / "base-1.0-py3-none-any.whl").resolve()
    assert wanted.wheels == (whl,)
    assert not wanted.is_fixed
    assert wanted.text().splitlines() == [
        "--no-index",
        f"--find-links={whl.parent.as_uri()}",
        f"{MORE}=https://example.org/simple",
        "markdown-it-py[a, b] >=3.0,<4 ; python_version >= '3.9'",
        "base==1.0 --hash=sha256:0a",
        "a (>=1)",
        whl.as_uri(),
        "b @ https://example.org/b-1-py3-none-any.whl#sha256=0a",
    ]


def test_the_place_of_packages_is_this_user_s_own(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "requirements.txt").write_text("./wheels/base-1.0-py3-none-any.whl\n")
    base = tmp_path / "cache" / "packages"
    base.mkdir(parents=True, mode=0o777)
    coming = base / "coming-other"  # of a build that goes on
    coming.mkdir()
    os.utime(coming, (1, 1))
    monkeypatch.setattr("tartlet_common.bundles.vendoring._KEPT", 0)
    bundle(project)
    assert [path.name for path in base.iterdir()] == ["coming-other"]
    assert base.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "getuid", lambda: base.stat().st_uid + 1)
    with pytest.raises(PermissionDenied):
        bundle(project)
