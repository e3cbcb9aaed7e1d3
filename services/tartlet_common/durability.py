"""What becomes of a program whose journal can't be stored: the modes of a launch."""

from __future__ import annotations

from typing import Final

from tartlet_common.errors.registry import InvalidArgument

DURABILITIES: Final = ("on", "degrade", "off")
"""on: the program ends. degrade: the program goes on without its journal. off: the program never has one."""


def check_durability(mode: str) -> None:
    """Check the mode of a launch; "" leaves the choice to somebody else.

    Raises:
        InvalidArgument: the mode is unknown.
    """
    if mode not in ("", *DURABILITIES):
        detail = f"{mode!r} is none of {', '.join(DURABILITIES)}"
        raise InvalidArgument(argument="durability", detail=detail)
