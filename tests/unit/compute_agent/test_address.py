from collections.abc import Mapping
import dataclasses
import pathlib
import socket

from compute_agent.inventory import address
from tests.unit.compute_agent import trees

ROUTE_HEAD = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
ZERO = "0" * 32


@dataclasses.dataclass(frozen=True)
class Own:
    address: str
    family: int = socket.AF_INET


def route(
    name: str, *, metric: int, flags: str = "0003", target: str = ZERO[:8]
) -> str:
    return f"{name}\t{target}\t010200C0\t{flags}\t0\t0\t{metric}\t{target}\t0\t0\t0\n"


def route6(name: str, *, metric: str, flags: str = "00000003") -> str:
    fields = (ZERO, "00", ZERO, "00", ZERO, metric, "00000001", "00000000", flags, name)
    return " ".join(fields) + "\n"


def find(
    root: pathlib.Path, files: Mapping[str, str], found: Mapping[str, list[str]]
) -> str:
    trees.plant(root, files)
    return address.find(
        root, lambda: {name: [Own(a) for a in own] for name, own in found.items()}
    )


LO = {"lo": ["127.0.0.1"]}


def test_the_cheapest_default_route_names_the_interface(tmp_path: pathlib.Path) -> None:
    routes = (
        ROUTE_HEAD
        + route("wlan0", metric=600)
        + route("eth1", metric=100)
        + route("eth0", metric=0, target="000200C0")
        + route("dead0", metric=1, flags="0203")
        + route("down0", metric=2, flags="0002")
    )
    names = ("wlan0", "eth1", "eth0", "dead0", "down0")
    found = {name: [f"192.0.2.{n}"] for n, name in enumerate(names, 1)}
    assert find(tmp_path, {"proc/net/route": routes}, LO | found) == "192.0.2.2"


def test_ipv6_where_there_is_no_ipv4_lasting_addresses_only(
    tmp_path: pathlib.Path,
) -> None:
    files = {
        "proc/net/route": ROUTE_HEAD,
        "proc/net/ipv6_route": route6("lo", metric="ffffffff", flags="00200200")
        + route6("eth0", metric="00000400"),
        "proc/net/if_inet6": f"{'0' * 31}1 01 80 10 80       lo\n"
        "fe8000000000000000fc00fffe000001 02 40 20 80     eth0\n"
        "20010db80000000000000000000000aa 02 40 00 01     eth0\n"
        "20010db80000000000000000000000bb 02 40 00 20     eth0\n"
        "20010db80000000000000000000000cc 02 40 00 80     eth0\n",
    }
    assert find(tmp_path, files, LO | {"eth0": []}) == "2001:db8::cc"


def test_without_a_route_hardware_comes_before_bridges(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sys/class/net/eth5/device").mkdir(parents=True)
    found = {"docker0": ["172.17.0.1"], "eth5": ["192.0.2.5"]}
    assert find(tmp_path, {}, LO | found) == "192.0.2.5"


def test_loopback_only_when_there_is_nothing_else(tmp_path: pathlib.Path) -> None:
    assert find(tmp_path, {}, LO | {"eth0": ["169.254.3.4"]}) == "127.0.0.1"
    assert find(tmp_path, {}, {}) == "127.0.0.1"
