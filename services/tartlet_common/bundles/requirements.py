"""What a requirements.txt may say: names of packages, wheels, and where packages are. Nothing in it may run code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tartlet_common.errors.registry import PackagesMissing

_COMMENT: Final = re.compile(r"(^|\s+)#.*$")
_VERSION: Final = r"\s*(?:===|==|~=|!=|<=|>=|<|>)\s*[\w.*+!-]+\s*"
_NAMED: Final = re.compile(
    rf"[A-Za-z0-9][\w.-]*\s*(?:\[[\w.,\s-]*\])?\s*(?:\(?{_VERSION}(?:,{_VERSION})*,?\s*\)?)?\s*(?:;.*)?", re.ASCII
)
_AT: Final = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*\s*(?:\[[\w.,\s-]*\])?)\s*@\s*(?P<url>\S+)", re.ASCII)
_HASH: Final = re.compile(r"--hash=\w+:[0-9a-fA-F]+")
_ALONE: Final = frozenset({"--no-index", "--pre", "--prefer-binary", "--require-hashes"})
_LINKS: Final = "--find-links"
_INDEX, _MORE = (f"{option}-url" for option in ("--index", "--extra-index"))
_VALUED: Final = frozenset({_INDEX, _MORE, _LINKS})
_LONG: Final = {"-f": _LINKS, "-i": _INDEX}
_SCHEMES: Final = frozenset({"http", "https"})
_WHEEL: Final = ".whl"
_USE: Final = "list the package by its name, or a wheel made of it with `pip wheel`"


@dataclass(frozen=True, slots=True)
class Requirements:
    """The lines of a requirements.txt, checked. Places in the directory are absolute, so any directory will do."""

    options: tuple[str, ...] = ()  # where packages are
    packages: tuple[str, ...] = ()
    wheels: tuple[Path, ...] = ()  # those of `packages` that are files
    is_fixed: bool = True  # whether the same text and the same wheels mean the same packages

    def text(self) -> str:
        """Return the file that pip and uv are given."""
        return "".join(f"{line}\n" for line in (*self.options, *self.packages))


def lines_of(text: str) -> list[str]:
    """Return the lines of a requirements.txt that say something, joined where they go on, without comments."""
    joined = re.sub(r"\\\r?\n", " ", text)
    lines = (_COMMENT.sub("", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def read_requirements(directory: Path, lines: list[str]) -> Requirements:
    """Check the lines of a requirements.txt.

    Args:
        directory: where relative paths begin.
        lines: as `lines_of` returns them.

    Raises:
        PackagesMissing: a line names what would have to be built, or an option that isn't allowed.
    """
    options: list[str] = []
    packages: list[str] = []
    wheels: list[Path] = []
    for line in lines:
        words = line.split()
        try:
            if "${" in line:
                raise _refused(
                    line, "variables aren't replaced; PIP_INDEX_URL or UV_INDEX_URL may hold a secret address"
                )
            if words[0].startswith("-"):
                options += _options(directory, line, words)
                continue
            at = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
            if not all(_HASH.fullmatch(word) for word in words[at:]):
                raise _refused(line, "of the options behind a package only --hash=... is allowed")
            package = _package(directory, line, " ".join(words[:at]))
        except (OSError, ValueError) as e:
            raise _refused(line, f"it can't be read: {e}") from e
        if isinstance(package, Path):
            wheels.append(package)
            package = package.as_uri()
        packages.append(" ".join((package, *words[at:])))
    is_fixed = not options and all("://" not in line or line.startswith("file:") for line in packages)
    return Requirements(tuple(options), tuple(packages), tuple(wheels), is_fixed)


def _options(directory: Path, line: str, words: list[str]) -> list[str]:
    """Return the options of a line that has nothing else, each as one word."""
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        option = _LONG.get(option, option)
        if word in _ALONE:
            found.append(word)
        elif option in _VALUED:
            value = value if equals else next(rest, "")
            found.append(f"{option}={_place(directory, line, value) if option == _LINKS else _url(line, value)}")
        else:
            said = f"--no-index, {_LINKS}, {_INDEX} and {_MORE} are the options that are allowed"
            raise _refused(line, f"{said}; {_USE}")
    return found


def _place(directory: Path, line: str, value: str) -> str:
    """Return the address of a folder or page of packages."""
    if urlsplit(value).scheme in _SCHEMES:
        return value
    path = _local(directory, value)
    if not value or not path.exists():
        raise _refused(line, f"there is no {path}")
    return path.as_uri()


def _url(line: str, value: str) -> str:
    if urlsplit(value).scheme not in _SCHEMES | {"file"}:
        raise _refused(line, "an index is an address that begins with https://")
    return value


def _package(directory: Path, line: str, text: str) -> str | Path:
    """Return a package by its name or address, or a wheel in a directory."""
    named = _AT.fullmatch(text)
    target = named["url"] if named else text
    scheme = urlsplit(target).scheme
    if scheme in _SCHEMES and urlsplit(target).path.endswith(_WHEEL) and len(target.split()) == 1:
        return text
    if scheme in ("", "file") and target.endswith(_WHEEL):
        path = _local(directory, target)
        if not path.is_file():
            raise _refused(line, f"{path} is no file")
        return path
    if named or not _NAMED.fullmatch(text):
        raise _refused(line, f"only wheels are taken, because building a package would run its code: {_USE}")
    return text


def _local(directory: Path, target: str) -> Path:
    """Return the absolute path that a path or a file's address names."""
    if target.startswith("file:"):
        target = unquote(urlsplit(target).path)
    return Path(directory, target).resolve()


def _refused(line: str, why: str) -> PackagesMissing:
    return PackagesMissing(requirements="requirements.txt", detail=f"{line[:200]!r}: {why}")
