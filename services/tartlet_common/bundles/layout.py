"""The form of an archive: a zip with a manifest in front, the program's own files, and its packages in a folder."""

from __future__ import annotations

from typing import Final

MAGIC: Final = b"PK\x03\x04"
"""The first bytes of every archive. No Python text and no Wasm module begins so."""
MANIFEST: Final = "tartlet.json"
"""The first file: `{"bundle": 1, "entry": "main.py"}`. An archive without one begins at `main.py`."""
VERSION: Final = 1
ENTRY: Final = "main.py"
PACKAGES: Final = "site-packages/"
"""Where the packages of requirements.txt are."""
SUFFIXES: Final = (".zip", ".tartlet")

MAX_FILES: Final = 4096
MAX_NAME_BYTES: Final = 240
MAX_UNPACKED_BYTES: Final = 64 << 20
"""All files together, as the archive's directory declares them. The sandbox reads no more of a file than that."""
MAX_MANIFEST_BYTES: Final = 4096

NATIVE_SUFFIXES: Final = (".so", ".pyd", ".dylib", ".dll")


def is_bundle(data: bytes) -> bool:
    r"""Return whether a program's source is an archive of files.

    Example:
        >>> is_bundle(b"PK\x03\x04..."), is_bundle(b"async def main(): ...")
        (True, False)
    """
    return data.startswith(MAGIC)


def guest_text(source: bytes) -> str:
    r"""Return a source in the form in which the Python guest takes it: an archive travels as one character a byte.

    Example:
        >>> guest_text("é = 1".encode()), guest_text(b"PK\x03\x04\xff")
        ('é = 1', 'PK\x03\x04ÿ')

    Raises:
        UnicodeDecodeError: a text isn't UTF-8.
    """
    return source.decode("latin-1") if is_bundle(source) else source.decode()
