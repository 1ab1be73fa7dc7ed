"""Services: create, read, update, destroy on three databases."""

from typing import Any

import pytest

from conductor.db import store as db_store
from musterbook import errors

VALUES: dict[str, Any] = {
    "host": "Node1",
    "binary": "nova-compute",
    "topic": "compute",
    "disabled_reason": "Wartung läuft",
}


def test_create_read_update_destroy(store: db_store.DatabaseStore) -> None:
    made = store.service_create(VALUES)
    assert {k: made[k] for k in VALUES} == VALUES
    assert (made["disabled"], made["forced_down"], made["deleted"]) == (False,) * 3
    assert made["incarnation"] is None
    assert "secret_hash" not in made
    assert store.service_get(id=made["id"]) == made
    assert store.service_get(uuid=made["uuid"].upper()) == made
    assert store.service_get_by_host_and_binary("NODE1", "nova-compute") == made
    answer = store.service_update(made["id"], {"disabled": True, "forced_down": True})
    stored = store.service_get(id=made["id"])
    assert (stored["disabled"], stored["forced_down"]) == (True, True)
    assert stored["updated_at"] == answer["updated_at"]
    store.service_destroy(made["id"])
    with pytest.raises(errors.ServiceNotFound):
        store.service_get(id=made["id"])
    with pytest.raises(errors.ServiceNotFound):
        store.service_destroy(made["id"])
    assert store.service_create(VALUES)["id"] != made["id"]


def test_twins_are_refused(store: db_store.DatabaseStore) -> None:
    store.service_create(VALUES)
    with pytest.raises(errors.ServiceExists) as caught:
        store.service_create(VALUES | {"host": "node1", "topic": "other"})
    assert (caught.value.host, caught.value.binary) == ("node1", "nova-compute")
    other = store.service_create(VALUES | {"host": "node2"})
    with pytest.raises(errors.ServiceExists):
        store.service_update(other["id"], {"host": "NODE1"})


def test_lists(store: db_store.DatabaseStore) -> None:
    ids = [
        store.service_create(values)["id"]
        for values in (
            VALUES,
            VALUES | {"host": "node2", "disabled": True},
            {"host": "node1", "binary": "nova-conductor", "topic": "conductor"},
        )
    ]

    def listed(**how: Any) -> list[int]:
        return [row["id"] for row in store.services(**how)]

    assert listed() == ids
    assert listed(host="NODE1") == [ids[0], ids[2]]
    assert listed(topic="compute", disabled=False) == ids[:1]
    assert listed(binary="nova-compute", disabled=True) == ids[1:2]
    assert listed(host="\0") == []


def test_grant_and_verdict_are_not_a_callers_to_write(
    store: db_store.DatabaseStore,
) -> None:
    made = store.service_create(VALUES | {"state": "up", "incarnation": 9})
    store.service_update(made["id"], {"secret_hash": "x", "incarnation": 3})
    stored = store.service_get(id=made["id"])
    assert (stored["state"], stored["incarnation"]) == (None, None)


def test_the_uuid_is_given_at_creation_only(store: db_store.DatabaseStore) -> None:
    made = store.service_create(VALUES)
    for uuid in (made["uuid"], "2b1d9a52-51de-4ba4-97f7-4c7e0d3ad2ab", None):
        with pytest.raises(errors.InvalidInput) as caught:
            store.service_update(made["id"], {"uuid": uuid, "disabled": True})
        assert caught.value.field == "uuid"
    assert store.service_get(id=made["id"]) == made


def test_values_that_do_not_fit(store: db_store.DatabaseStore) -> None:
    with pytest.raises(errors.InvalidInput):
        store.service_create(VALUES | {"disabled_reason": "x" * 256})
    with pytest.raises(errors.InvalidInput):
        store.service_create(VALUES | {"disabled": "yes"})
