"""A program of several files: imports its modules from an archive in memory, in the sandbox and outside it.

The archive is a zip that the host has checked. Modules are looked for beside the file with which the program begins,
then in the program's directory, then among its packages. Tracebacks name files as the directory has them.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import json
import marshal
import re
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.metadata import Distribution, DistributionFinder, PathDistribution
from importlib.resources.abc import TraversableResources
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

MAGIC = "PK\x03\x04"
MANIFEST = "tartlet.json"
PACKAGES = "site-packages/"
Codes: TypeAlias = dict[str, bytes]
"""Compiled modules by their paths, as `marshal` writes them."""
_ARCHIVE = re.compile(r"\.(zip|tartlet|py)$")


def is_bundle(source: str) -> bool:
    """Return whether a source is an archive, with one character for each byte."""
    return source.startswith(MAGIC)


class Bundle(MetaPathFinder):
    """The files of a program, and the finder of its modules.

    Args:
        source: the archive, with one character for each byte.
        filename: the name of the directory or of the archive.
        codes: modules that are compiled already.
    """

    def __init__(self, source: str, filename: str, codes: Codes | None = None) -> None:
        self.codes = codes or {}
        self._zip = zipfile.ZipFile(io.BytesIO(source.encode("latin-1")))
        self._names = frozenset(self._zip.namelist())
        self._folders = {folder for name in self._names for folder in _folders_of(name)}
        self.root = _ARCHIVE.sub("", filename).rstrip("/") + "/"
        manifest = json.loads(self._zip.read(MANIFEST)) if MANIFEST in self._names else {}
        self._entry: str = manifest.get("entry", "main.py")
        home = self._entry.rpartition("/")[0]
        self._roots = tuple(dict.fromkeys((f"{home}/" if home else "", "", PACKAGES)))

    @property
    def entry(self) -> str:
        """The path of the file with which the program begins, as tracebacks show it."""
        return self.root + self._entry

    def entry_source(self) -> str:
        """Return the text of that file, as its first lines say that it is encoded."""
        return importlib.util.decode_source(self.read(self._entry))

    def sources(self) -> Iterator[tuple[str, bytes]]:
        """Yield path and content of the program's own modules, without its packages."""
        for name in sorted(self._names):
            if name.endswith(".py") and not name.startswith(PACKAGES):
                yield self.root + name, self.read(name)

    def read(self, name: str) -> bytes:
        """Return the content of a file by its name in the archive.

        Raises:
            FileNotFoundError: there is none.
        """
        if name not in self._names:
            raise FileNotFoundError(2, "No such file in the program's archive", self.root + name)
        with self._zip.open(name) as file:
            return file.read(self._zip.getinfo(name).file_size)  # an archive may hold more than it declares

    def folder(self, name: str) -> zipfile.Path:
        """Return a folder of the archive, for those who read data files."""
        return zipfile.Path(self._zip, name)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let imports find the modules; forget these afterwards."""
        before = set(sys.modules)
        finders = sys.meta_path
        own = importlib.machinery.PathFinder
        finders.insert(finders.index(own) if own in finders else len(finders), self)
        try:
            yield
        finally:
            finders.remove(self)
            for name in set(sys.modules) - before:
                if isinstance(getattr(sys.modules[name], "__loader__", None), _Loader):
                    del sys.modules[name]

    # ---- what importlib asks for ----

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module; a folder without `__init__.py` is a package of a namespace."""
        last = fullname.rpartition(".")[2]
        if path is None:
            roots: Sequence[str] = self._roots
        else:
            roots = [f"{place.removeprefix(self.root)}/" for place in path if place.startswith(self.root)]
        folders = []
        for root in roots:
            package, module, folder = f"{root}{last}/__init__.py", f"{root}{last}.py", f"{root}{last}"
            if package in self._names:
                return self._spec(fullname, package, folder)
            if module in self._names:
                return self._spec(fullname, module, "")
            if folder in self._folders:
                folders.append(self.root + folder)
        if not folders:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = folders
        return spec

    def _spec(self, fullname: str, name: str, folder: str) -> importlib.machinery.ModuleSpec:
        loader = _Loader(self, name)
        spec = importlib.machinery.ModuleSpec(fullname, loader, origin=self.root + name, is_package=bool(folder))
        spec.has_location = True
        if folder:
            spec.submodule_search_locations = [self.root + folder]
        return spec

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        """Yield the metadata of the archive's packages, for `importlib.metadata.version`."""
        wanted = None if context is None or context.name is None else _normal(context.name)
        for folder in sorted(self._folders):
            if folder.startswith(PACKAGES) and folder.endswith(".dist-info") and folder.count("/") == 1:
                name = folder.removeprefix(PACKAGES).partition("-")[0]
                if wanted is None or _normal(name) == wanted:
                    yield PathDistribution(self.folder(f"{folder}/"))


class _Loader(SourceLoader):
    """Loads one module, and the data files beside it."""

    def __init__(self, bundle: Bundle, name: str) -> None:
        self._bundle = bundle
        self._name = name

    def get_filename(self, fullname: str) -> str:
        """Return the path, as tracebacks show it."""
        return self._bundle.root + self._name

    def get_data(self, path: str | bytes) -> bytes:
        """Return a file by its path."""
        text = path.decode() if isinstance(path, bytes) else path
        return self._bundle.read(text.removeprefix(self._bundle.root))

    def source_to_code(self, data: Any, path: Any, *more: Any, **options: Any) -> CodeType:  # type: ignore[override]
        """Return the code of a module."""
        code = self._bundle.codes.get(path)
        if code is None:
            compiled: CodeType = super().source_to_code(data, path, *more, **options)
        else:
            compiled = marshal.loads(code)  # noqa: S302 - the host has it of `compiled`
        return compiled

    def set_data(self, *_: Any, **__: Any) -> None:
        """No-op: compiled code is kept nowhere."""

    def get_resource_reader(self, fullname: str) -> TraversableResources:
        """Return what `importlib.resources` reads a package's data files with."""
        return _Resources(self._bundle, self._name.rpartition("/")[0])


class _Resources(TraversableResources):
    def __init__(self, bundle: Bundle, folder: str) -> None:
        self._bundle = bundle
        self._folder = folder

    def files(self) -> Any:
        return self._bundle.folder(f"{self._folder}/" if self._folder else "")


def _folders_of(name: str) -> Iterator[str]:
    while name := name.rpartition("/")[0]:
        yield name


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()
