"""The check of a connection's address, at the place where its socket is made."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from tartlet_common.egress.addresses import Exceptions


class AddressRefused(OSError):
    """The address isn't public, and no exception of the administrator's allows it."""

    def __init__(self) -> None:
        """The text names no address: it would tell users what names mean inside the network."""
        super().__init__("its address is private or reserved")


def checked_socket(exceptions: Exceptions, info: tuple[Any, ...]) -> socket.socket:
    """Make the socket of a connection to an allowed address, the one that is connected to next.

    Args:
        exceptions: the addresses that are allowed although they aren't public.
        info: family, kind, protocol, canonical name and address, as `socket.getaddrinfo` gives them.

    Raises:
        AddressRefused: the address isn't allowed.
    """
    family, kind, protocol, _, address = info
    if not exceptions.allow(ipaddress.ip_address(address[0])):
        raise AddressRefused
    return socket.socket(family, kind, protocol)
