"""Which IP addresses a user's URL may lead to. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from tartlet_common.errors.registry import InvalidConfig

_NUMBERS: Final = re.compile(r"[0-9.]+(:[0-9]+)?")
"""What no host's name is: its last part would be a number."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_SPECIAL_V4: Final = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",  # this host
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared by carriers; a cloud's metadata is here too
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # a cloud's metadata, at an address that is formally public
            "169.254.0.0/16",  # link-local, with most clouds' metadata
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments, with a cloud's metadata
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # relays to IPv6
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
"""IANA's registry of special IPv4 addresses, and one address of a cloud."""
_PUBLIC_V6: Final = ipaddress.IPv6Network("2000::/3")
"""All that IANA gives out as global unicast; loopback, unique-local, link-local and multicast lie elsewhere."""
_SPECIAL_V6: Final = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # protocol assignments, with Teredo's embedded IPv4
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4's embedded IPv4
            "3fff::/20",  # documentation
        ),
    )
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""The well-known prefix by which a host without IPv4 reaches the IPv4 address in the last four bytes."""


def public(address: Address) -> bool:
    """Whether an address belongs to the public internet, by itself or as the IPv4 address that it embeds.

    Example:
        >>> [public(ipaddress.ip_address(text)) for text in ("8.8.8.8", "::ffff:10.0.0.1", "64:ff9b::808:808")]
        [True, False, True]
    """
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _SPECIAL_V4)
    if address.ipv4_mapped is not None:
        return public(address.ipv4_mapped)
    if address in _NAT64:
        return public(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return address in _PUBLIC_V6 and not any(address in network for network in _SPECIAL_V6)


@dataclass(frozen=True, slots=True)
class Exceptions:
    """The hosts and networks that an administrator opens although their addresses aren't public."""

    hosts: Sequence[str] = ()  # patterns, as of `fnmatch`, in lower case
    networks: Sequence[Network] = ()

    @staticmethod
    def of(entries: Iterable[str], role: str = "operator", setting: str = "source_private_hosts") -> Exceptions:
        """Read entries: a CIDR or an IP address is a network, everything else a pattern of hosts.

        An IP address with a port is a host: the address in a URL, and not a name that stands for it.

        Args:
            entries: the parts of a setting.
            role: whose setting, for the error.
            setting: its name, for the error.

        Raises:
            InvalidConfig: an entry can be neither, such as a network of 33 bits or an address of three numbers.

        Example:
            >>> Exceptions.of(["10.1.0.0/16", "Git.example.org"])
            Exceptions(hosts=('git.example.org',), networks=(IPv4Network('10.1.0.0/16'),))
        """
        hosts, networks = [], []
        for entry in entries:
            try:
                networks.append(ipaddress.ip_network(entry.replace("[", "").replace("]", ""), strict=False))
            except ValueError as e:
                host, _, port = entry.rpartition(":")
                if port.isdecimal() and _is_address(host.strip("[]")):
                    hosts.append(f"{ipaddress.ip_address(host.strip('[]'))}:{port}")
                elif "/" in entry or _NUMBERS.fullmatch(entry):
                    raise InvalidConfig(role=role, detail=f"{setting}: {entry!r}: {e}") from e
                else:
                    hosts.append(entry.lower())
        return Exceptions(tuple(hosts), tuple(networks))

    def open(self, host: str, port: int) -> bool:
        """Whether the administrator names this host, with or without the port, whatever its addresses are."""
        names = (host.lower(), f"{host.lower()}:{port}")
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.hosts)

    def allow(self, address: Address) -> bool:
        """Whether a connection to an address may be made: it is public, or in a network that is named."""
        if isinstance(address, ipaddress.IPv6Address):
            if address.ipv4_mapped is not None:
                return self.allow(address.ipv4_mapped)
            address = ipaddress.IPv6Address(int(address))  # without a scope, which no network has
        return public(address) or any(address in network for network in self.networks)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
