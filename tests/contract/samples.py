"""The messages as they cross the wire, written by hand.

A message of oslo.messaging's RPC is {method, args, version}; objects in it have the
form of oslo.versionedobjects. The clients must send exactly these, and the conductor
must understand exactly these, so that a change of the wire by accident is seen. Nothing
here was copied from what our code sends.
"""

from collections.abc import Mapping
from typing import Any

NODE_UUID = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001"
PROCESS_UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
REQUEST_ID = "req-11111111-2222-3333-4444-555555555555"
CONTEXT: dict[str, Any] = {
    "request_id": REQUEST_ID,
    "user_id": None,
    "project_id": None,
    "is_admin": True,
    "roles": [],
    "grant": {"host": "web1", "incarnation": 4, "secret": "the-secret"},
}

GET_NODE = {
    "method": "object_class_action_versions",
    "version": "1.0",
    "args": {
        "objname": "ComputeNode",
        "objmethod": "get_by_host_and_nodename",
        "object_versions": {"ComputeNode": "1.3", "Service": "1.2"},
        "args": ["web1", "web1"],
        "kwargs": {},
    },
}
SAVE_NODE = {
    "method": "object_action",
    "version": "1.0",
    "args": {
        "objinst": {
            "versioned_object.name": "ComputeNode",
            "versioned_object.namespace": "musterbook",
            "versioned_object.version": "1.3",
            "versioned_object.data": {
                "id": 3,
                "host": "web1",
                "inventory_generation": 2,
                "memory_mb": 32768,
            },
            "versioned_object.changes": ["memory_mb"],
        },
        "objmethod": "save",
        "args": [],
        "kwargs": {},
    },
}
SAVE_CUSTOM = {
    "method": "object_action",
    "version": "1.0",
    "args": {
        "objinst": {
            "versioned_object.name": "ComputeNode",
            "versioned_object.namespace": "musterbook",
            "versioned_object.version": "1.3",
            "versioned_object.data": {
                "id": 3,
                "host": "web1",
                "inventory_generation": 2,
                "booted_at": "2026-01-02T03:04:05Z",
                "custom_resources": {"CUSTOM_GPU": 4},
                "labels": {"rack": "r1"},
            },
            "versioned_object.changes": ["booted_at", "custom_resources", "labels"],
        },
        "objmethod": "save",
        "args": [],
        "kwargs": {},
    },
}
GET_NODES = {
    "method": "object_class_action_versions",
    "version": "1.0",
    "args": {
        "objname": "ComputeNodeList",
        "objmethod": "get_all",
        "object_versions": {"ComputeNodeList": "1.0", "ComputeNode": "1.0"},
        "args": [],
        "kwargs": {},
    },
}
# What an agent of Juno's time sends: version 1.0 of the object has no host.
CREATE_JUNO_NODE: dict[str, Any] = {
    "method": "object_action",
    "version": "1.0",
    "args": {
        "objinst": {
            "versioned_object.name": "ComputeNode",
            "versioned_object.namespace": "musterbook",
            "versioned_object.version": "1.0",
            "versioned_object.data": {
                "service_id": 7,
                "hypervisor_hostname": "web1",
                "vcpus": 8,
                "memory_mb": 16384,
            },
            "versioned_object.changes": [
                "service_id",
                "hypervisor_hostname",
                "vcpus",
                "memory_mb",
            ],
        },
        "objmethod": "create",
        "args": [],
        "kwargs": {},
    },
}
CONFIRM_USAGE = {
    "method": "object_action",
    "version": "1.0",
    "args": {
        "objinst": {
            "versioned_object.name": "ComputeNode",
            "versioned_object.namespace": "musterbook",
            "versioned_object.version": "1.3",
            "versioned_object.data": {
                "id": 3,
                "host": "web1",
                "inventory_generation": 2,
            },
        },
        "objmethod": "confirm_usage",
        "args": [{"vcpus": 2, "memory_mb": 512, "local_gb": 0}],
        "kwargs": {},
    },
}
SAVE_JUNO_NODE = {
    "method": "object_action",
    "version": "1.0",
    "args": {
        "objinst": {
            "versioned_object.name": "ComputeNode",
            "versioned_object.namespace": "musterbook",
            "versioned_object.version": "1.0",
            "versioned_object.data": {"id": 3, "service_id": 6, "vcpus_used": 2},
            "versioned_object.changes": ["vcpus_used"],
        },
        "objmethod": "save",
        "args": [],
        "kwargs": {},
    },
}
BACKPORT = {
    "method": "object_backport_versions",
    "version": "1.0",
    "args": {
        "objinst": {
            "versioned_object.name": "ComputeNode",
            "versioned_object.namespace": "musterbook",
            "versioned_object.version": "1.3",
            "versioned_object.data": {"id": 3, "host": "web1", "service_id": None},
        },
        "object_versions": {"ComputeNode": "1.0"},
    },
}
PING = {"method": "ping", "version": "1.0", "args": {}}
HELLO = {
    "method": "hello",
    "version": "1.0",
    "args": {
        "host": "web1",
        "process_uuid": PROCESS_UUID,
        "boot_id": None,
        "release": "0.1.0",
        "secret": "the-secret",
    },
}
HELLO_AGAIN: dict[str, Any] = {
    "method": "hello",
    "version": "1.0",
    "args": {
        "host": "web1",
        "process_uuid": PROCESS_UUID,
        "boot_id": None,
        "release": "0.1.0",
        "secret": "the-secret",
        "had": 3,
    },
}
HELLO_OF_A_LEVEL: dict[str, Any] = {
    "method": "hello",
    "version": "1.1",
    "args": {**HELLO["args"], "version": 1},  # type: ignore[dict-item]
}
GET_VERSIONS = {"method": "get_versions", "version": "1.1", "args": {}}
HELLO_RENAMED: dict[str, Any] = {
    "method": "hello",
    "version": "1.1",
    "args": {
        "host": "web1",
        "process_uuid": PROCESS_UUID,
        "boot_id": None,
        "release": "0.1.0",
        "secret": "the-secret",
        "formerly": "old1",
        "nodes": [[NODE_UUID, "n1"]],
    },
}
ADOPT = {
    "method": "adopt_node",
    "version": "1.1",
    "args": {"uuid": NODE_UUID, "name": "bm1", "formerly": "web2"},
}
GOODBYE = {"method": "goodbye", "version": "1.0", "args": {}}
VERIFY = {"method": "verify", "version": "1.0", "args": {}}
BEAT = {"method": "beat", "version": "1.2", "args": {}}
GET_BEATS = {"method": "get_beats", "version": "1.2", "args": {}}
RELEASE_FREEZE = {
    "method": "release_freeze",
    "version": "1.2",
    "args": {"zone": "nova"},
}
FRESH_FLEET = {
    "method": "get_fleet",
    "version": "1.2",
    "args": {"columns": ["host"], "max_age": 30},
}
RESET_FLAPPING = {
    "method": "reset_flapping",
    "version": "1.1",
    "args": {"host": "web1"},
}
STALLED = {"method": "stalled", "version": "1.0", "args": {"reason": "disk is slow"}}
GET_FLEET = {"method": "get_fleet", "version": "1.0", "args": {"columns": ["host"]}}
PING_AGENT = {"method": "ping", "version": "1.0", "args": {}}
LOOK = {"method": "look", "version": "1.0", "args": {}}
REJOIN = {"method": "rejoin", "version": "1.0", "args": {"incarnation": 4}}
AUDIT = {"method": "audit", "version": "1.1", "args": {"wait": 5.0}}

NODE_ROW = {
    "id": 3,
    "uuid": NODE_UUID,
    "host": "web1",
    "hypervisor_hostname": "web1",
    "vcpus": 8,
    "service_id": None,
    "memory_mb": 16384,
    "inventory_generation": 2,
    "usage_confirmed": False,
}


def altered(message: Mapping[str, Any], **args: Any) -> dict[str, Any]:
    return {**message, "args": {**message["args"], **args}}
