import datetime
import json
import os
import pathlib
import threading
import time
from typing import Any

import pytest

from compute_agent.inventory import fake
from compute_agent.inventory import source
from musterbook import errors
from tests.unit.compute_agent import trees

NODE = {"vcpus": 8, "memory_mb": 16384, "local_gb": 200}


UUID = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001"


class File:
    """The source's file, and a source that reads it."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.write({"nodes": {"node-a": NODE}})
        conf = trees.load_conf(inventory_fake__file=str(path))
        self.source = fake.FakeInventory(conf)

    def write(self, content: object) -> None:
        self.write_text(json.dumps(content))

    def write_text(self, text: str) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, self.path)

    def refused(self) -> str:
        with pytest.raises(errors.InventoryUnavailable) as caught:
            self.source.read()
        assert "\n" not in caught.value.message
        return caught.value.message


@pytest.fixture
def file(tmp_path: pathlib.Path) -> File:
    return File(tmp_path / "nodes.json")


def test_the_least_that_a_node_needs(file: File) -> None:
    node = file.source.read()["node-a"]
    assert (node.vcpus, node.memory_mb, node.local_gb) == (8, 16384, 200)
    assert node.hypervisor_type == "fake"
    assert file.source.read() == {"node-a": node}


def test_every_field(file: File) -> None:
    fields: dict[str, Any] = {
        **NODE,
        "disk_available_least": -3,
        "hypervisor_type": "QEMU",
        "hypervisor_version": 8002000,
        "cpu_info": {"model": "Neoverse-N1", "arch": "aarch64"},
        "host_ip": "2001:db8::1",
        "supported_instances": [["aarch64", "kvm", "hvm"]],
        "numa_topology": {"cells": []},
        "boot_id": "one",
        "booted_at": "2026-01-02T03:04:05.9Z",
        "custom_resources": {"CUSTOM_GPU": 4},
        "labels": {"rack": "r1"},
    }
    file.write({"nodes": {"node-a": fields}, "fault": None})
    node = file.source.read()["node-a"]
    for name in ("disk_available_least", "hypervisor_type", "host_ip", "boot_id"):
        assert getattr(node, name) == fields[name]
    assert node.cpu_info == '{"arch":"aarch64","model":"Neoverse-N1"}'
    assert node.supported_instances == '[["aarch64","kvm","hvm"]]'
    assert node.numa_topology == '{"cells":[]}'
    assert node.booted_at == datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert node.custom_resources == {"CUSTOM_GPU": 4}
    assert node.labels == {"rack": "r1"}


def test_a_change_shows_at_the_next_reading(file: File) -> None:
    file.write({"nodes": {f"node-{n}": {**NODE, "vcpus": n} for n in range(300)}})
    nodes = file.source.read()
    assert len(nodes) == 300
    assert nodes["node-299"].vcpus == 299
    file.write({"nodes": {}})
    assert file.source.read() == {}


def test_the_order_of_keys_changes_nothing(file: File) -> None:
    one = {"arch": "x", "model": "y"}
    file.write({"nodes": {"n": {**NODE, "cpu_info": one}}})
    before = file.source.read()
    file.write({"nodes": {"n": {**NODE, "cpu_info": dict(reversed(one.items()))}}})
    assert file.source.read() == before


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"vcpus": -1}, "node 'n': vcpus: is -1, less than 0"),
        ({"vcpus": True}, "node 'n': vcpus: is not a whole number"),
        ({"memory_mb": 1.5}, "node 'n': memory_mb: is not a whole number"),
        ({"memory_mb": "1"}, "node 'n': memory_mb: is not a whole number"),
        ({"local_gb": 2**31}, "node 'n': local_gb: is beyond 2147483647"),
        ({"ram": 1}, "node 'n': 'ram': is unknown"),
        ({"host_ip": "fe80::1%eth0"}, "node 'n': host_ip: is not an IP address"),
        ({"cpu_info": "text"}, "node 'n': cpu_info: is not an object"),
        ({"cpu_info": None}, "node 'n': cpu_info: is not the JSON of an object"),
        ({"supported_instances": {}}, "node 'n': supported_instances: is not a list"),
        ({"hypervisor_type": ""}, "node 'n': hypervisor_type: must have 1 to 255"),
        ({"uuid": "N1"}, "node 'n': uuid: is not a uuid in lower case"),
        ({"uuid": UUID.upper()}, "node 'n': uuid: is not a uuid in lower case"),
        ({"uuid": UUID.replace("-", "")}, "node 'n': uuid: is not a uuid in lower"),
        ({"roams": True}, "node 'n': roams: needs a uuid"),
        ({"uuid": UUID, "roams": 1}, "node 'n': roams: is not true or false"),
        ({"hypervisor_hostname": "m"}, "node 'n': 'hypervisor_hostname': is unknown"),
        ({"booted_at": 5}, "node 'n': booted_at: is not an instant such as 2026-"),
        ({"booted_at": "2026-01-02"}, "node 'n': booted_at: is not an instant with"),
        (
            {"booted_at": "2026-01-02T03:04:05Z"},
            "node 'n': booted_at: needs a boot_id",
        ),
        ({"labels": []}, "node 'n': labels: is not an object"),
        ({"labels": {"a": 1}}, "node 'n': labels: a: 1 is no value of a label"),
        ({"custom_resources": {"GPU": 1}}, "node 'n': custom_resources: 'GPU' is no"),
        (
            {"custom_resources": {"CUSTOM_A": 0.5}},
            "node 'n': custom_resources: CUSTOM_A: 0.5 is not a whole number",
        ),
        ({"used": 1}, "node 'n': used: must have exactly vcpus, memory_mb, local_gb"),
        ({"used": {"vcpus": 1}}, "node 'n': used: must have exactly vcpus, memory_mb"),
        (
            {"used": {"vcpus": 1, "memory_mb": -1, "local_gb": 1}},
            "node 'n': used: memory_mb: is -1, less than 0",
        ),
    ],
)
def test_a_field_that_cannot_be_used_is_named(
    file: File, fields: dict[str, object], reason: str
) -> None:
    file.write({"nodes": {"n": {**NODE, **fields}}})
    assert file.refused().startswith(f"inventory source fake: {reason}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON: Expecting property name"),
        ("\xff", "is not JSON: "),
        ("[" * 100000, "is not JSON: "),
        ("[]", "doesn't hold a JSON object"),
        ("{}", "nodes: is missing or not an object"),
        ('{"nodes": {}, "faults": 1}', "'faults': is unknown"),
        ('{"nodes": {"n": 1}}', "node 'n': is not an object"),
        ('{"nodes": {"n": {"vcpus": 1}}}', "node 'n': memory_mb: is missing"),
        ('{"nodes": {"n": {}, "n": {}}}', "'n' is there twice"),
        ('{"nodes": {}, "gone": "n"}', "gone: is not a list of names"),
        ('{"nodes": {}, "gone": [7]}', "gone: is not text"),
        ('{"nodes": {}, "gone": ["a b"]}', "gone: has the character ' '"),
        ('{"nodes": {}, "one_machine": "yes"}', "one_machine: is not true or false"),
        ('{"nodes": {}, "fault": "slow:-1"}', "fault: is not one of null, slow:"),
        ('{"nodes": {}, "fault": "slow:nan"}', "fault: is not one of null, slow:"),
        ('{"nodes": {}, "fault": ["raise"]}', "fault: is not one of null, slow:"),
    ],
)
def test_a_file_that_cannot_be_used(file: File, text: str, reason: str) -> None:
    file.path.write_text(text, encoding="latin-1")
    assert reason in file.refused()


def test_what_is_used(file: File) -> None:
    used = {"vcpus": 2, "memory_mb": 4096, "local_gb": 0}
    file.write({"nodes": {"n": {**NODE, "used": used}, "m": NODE}})
    found = file.source.read()
    assert found["n"].used == source.Usage(vcpus=2, memory_mb=4096, local_gb=0)
    assert found["m"].used is None


@pytest.mark.parametrize("name", ["", "a/b", "n" * 256, "größe", ".."])
def test_a_bad_node_name(file: File, name: str) -> None:
    file.write({"nodes": {name: NODE}})
    assert "hypervisor_hostname: " in file.refused()


def test_names_that_differ_in_case_only(file: File) -> None:
    file.write({"nodes": {"n": NODE, "N": NODE}})
    assert "node N: has the same name as node n" in file.refused()


def test_what_else_a_reading_says(file: File) -> None:
    file.write({"nodes": {"n": NODE}, "gone": ["m"], "one_machine": True})
    reading = file.source.read()
    assert isinstance(reading, source.Reading)
    assert reading.gone == {"m"}
    assert reading.one_machine is True
    file.write({"nodes": {"n": NODE}, "gone": ["N"]})
    assert "gone: has node N, which is there" in file.refused()
    file.write({"nodes": {"n": NODE, "m": NODE}, "one_machine": True})
    assert "one_machine: has 2 nodes" in file.refused()
    twin = {**NODE, "uuid": UUID}
    file.write({"nodes": {"n": twin, "m": twin}})
    assert "node m: has the same uuid as node n" in file.refused()


def test_a_missing_file(file: File) -> None:
    file.path.unlink()
    assert f"can't read {file.path}: No such file" in file.refused()


def test_a_missing_option() -> None:
    with pytest.raises(errors.ConfigurationError, match=r"\[inventory_fake\]file"):
        fake.FakeInventory(trees.load_conf())


def test_raise_is_not_an_error_of_ours(file: File) -> None:
    file.write({"nodes": {}, "fault": "raise"})
    with pytest.raises(RuntimeError):
        file.source.read()


def test_not_ready(file: File) -> None:
    file.write({"nodes": {}, "fault": "not-ready"})
    assert "is not ready" in file.refused()


def test_slow(file: File) -> None:
    file.write({"nodes": {"n": NODE}, "fault": "slow:0.2"})
    began = time.monotonic()
    assert list(file.source.read()) == ["n"]
    assert time.monotonic() - began >= 0.2


def test_steps_change_nodes_and_bring_faults_reading_by_reading(file: File) -> None:
    steps = [
        {},
        {"readings": 2, "nodes": {"a": {"memory_mb": 8192}}},
        {"fault": "not-ready"},
        {"nodes": {"b": None, "c": NODE}, "gone": ["b"]},
    ]
    content = {"nodes": {"a": NODE, "b": NODE}, "steps": steps}
    file.write(content)
    found: list[object] = []
    for _ in range(6):
        try:
            reading = source.check(file.source.read())
            sizes = {name: node.memory_mb for name, node in reading.items()}
            found.append((sizes, set(reading.gone)))
        except errors.InventoryUnavailable:
            found.append("not ready")
    none: set[str] = set()
    small = ({"a": 8192, "b": 16384}, none)
    last = ({"a": 16384, "c": 16384}, {"b"})
    assert found == [
        ({"a": 16384, "b": 16384}, none), small, small, "not ready", last, last,
    ]  # fmt: skip
    # Another content begins anew.
    file.write({**content, "nodes": {"a": NODE}})
    assert list(file.source.read()) == ["a"]


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ({}, "steps: is not a list of objects"),
        ([1], "steps: number 0: is not an object"),
        ([{"readings": 0}], "steps: number 0: readings: is not a number above 0"),
        ([{"readings": True}], "steps: number 0: readings: is not a number above 0"),
        ([{"vcpus": 1}], "steps: number 0: 'vcpus': is unknown"),
        ([{"nodes": []}], "steps: number 0: nodes: is not an object"),
        ([{"nodes": {"n": 1}}], "node 'n': is not an object"),
        ([{"fault": "x"}], "fault: is not one of"),
        ([{"nodes": {"m": {}}}], "node 'm': vcpus: is missing"),
    ],
)
def test_a_step_that_cannot_be_used_is_named(
    file: File, steps: object, reason: str
) -> None:
    file.write({"nodes": {"n": NODE}, "steps": steps})
    assert file.refused().startswith(f"inventory source fake: {reason}")


def test_what_is_configured_is_each_node_s(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "nodes.json"
    own = {**NODE, "labels": {"rack": "r2"}}
    path.write_text(json.dumps({"nodes": {"a": NODE, "b": own}}))
    conf = trees.load_conf(
        inventory_fake__file=str(path),
        inventory__custom_resources={"CUSTOM_GPU": 4},
        inventory__labels={"rack": "r1", "site": "x"},
    )
    nodes = fake.FakeInventory(conf).read()
    assert nodes["a"].labels == {"rack": "r1", "site": "x"}
    assert nodes["b"].labels == {"rack": "r2", "site": "x"}
    assert nodes["b"].custom_resources == {"CUSTOM_GPU": 4}


def test_block_ends_with_the_file(file: File) -> None:
    file.write({"nodes": {}, "fault": "block"})
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(file.source.read()))
    thread.start()
    thread.join(5 * fake.POLL_SECONDS)
    assert thread.is_alive()
    file.write({"nodes": {"n": NODE}})
    thread.join(30)
    assert not thread.is_alive()
    assert answers == [file.source.read()]


@pytest.mark.parametrize("fault", ["block", "slow:3600"])
def test_close_ends_what_waits(file: File, fault: str) -> None:
    file.write({"nodes": {}, "fault": fault})
    threading.Timer(0.05, file.source.close).start()
    assert "was closed" in file.refused()
