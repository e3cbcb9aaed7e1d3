"""The client's values beside events: sources, limits, launches, listings."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from tartlet._given import check_kind, check_number, check_texts, seed_bytes, shown
from tartlet.events import Usage
from tartlet_common.capabilities import SHARED
from tartlet_common.durability import check_durability
from tartlet_common.errors.registry import InvalidArgument, InvalidSource, SourceTooLarge, TartletError
from tartlet_common.pauses import Pause

MAX_SOURCE_BYTES = 64 << 20
"""The largest source that a client sends; the server's own limit is lower, 16 MiB by default."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
"""The form of an entry's name in the catalogue."""

_WASM_MAGIC = b"\0asm"


class Language(Enum):
    """The language of a program."""

    PYTHON = "python"  # Python source, run by the generic Python component
    WASM = "wasm"  # a core Wasm module
    NATIVE = "native"  # a process that the client starts, outside the sandbox


@dataclass(frozen=True, slots=True)
class Source:
    """A program's text or module.

    Example:
        >>> Source.python("async def main(): ...").digest[:8]
        '5a17cb38'
    """

    data: bytes = field(repr=False)
    language: Language = Language.PYTHON
    filename: str = "program.py"  # shown in tracebacks

    def __post_init__(self) -> None:
        """Check that the data are bytes.

        Raises:
            InvalidArgument: `data` is text.
        """
        data: object = self.data
        if isinstance(data, str):
            raise InvalidArgument(argument="data", detail="a program's text becomes one with Source.python(text)")

    @property
    def digest(self) -> str:
        """The SHA-256 of the data, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    @staticmethod
    def python(text: str, filename: str = "program.py") -> Source:
        """Make a Python program from its text."""
        return Source(text.encode(), Language.PYTHON, filename)

    @staticmethod
    def from_file(path: str | Path, language: Language | None = None) -> Source:
        """Read a program from a file or a directory.

        A file is a Wasm module if its first bytes or its suffix .wasm say so, else Python: a text, or the archive of a
        program of several files. Of a directory such an archive is made (see `from_directory`).

        Raises:
            InvalidSource: the file can't be read, or is empty.
            SourceTooLarge: the file is larger than `MAX_SOURCE_BYTES`; the rest of it isn't read.
            InvalidBundle, BundleTooLarge, NativePackage, PackagesMissing: the directory is refused.
        """
        path = Path(path)
        if path.is_dir():
            return Source.from_directory(path)
        try:
            size = path.stat().st_size
            if size <= MAX_SOURCE_BYTES:
                with path.open("rb") as file:  # the size of a pipe or a device is unknown
                    data = file.read(MAX_SOURCE_BYTES + 1)
                size = len(data)
        except OSError as e:
            raise InvalidSource(detail=f"{path}: {e.strerror}") from e
        if size > MAX_SOURCE_BYTES:
            raise SourceTooLarge(size=size, limit=MAX_SOURCE_BYTES)
        if not data:  # the server takes a source without data for one that it already has
            raise InvalidSource(detail=f"{path}: the file is empty")
        if language is None:
            wasm = data.startswith(_WASM_MAGIC) or path.suffix == ".wasm"
            language = Language.WASM if wasm else Language.PYTHON
        return Source(data, language, os.fsencode(path).decode(errors="replace"))

    @staticmethod
    def from_directory(path: str | Path, *, upgrade: bool = False) -> Source:
        """Make a program of a directory: its `main.py`, the modules beside it, and the packages of requirements.txt.

        The same files give the same digest. docs/guide.md says what is taken.

        Args:
            path: the directory.
            upgrade: whether the packages of requirements.txt are resolved again, even if they were before.

        Raises:
            InvalidBundle: it can't be read, holds a link, or lacks the file to begin with.
            BundleTooLarge: it has too many files, or too many bytes.
            NativePackage: a file or a package is machine code.
            PackagesMissing: a package can't be had.
        """
        from tartlet_common.bundles.project import bundle

        path = Path(path)
        name = os.fsencode(path if path.name else path.resolve()).decode(errors="replace")
        return Source(bundle(path, upgrade=upgrade), Language.PYTHON, name)


def check_source(given: object) -> None:
    """Check that an argument is a `Source`, not a path or a text.

    Raises:
        InvalidArgument: it isn't; the error says how to make a source.
    """
    if not isinstance(given, Source):
        detail = f"{shown(given)} is no Source: give Source.from_file(path) or Source.python(text)"
        raise InvalidArgument(argument="source", detail=detail)


def check_name(name: str) -> None:
    """Check that the catalogue accepts a name.

    Raises:
        InvalidArgument: it doesn't.
    """
    check_texts(name=name)
    if not NAME.fullmatch(name):
        detail = f"{name[:128]!r}: letters, digits and . _ / - make a name, up to 128, the first a letter or digit"
        raise InvalidArgument(argument="name", detail=detail)


_SECONDS = ("cpu_slice_s", "deadline_s")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one program; 0 stands for the server's default."""

    memory_bytes: int = 0
    cpu_slice_s: float = 0.0  # longest computation without waiting
    pages: int = 0
    commands_in_flight: int = 0
    source_bytes: int = 0
    output_bytes: int = 0  # unread output
    journal_bytes: int = 0
    deadline_s: float = 0.0

    def __post_init__(self) -> None:
        """Check that the limits are numbers; their bounds are checked at the launch.

        Raises:
            InvalidArgument: a limit isn't a number.
        """
        for name in self.__slots__:
            check_number(f"limits.{name}", getattr(self, name), whole=name not in _SECONDS)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a program may reach, as far as its entry in the catalogue and the server's settings allow it too."""

    http: Sequence[str] = ()  # hosts of its requests: [scheme://]host[:port], with *. for all names below one
    secrets: Sequence[str] = ()  # names of secrets that the runtime puts into headers of its requests
    topics: Sequence[str] | None = None  # topics that it may use: names, or beginnings with a *; None: any
    names: Sequence[str] | None = None  # names of contexts that it may use, likewise
    spawn: Sequence[str] | None = None  # names of programs that it may start, likewise

    def __post_init__(self) -> None:
        """Check the fields' types; what the patterns mean is checked at the launch.

        Raises:
            InvalidArgument: a field is no sequence of texts.
        """
        for name in self.__slots__:
            given = getattr(self, name)
            if given is None and name in SHARED:
                continue
            if isinstance(given, str) or given is None or not all(isinstance(text, str) for text in given):
                raise InvalidArgument(argument=f"capabilities.{name}", detail=f"{given!r} is no sequence of strings")


@dataclass(frozen=True, slots=True)
class Fork:
    """A recorded run whose first deliveries a new program is told, before it goes on live (docs/time-travel.md).

    Give either `program_id`, if the server's store has the run's journal, or `journal`.
    """

    deliveries: int  # how many are the recorded ones, at least 1
    program_id: str = ""
    journal: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            InvalidArgument: the number is out of range, or not exactly one journal is named.
        """
        check_number("fork.deliveries", self.deliveries, whole=True)
        if not 1 <= self.deliveries < 1 << 32:
            raise InvalidArgument(argument="fork.deliveries", detail=f"{self.deliveries}; at least 1 is told")
        if bool(self.program_id) == bool(self.journal):
            raise InvalidArgument(argument="fork", detail="give the id of a program, or a journal")


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One program to launch: give either `source`, or `inferlet`, the name of a program in the catalogue.

    With `fork`, source, arguments, model and pool are the recorded run's unless they are given.
    """

    source: Source | None = None
    inferlet: str = ""
    args: Sequence[str] = ()
    model: str = ""  # "" the default model
    limits: Limits = Limits()
    tenant: str = ""
    pool: str = ""  # "" any pool that the tenant may use; POOL of its own, TENANT/POOL, or TENANT/* for all of a tenant
    idempotency_key: str = ""  # a second launch with the same key returns the program of the first
    durable: bool = True  # False: the same as durability "off"
    durability: str = (
        ""  # "on", "degrade", "off" (`DURABILITIES`); "": the inferlet's, else the pool's, else the runtime's
    )
    capabilities: Capabilities | None = None  # None: those of the inferlet's entry, and none of a source
    session: str = ""  # runs of one session count as one program where the order of programs is decided; "": none
    parent_session: str = ""  # the session that this one belongs to
    ends_session: bool = False  # the session ends with this run
    seed: bytes | int | None = None  # number or 16 bytes that decide the program's randomness; None: a random seed
    fork: Fork | None = None  # begin as this recorded run did

    def __post_init__(self) -> None:
        """Check the fields' types.

        Raises:
            InvalidArgument: a field has the wrong type, or both `source` and `inferlet` are given.
        """
        if self.source is not None:
            check_source(self.source)
        check_texts(inferlet=self.inferlet, model=self.model, pool=self.pool)
        check_texts(tenant=self.tenant, idempotency_key=self.idempotency_key)
        if self.source is not None and self.inferlet:
            raise InvalidArgument(argument="inferlet", detail="there is a source, too", remedy="Give exactly one.")
        check_kind(Limits, limits=self.limits)
        if self.capabilities is not None:
            check_kind(Capabilities, capabilities=self.capabilities)
        if self.fork is not None:
            check_kind(Fork, fork=self.fork)
        check_kind(bool, durable=self.durable)
        check_texts(durability=self.durability, session=self.session, parent_session=self.parent_session)
        check_durability(self.durability)
        if self.parent_session and not self.session:
            raise InvalidArgument(argument="parent_session", detail="there is no session", remedy="Give both.")
        if not self.durable and self.durability not in ("", "off"):
            detail = f"{self.durability!r} contradicts durable=False"
            raise InvalidArgument(argument="durability", detail=detail, remedy="Give one of them.")
        if isinstance(self.args, str) or not all(isinstance(arg, str) for arg in self.args):
            raise InvalidArgument(argument="args", detail=f"{self.args!r} is no sequence of strings")
        for arg in self.args:
            check_texts(args=arg)
        seed_bytes(self.seed)


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """A program in a listing."""

    program_id: str
    name: str
    state: str  # "starting", "running", "recovering", "succeeded", "failed"
    tenant: str
    started_unix_s: float
    age_s: float
    usage: Usage
    error: TartletError | None
    model: str
    pages: int  # KV pages that the program holds now
    runtime: str = ""  # address of the runtime that runs the program
    idempotency_key: str = ""  # the key of its launch; "": none
    recovered_s: float = 0.0  # for which it stood still because a part of the system was gone
    parent: str = ""  # the id of the program that has started it; "": a client has
    pauses: tuple[Pause, ...] = ()  # the last 16 times for which it stood still, oldest first


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A named program in the catalogue."""

    name: str
    source: Source
    tenant: str = ""
    limits: Limits = Limits()
    model: str = ""
    description: str = ""
    pool: str = ""  # pool of launches that name none, as in `LaunchSpec`
    durability: str = ""  # of launches that say nothing, as in `LaunchSpec`
    capabilities: Capabilities = Capabilities()  # the most that its launches get

    def __post_init__(self) -> None:
        """Check the fields' types.

        Raises:
            InvalidArgument: a field has the wrong type.
        """
        check_source(self.source)
        check_texts(name=self.name, tenant=self.tenant, model=self.model, description=self.description, pool=self.pool)
        check_texts(durability=self.durability)
        check_durability(self.durability)
        check_kind(Limits, limits=self.limits)


@dataclass(frozen=True, slots=True)
class RuntimeState:
    """The state of a runtime and of the control that it is connected to."""

    version: str
    incarnation: str
    running: int
    capacity: int
    control_connected: bool
    control: dict[str, Any]  # control's state as JSON values; {}: not connected
    component: str  # digest of the Python guest component
    boundary: str  # "shim" or "ctypes"
    spares: int  # Python guests that are instantiated ahead of launches
    memory_bytes: int  # of the runtime with its programs and compilers, at most; 0: an older runtime
    memory_source: str  # of that bound: "setting", "cgroup" or "machine"
    memory_taken_bytes: dict[str, int]  # by use
