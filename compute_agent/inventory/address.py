"""Under which address this host is reached, without sending a packet."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import ipaddress
import pathlib
import socket
from typing import Protocol

from compute_agent.inventory import kernel

LOOPBACK = "127.0.0.1"

# linux/route.h and linux/if_addr.h
_RTF_UP = 0x1
_RTF_REJECT = 0x200
_IFA_F_TEMPORARY = 0x01
_IFA_F_DEPRECATED = 0x20


class Address(Protocol):
    """What of psutil's addresses is used."""

    @property
    def family(self) -> int:
        """An AF_ constant."""

    @property
    def address(self) -> str:
        """The address as text."""


Interfaces = Callable[[], Mapping[str, Sequence[Address]]]


def find(root: pathlib.Path, interfaces: Interfaces) -> str:
    """Return the host's own address.

    In this order: IPv4, then IPv6, of the interface with the default route; any
    other that isn't local to the machine or the link, hardware before bridges and
    the like; the loopback address.

    :param interfaces: returns the addresses by interface, as psutil.net_if_addrs
    """
    found = interfaces()
    default = _ipv4_default(root)
    candidates = [
        *_ipv4(found.get(default, ())),
        *_ipv6(root, _ipv6_default(root)),
    ]
    for name in sorted(found, key=lambda name: (_is_virtual(root, name), name)):
        candidates += [*_ipv4(found[name]), *_ipv6(root, name)]
    return candidates[0] if candidates else LOOPBACK


def _ipv4(addresses: Sequence[Address]) -> list[str]:
    texts = [a.address for a in addresses if a.family == socket.AF_INET]
    return [text for text in texts if _is_reachable(ipaddress.ip_address(text))]


def _is_reachable(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)


def _ipv6(root: pathlib.Path, interface: str) -> list[str]:
    """Return the lasting addresses; temporary ones change by themselves."""
    found: list[str] = []
    for line in (kernel.text(root / "proc/net/if_inet6") or "").splitlines():
        number, _, _, _, flags, name = line.split()
        address = ipaddress.IPv6Address(int(number, 16))
        passing = int(flags, 16) & (_IFA_F_TEMPORARY | _IFA_F_DEPRECATED)
        if name == interface and not passing and _is_reachable(address):
            found.append(str(address))
    return found


def _ipv4_default(root: pathlib.Path) -> str:
    """Return the interface of the cheapest default route, "" without one."""
    routes: list[tuple[int, str]] = []
    for line in (kernel.text(root / "proc/net/route") or "").splitlines()[1:]:
        name, target, _, flags, _, _, metric, mask, *_ = line.split()
        if int(target, 16) == int(mask, 16) == 0 and _is_usable(int(flags, 16)):
            routes.append((int(metric), name))
    return min(routes, default=(0, ""))[1]


def _ipv6_default(root: pathlib.Path) -> str:
    routes: list[tuple[int, str]] = []
    for line in (kernel.text(root / "proc/net/ipv6_route") or "").splitlines():
        target, prefix, _, _, _, metric, _, _, flags, name = line.split()
        # Ones that refuse everything are listed on lo.
        if int(target, 16) == int(prefix, 16) == 0 and _is_usable(int(flags, 16)):
            routes.append((int(metric, 16), name))
    return min(routes, default=(0, ""))[1]


def _is_usable(flags: int) -> bool:
    return flags & (_RTF_UP | _RTF_REJECT) == _RTF_UP


def _is_virtual(root: pathlib.Path, interface: str) -> bool:
    return not (root / "sys/class/net" / interface / "device").exists()
