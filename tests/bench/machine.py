"""The machine that figures were taken on."""

from importlib import metadata
import os
import pathlib
import platform
from typing import Any

import psutil

_LIBRARIES = (
    "amqp", "kombu", "oslo.db", "oslo.messaging", "oslo.service",
    "oslo.versionedobjects", "PyMySQL", "SQLAlchemy", "tooz",
)  # fmt: skip


def describe(servers: dict[str, str]) -> dict[str, Any]:
    """Return cores, processor, memory, system and versions.

    :param servers: version of each server by name
    """
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "servers": servers,
        "libraries": {name: metadata.version(name) for name in _LIBRARIES},
    }


def _cpu_model() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
