"""What a hollow host has: the fake source's file, with the host's name filled in."""

import pathlib
from typing import Any

from oslo_config import cfg

from compute_agent.inventory import fake

#: Stands for the host in the names of the file's nodes.
HOST = "{host}"
#: Without a file.
_NODES = {HOST: {"vcpus": 64, "memory_mb": 262_144, "local_gb": 4_000}}


class HollowInventory(fake.FakeInventory):
    """Reports the nodes of ``[inventory_fake]file``, without one a single node.

    :param host: whose
    """

    def __init__(self, conf: cfg.ConfigOpts, host: str) -> None:
        super().__init__(conf)
        self._host = host

    def _file(self, conf: cfg.ConfigOpts) -> pathlib.Path:
        return pathlib.Path(conf.inventory_fake.file or "")

    def _load(self) -> dict[str, Any]:
        content = super()._load() if self._path.name else {"nodes": _NODES}
        nodes = content.get("nodes")
        if not isinstance(nodes, dict):
            return content  # said by the caller
        named = {name.replace(HOST, self._host): node for name, node in nodes.items()}
        return content | {"nodes": named}
