"""A legacy agent: version 1.0 of the objects, written by hand, and nothing of ours.

It speaks to topic ``conductor`` with oslo.messaging alone. Objects are dictionaries
here, with the fields of Juno's two tables: a node has service_id and no host. It finds
or creates its service and its node, then beats as Nova's db driver does (report_count
+ 1, saved), and does what is asked for on its standard input, one JSON list a line:

    [method, version of the interface, arguments]

Answers and what it did come on standard output, one JSON object a line.
"""

import argparse
import contextlib
import json
import sys
import threading
from typing import Any

from oslo_config import cfg
import oslo_messaging

BINARY = "nova-compute"
NODE = {
    "vcpus": 8,
    "memory_mb": 16384,
    "local_gb": 200,
    "vcpus_used": 0,
    "memory_mb_used": 512,
    "local_gb_used": 0,
    "hypervisor_type": "QEMU",
    "hypervisor_version": 2001002,
    "free_ram_mb": 15872,
    "free_disk_gb": 200,
    "current_workload": 0,
    "running_vms": 0,
    "cpu_info": "{}",
}


class Peer:
    """One legacy agent.

    :param url: the broker's
    """

    def __init__(self, url: str, host: str, node: str) -> None:
        # The global one, as Nova's processes have it.
        conf = cfg.CONF  # noqa: TID251
        conf([], default_config_files=[])
        transport = oslo_messaging.get_rpc_transport(conf, url)
        self._target = oslo_messaging.Target(topic="conductor", version="1.0")
        self._client = oslo_messaging.get_rpc_client(transport, self._target, timeout=3)
        self._host = host
        self._node = node
        self._lock = threading.Lock()
        self.beats = threading.Event()
        self.beats.set()
        self.service: dict[str, Any] = {}

    def say(self, **what: Any) -> None:
        with self._lock:
            print(json.dumps(what), flush=True)

    def call(self, method: str, version: str = "1.0", **args: Any) -> Any:
        return self._client.prepare(version=version).call({}, method, **args)

    def get(self, objname: str, objmethod: str, *args: Any) -> dict[str, Any] | None:
        """Return an object's data, None if there is none."""
        try:
            answer = self.call(
                "object_class_action_versions",
                objname=objname,
                objmethod=objmethod,
                object_versions={objname: "1.0"},
                args=list(args),
                kwargs={},
            )
        except oslo_messaging.RemoteError as exc:
            if exc.exc_type in {"ServiceNotFound", "ComputeNodeNotFound"}:
                return None
            raise
        assert answer["versioned_object.version"] == "1.0", answer
        return dict(answer["versioned_object.data"])

    def act(
        self, objname: str, objmethod: str, data: dict[str, Any], changes: list[str]
    ) -> dict[str, Any]:
        """Run a method of an object; return its data afterwards."""
        updates, _ = self.call(
            "object_action",
            objinst={
                "versioned_object.name": objname,
                "versioned_object.namespace": "musterbook",
                "versioned_object.version": "1.0",
                "versioned_object.data": data,
                "versioned_object.changes": changes,
            },
            objmethod=objmethod,
            args=[],
            kwargs={},
        )
        updates.pop("obj_what_changed")
        return {**data, **updates}

    def start(self) -> None:
        """Find or create the two records, as Juno's agent does at its start."""
        for _ in range(20):  # until a conductor answers
            with contextlib.suppress(oslo_messaging.MessagingTimeout):
                self.call("ping")
                break
        found = self.get("Service", "get_by_host_and_binary", self._host, BINARY)
        if found is None:
            new = {
                "host": self._host, "binary": BINARY, "topic": "compute",
                "report_count": 0,
            }  # fmt: skip
            found = self.act("Service", "create", new, sorted(new))
        self.service = found
        node = self.get("ComputeNode", "get_by_service_id", found["id"])
        if node is None:
            new = {**NODE, "service_id": found["id"], "hypervisor_hostname": self._node}
            node = self.act("ComputeNode", "create", new, sorted(new))
        self.say(service=self.service, node=node)

    def beat(self) -> None:
        count = self.service["report_count"] + 1
        data = {**self.service, "report_count": count}
        try:
            self.service = self.act("Service", "save", data, ["report_count"])
        except (oslo_messaging.MessagingException, oslo_messaging.RemoteError) as exc:
            print(f"no beat: {type(exc).__name__}", file=sys.stderr, flush=True)

    def beat_on(self, interval: float, stopping: threading.Event) -> None:
        while not stopping.wait(interval):
            if self.beats.is_set():
                self.beat()

    def ask(self, method: str, version: str, args: dict[str, Any]) -> None:
        try:
            self.say(answer=self.call(method, version, **args))
        except oslo_messaging.RemoteError as exc:
            self.say(error=exc.exc_type, message=exc.value)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("url", "host", "node"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--interval", type=float, required=True)
    given = parser.parse_args()
    peer = Peer(given.url, given.host, given.node)
    peer.start()
    stopping = threading.Event()
    beater = threading.Thread(
        target=peer.beat_on, args=(given.interval, stopping), name="beats"
    )
    beater.start()
    for line in sys.stdin:
        method, version, args = json.loads(line)
        peer.ask(method, version, args)
    stopping.set()
    beater.join()


if __name__ == "__main__":
    main()
