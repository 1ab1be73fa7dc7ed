import pathlib

import pytest

from compute_agent.inventory import cpu
from tests.unit.compute_agent import trees


def read(root: pathlib.Path, machine: str = "x86_64") -> dict[str, object]:
    return cpu.info(root, machine, cpu.online(root))


def test_two_sockets_of_two_cores_of_two_threads(tmp_path: pathlib.Path) -> None:
    assert read(trees.plant(tmp_path, trees.SERVER)) == {
        "arch": "x86_64",
        "model": "Intel(R) Xeon(R) Gold 6430",
        "vendor": "GenuineIntel",
        "topology": {"sockets": 2, "cores": 2, "threads": 2},
        "features": ["avx", "fpu", "sse2"],
    }


def test_offline_cpus_do_not_count(tmp_path: pathlib.Path) -> None:
    # With its second thread offline a core has one; Linux then lists one sibling.
    root = trees.plant(
        tmp_path,
        trees.SERVER,
        {"sys/devices/system/cpu/online": "0-3\n"},
        *(trees.topology(n, socket=n // 2, siblings=str(n)) for n in range(4)),
    )
    assert cpu.online(root) == frozenset(range(4))
    assert read(root)["topology"] == {"sockets": 2, "cores": 2, "threads": 1}


def test_features_are_those_of_every_cpu(tmp_path: pathlib.Path) -> None:
    root = trees.plant(
        tmp_path,
        trees.SERVER,
        {
            "proc/cpuinfo": trees.x86_cpuinfo(0, "fpu avx512f sse2")
            + trees.x86_cpuinfo(1, "sse2 fpu")
        },
    )
    assert read(root)["features"] == ["fpu", "sse2"]


@pytest.mark.parametrize(
    ("implementer", "part", "vendor", "model"),
    [
        ("0x41", "0xd0c", "ARM", "Neoverse-N1"),
        ("0xc0", "0xac3", "Ampere", "Ampere-1"),
        ("0x41", "0xfff", "ARM", "part 0xfff"),
        ("0x99", "0x001", "0x99", "part 0x001"),
    ],
)
def test_aarch64(
    tmp_path: pathlib.Path, implementer: str, part: str, vendor: str, model: str
) -> None:
    text = trees.ARM_CPUINFO.format(implementer=implementer, part=part)
    root = trees.plant(
        tmp_path,
        {"proc/cpuinfo": text, "sys/devices/system/cpu/online": "0\n"},
        trees.topology(0, socket=-1, siblings="0"),
    )
    assert read(root, "aarch64") == {
        "arch": "aarch64",
        "model": model,
        "vendor": vendor,
        "topology": {"sockets": 1, "cores": 1, "threads": 1},
        "features": ["aes", "asimd", "evtstrm", "fp"],
    }


def test_aarch64_unknown_part_is_named_by_the_device_tree(
    tmp_path: pathlib.Path,
) -> None:
    text = trees.ARM_CPUINFO.format(implementer="0x41", part="0xffe")
    root = trees.plant(
        tmp_path,
        {
            "proc/cpuinfo": text,
            "proc/device-tree/cpus/cpu@0/compatible": "arm,cortex-x9\0arm,armv8\0",
        },
    )
    assert read(root, "aarch64")["model"] == "arm,cortex-x9"


def test_power_calls_its_model_cpu(tmp_path: pathlib.Path) -> None:
    text = "processor\t: 0\ncpu\t\t: POWER9, altivec supported\n\nplatform: pSeries\n"
    root = trees.plant(tmp_path, {"proc/cpuinfo": text})
    assert read(root, "ppc64le")["model"] == "POWER9, altivec supported"


def test_without_any_file(tmp_path: pathlib.Path) -> None:
    assert cpu.online(tmp_path) == frozenset()
    assert cpu.allowed(tmp_path) is None
    assert read(tmp_path, "riscv64") == {
        "arch": "riscv64",
        "model": "unknown",
        "vendor": "unknown",
        "topology": {"sockets": 1, "cores": 1, "threads": 1},
        "features": [],
    }


def test_without_sys_the_cpus_are_those_of_cpuinfo(tmp_path: pathlib.Path) -> None:
    text = "".join(trees.x86_cpuinfo(n) for n in (0, 2, 3))
    root = trees.plant(tmp_path, {"proc/cpuinfo": text})
    assert cpu.online(root) == frozenset({0, 2, 3})
    assert read(root)["topology"] == {"sockets": 1, "cores": 3, "threads": 1}
