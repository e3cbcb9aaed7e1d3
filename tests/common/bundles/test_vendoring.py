"""The packages of a requirements.txt, from wheels in a folder: pip runs, and no network is asked."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from tartlet_common.bundles.project import bundle
from tartlet_common.errors.registry import InvalidBundle, NativePackage, PackagesMissing

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
