"""The documents hold: names in the walk exist, the README's programs run as they stand, links lead somewhere."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

import tartlet
from tartlet_common.config.settings import ControlSettings, GatewaySettings, RuntimeSettings, WorkerSettings
from tests.sdk.host.harness import held, run_source
from tests.sdk.host.mini_host import MiniHost

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
CODE = ("services", "gpu_worker", "inferlets")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(p for top in ("charts", "docs", "e2e", "models") for p in (ROOT / top).rglob("*.md"))]
)
REFERENCES = sorted(
    set(re.findall(r"`([\w/]+\.py):([\w.]+)`", (ROOT / "docs/architecture.md").read_text(encoding="utf-8")))
)
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
TOPS = "bench|charts|constraints|crds|docs|e2e|gpu_worker|inferlets|models|operator|protos|services|tests|tools"
NAMED_PATH = re.compile(rf"`((?:{TOPS})/[\w./-]*)`")
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)")


@lru_cache
def sources(name: str) -> tuple[Path, ...]:
    """Files of the code whose path ends in `name`."""
    paths = (path for top in CODE for path in (ROOT / top).rglob(Path(name).name))
    return tuple(path for path in paths if path.as_posix().endswith(f"/{name}"))


def defines(path: Path, dotted: str) -> bool:
    """Whether a module has this class, function or method."""
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for name in dotted.split("."):
        found = [
            node
            for node in body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        ]
        if not found:
            return False
        body = found[-1].body
    return True


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as they are made from their text."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Target and anchor of a page's links within the repository."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for found in LINK.finditer(re.sub(r"`[^`\n]*`", "", text)):
        yield found[1], found[2] or ""


@pytest.mark.parametrize(("module", "name"), REFERENCES)
def test_a_name_in_the_walk_exists_in_the_code(module: str, name: str) -> None:
    found = sources(module)
    assert found, f"no file {module}"
    assert any(defines(path, name) for path in found), f"{module} has no {name}"


def test_the_walk_names_every_layer_it_passes() -> None:
    files = {path for module, _ in REFERENCES for path in sources(module)}
    for layer in ("inferlets/sdk", "tartlet_runtime", "tartlet_control", "tartlet_worker"):
        assert any(layer in path.as_posix() for path in files), layer
    assert len(REFERENCES) > 50


def test_a_name_that_is_not_there_is_noticed() -> None:
    (path,) = sources("tartlet_control/core/settler.py")
    assert defines(path, "Settler.settle")
    assert not defines(path, "Settler.unsettle")
    assert not defines(path, "settle")


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_readme_runs(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", bytes)  # a fixed seed: the answer of a random draft may be empty
    host = MiniHost(page_size=16)
    assert run_source(host, PROGRAMS[number])
    assert held(host) == (0, 0, 0)


def test_the_files_that_a_new_call_touches_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    entry = text[text.index("- *A new engine call*") : text.index("- *A new error*")]
    paths = re.findall(r"^  \d\. `([\w/.]+)`", entry, re.MULTILINE)
    assert len(paths) == 8
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_readme_is_short_begins_with_a_picture_and_has_its_commands() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert re.search(r"^!\[.+\]\(docs/images/.+\.svg\)$", "\n".join(text.splitlines()[:12]), re.MULTILINE)
    assert len(PROGRAMS) == 1
    for image in re.findall(r"\]\((docs/images/page-\w+\.png)\)", text):
        assert (ROOT / image).read_bytes()[:4] == b"\x89PNG"
    assert text.count("docs/images/page-") == 2
    marked = re.search(r"^<!-- ci.*\n```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert marked
    assert [line.split("#")[0].strip() for line in marked[1].splitlines()] == ["make demo", "make test"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_path_that_a_document_names_exists(page: Path) -> None:
    for name in NAMED_PATH.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists() or (page.parent / name).exists(), name


def test_what_the_documents_take_from_the_client_is_exported() -> None:
    used = {name for page in PAGES for name in re.findall(r"\btartlet\.([A-Z]\w+)", page.read_text(encoding="utf-8"))}
    assert {"AsyncClient", "Client", "Source", "Tls"} <= used <= set(tartlet.__all__)


def test_the_limits_are_those_of_the_settings() -> None:
    roles = (ControlSettings, RuntimeSettings, WorkerSettings, GatewaySettings)
    defaults = {name: info.default for role in roles for name, info in role.model_fields.items()}
    units = {"": 1, " s": 1, " KiB": 1 << 10, " MiB": 1 << 20}
    text = (ROOT / "docs/limits.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)` \(([\d.]+)( s| KiB| MiB)?\)", text)
    assert len(named) > 10
    for name, number, unit in named:
        assert defaults[name] == float(number) * units[unit], name


def test_a_page_opens_with_its_readers() -> None:
    pages = [page for page in PAGES if "adr" not in page.parts and page != README]
    assert len(pages) > 15
    for page in pages:
        text = re.sub(r"^---$.*?^---$|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        assert re.match(r"\s*# .+\n+This (page|card) ", text), page


def test_a_changelog_entry_is_one_line() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("## Unreleased")[2].splitlines()
    assert len(lines) > 100
    assert [line for line in lines if line and not re.match(r"#+ |- .{1,118}$", line)] == []


def test_a_decision_has_its_sections_and_stands_in_the_list() -> None:
    pages = sorted((ROOT / "docs/adr").glob("0*.md"))
    listed = (ROOT / "docs/adr/README.md").read_text(encoding="utf-8")
    assert len({page.name[:4] for page in pages}) == len(pages)
    for page in pages:
        number, text = int(page.name[:4]), page.read_text(encoding="utf-8")
        title = text.splitlines()[0].removeprefix(f"# {number}. ")
        replaced = re.search(r"^\*\*Replaced by \[ADR (\d+)\]", text, re.MULTILINE)
        note = f" (replaced by {replaced[1]})" if replaced else ""
        assert f"| [{number}]({page.name}) | {title}{note} |" in listed, page
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Options", "Decision", "Consequences"], page
