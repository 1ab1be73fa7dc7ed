"""The compute nodes of the RPC benches: all columns filled, as large as real ones."""

import json
import random
from typing import Any

from musterbook.context import RequestContext
from objects import compute_node as compute_node_obj

_CELLS = 2
_SPECS = [["x86_64", "kvm", "hvm"], ["i686", "kvm", "hvm"], ["x86_64", "qemu", "hvm"],
          ["i686", "qemu", "hvm"]]  # fmt: skip


def identity(number: int) -> tuple[str, str]:
    """Return host and node name of the node with this number."""
    return f"host-{number:05}", f"node-{number:05}.example.org"


def new(context: RequestContext, number: int) -> compute_node_obj.ComputeNode:
    """Return a node that isn't stored yet."""
    host, name = identity(number)
    node = compute_node_obj.ComputeNode()
    node._context = context
    for field, value in {"host": host, "hypervisor_hostname": name, **_FILLED}.items():
        setattr(node, field, value)
    return node


def changes(rng: random.Random) -> dict[str, int]:
    """Return five fields with values that differ from the last ones.

    Two of them have free amounts follow.
    """
    return {
        "vcpus": rng.randrange(65),
        "memory_mb": rng.randrange(262_145),
        "local_gb": rng.randrange(4_001),
        "running_vms": rng.randrange(200),
        "current_workload": rng.randrange(100),
    }


def _text(value: Any, size: int) -> str:
    """Return the value as JSON, filled up to a size in bytes."""
    bare = len(json.dumps({**value, "filler": ""}))
    return json.dumps({**value, "filler": "x" * (size - bare)})


_FILLED: dict[str, Any] = {
    "vcpus": 64,
    "memory_mb": 262_144,
    "local_gb": 4_000,
    "hypervisor_type": "QEMU",
    "hypervisor_version": 8_002_002,
    "disk_available_least": 3_500,
    "host_ip": "192.0.2.17",
    "supported_instances": json.dumps(_SPECS),
    "metrics": "[]",
    "extra_resources": "{}",
    "cpu_allocation_ratio": 4.0,
    "ram_allocation_ratio": 1.0,
    "disk_allocation_ratio": 1.0,
    "cpu_info": _text({"arch": "x86_64", "vendor": "AMD", "model": "EPYC"}, 1_100),
    "pci_stats": _text({"pools": []}, 900),
    "numa_topology": _text(
        {"cells": [{"id": i, "memory": 131_072} for i in range(_CELLS)]}, 4_200
    ),
    "stats": {f"num_{i}": "x" * 20 for i in range(12)},  # 0.4 kB
}
