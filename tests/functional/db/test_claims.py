"""Claims on three databases: decided, stored, counted, ended."""

from concurrent import futures
import datetime
import json
import threading
from typing import Any
import uuid as uuidlib

import pytest
import sqlalchemy as sa

from compute_agent import rpcapi as compute_rpcapi
from conductor import claim_requests
from conductor.db import audit
from conductor.db import claim_reasons
from conductor.db import claim_store
from conductor.db import liveness
from conductor.db import mend
from conductor.db import models
from conductor.db import purge
from musterbook import errors
from musterbook import levels
from tests import util
from tests.functional.db import claiming


@pytest.fixture
def fleet(engine: sa.Engine) -> claiming.Fleet:
    return claiming.Fleet(engine, "h1", "h2")


def words(answer: dict[str, Any]) -> list[str]:
    assert answer["outcome"] == "refused"
    return [reason["reason"] for reason in answer["reasons"]]


def test_the_first_candidate_with_room_gets_it(fleet: claiming.Fleet) -> None:
    asked = [fleet.ask("h1", "h2", resources={"vcpus": 5}) for _ in range(3)]
    answers = fleet.claim(*asked)
    assert [a["outcome"] for a in answers] == ["claimed", "claimed", "refused"]
    assert [a.get("host") for a in answers] == ["h1", "h2", None]
    assert answers[0]["node"] == fleet.uuids["h1"]
    assert answers[0]["resources"] == {"vcpus": 5}
    assert answers[2]["reasons"] == [
        {
            "node": fleet.uuids[host],
            "reason": "no-room",
            "message": "vcpus: 5 requested, 3 free of 8",
            "resource": "vcpus",
            "requested": 5,
            "free": 3,
            "capacity": 8,
        }
        for host in ("h1", "h2")
    ]
    assert fleet.used("h1") == fleet.used("h2") == (5, 0, 0)
    fleet.check()


def test_all_reasons_are_told_at_once(fleet: claiming.Fleet) -> None:
    fleet.set_state("h1", "down", state_cause="silence", disabled=True)
    gone = str(uuidlib.uuid4())
    asked = fleet.ask(
        resources={"vcpus": 9, "memory_mb": 99999, "local_gb": 1, "CUSTOM_FPGA": 2}
    )
    asked["candidates"] += [gone, fleet.uuids["h2"]]
    (answer,) = fleet.claim(asked)
    told = [(r["node"], r["reason"], r.get("resource")) for r in answer["reasons"]]
    assert told == [
        (fleet.uuids["h1"], "disabled", None),
        (fleet.uuids["h1"], "down", None),
        (fleet.uuids["h1"], "larger-than-node", "vcpus"),
        (fleet.uuids["h1"], "larger-than-node", "memory_mb"),
        (fleet.uuids["h1"], "no-such-resource", "CUSTOM_FPGA"),
        (gone, "no-such-node", None),
        (fleet.uuids["h2"], "larger-than-node", "vcpus"),
        (fleet.uuids["h2"], "larger-than-node", "memory_mb"),
        (fleet.uuids["h2"], "no-such-resource", "CUSTOM_FPGA"),
    ]
    assert fleet.stored() == []


def test_no_node_is_locked_while_reasons_are_put_together(
    fleet: claiming.Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large batch that takes seconds, in which others claim."""
    others: list[str] = []
    explain = claim_reasons.explain

    def slow(choices: Any, rooms: Any, most_bytes: int) -> Any:
        if not others:
            others.append("")
            others.append(fleet.claim(fleet.ask("h1", "h2"))[0]["outcome"])
        return explain(choices, rooms, most_bytes)

    monkeypatch.setattr(claim_reasons, "explain", slow)
    hopeless = [fleet.ask("h1", "h2", resources={"vcpus": 9}) for _ in range(5)]
    answers = fleet.claim(*hopeless, fleet.ask("h1", resources={"vcpus": 7}))
    assert [a["outcome"] for a in answers] == [*["refused"] * 5, "claimed"]
    assert others[1:] == ["claimed"]
    fleet.check()


def test_answers_and_pages_have_a_limit(fleet: claiming.Fleet) -> None:
    store = claim_store.ClaimStore(fleet.engine, answer_bytes=2000)
    asked = [
        fleet.ask("h1", "h2", resources={"vcpus": 9, "memory_mb": 99999, "CUSTOM_A": 1})
        for _ in range(3)
    ]
    asked += [fleet.ask(owner="me" * 100) for _ in range(5)]
    answers = store.claim(claim_requests.parse(asked, 600.0))
    assert len(json.dumps([a["reasons"] for a in answers[:3]])) < 2100
    for answer in answers[:3]:
        assert len(answer["reasons"]) + answer["reasons_left_out"] == 6
    assert "reasons_left_out" not in fleet.claim(asked[0])[0]
    found: list[str] = []
    while page := store.claims(marker=found[-1] if found else None):
        assert len(page) in (1, 2, 3)
        assert len(json.dumps(page)) < 2100
        found += [claim["uuid"] for claim in page]
    # In the order in which they are listed at once.
    assert found == [claim["uuid"] for claim in fleet.store.claims()]
    assert set(found) == {one["uuid"] for one in asked[3:]}


def test_the_same_again_answers_the_same(fleet: claiming.Fleet) -> None:
    asked = fleet.ask("h1", "h2", owner="me", seconds=30)
    first = fleet.claim(asked)
    fleet.set_state("h1", "down", state_cause="silence")
    assert fleet.claim(asked) == first
    assert fleet.claim({**asked, "candidates": [fleet.uuids["h2"]]}) == first
    assert len(fleet.stored()) == 1
    assert fleet.used() == (1, 0, 0)


def test_other_content_under_a_known_uuid_is_refused(fleet: claiming.Fleet) -> None:
    asked = fleet.ask(owner="me")
    fleet.claim(asked)
    for field, value in (("resources", {"vcpus": 2}), ("owner", "you")):
        (answer,) = fleet.claim({**asked, field: value})
        assert answer["outcome"] == "conflict"
        assert field in answer["reasons"][0]["message"]
    assert fleet.used() == (1, 0, 0)


def test_a_finished_claim_is_gone(fleet: claiming.Fleet) -> None:
    asked = fleet.ask()
    fleet.claim(asked)
    for _ in range(2):
        fleet.store.release(asked["uuid"])
        assert fleet.used() == (0, 0, 0)
    (answer,) = fleet.claim(asked)
    assert answer["outcome"] == "gone"
    with pytest.raises(errors.ClaimGone) as caught:
        fleet.store.confirm(asked["uuid"])
    assert caught.value.state == "released"
    fleet.check()


def test_a_claim_that_comes_after_its_release_books_nothing(
    fleet: claiming.Fleet,
) -> None:
    asked = fleet.ask()
    fleet.store.release(asked["uuid"], "me")
    (answer,) = fleet.claim(asked)
    assert answer["outcome"] == "gone"
    assert fleet.used() == (0, 0, 0)
    assert fleet.stored() == [(asked["uuid"], "released", 0)]


def test_a_group_is_booked_whole_or_not_at_all(fleet: claiming.Fleet) -> None:
    asked = [fleet.ask(host, resources={"vcpus": 8}) for host in ("h1", "h2", "h1")]
    answers = fleet.claim(*asked, atomic=True)
    assert [words(a) for a in answers] == [["group"], ["group"], ["no-room"]]
    assert fleet.stored() == []
    answers = fleet.claim(*asked[:2], atomic=True)
    assert [a["host"] for a in answers] == ["h1", "h2"]
    assert fleet.claim(*asked[:2], atomic=True) == answers
    fleet.check()


def test_a_group_of_which_one_is_gone_or_another_one_is_not_booked(
    fleet: claiming.Fleet,
) -> None:
    gone, other, new = fleet.ask("h1"), fleet.ask("h1"), fleet.ask("h2")
    fleet.store.release(gone["uuid"])
    fleet.claim(other)
    other["resources"] = {"vcpus": 3}
    for known, outcome in ((gone, "gone"), (other, "conflict")):
        for asked in ([known, new], [new, known]):
            found = {a["uuid"]: a for a in fleet.claim(*asked, atomic=True)}
            assert found[known["uuid"]]["outcome"] == outcome
            assert words(found[new["uuid"]]) == ["group"]
    assert fleet.used("h2") == (0, 0, 0)
    # Not as a group, one of them can be had.
    assert [a["outcome"] for a in fleet.claim(gone, new)] == ["gone", "claimed"]
    fleet.check()


#: What is written of a host, by name, and why nothing of it can be claimed then.
BLOCKED: list[tuple[dict[str, Any], str]] = [
    ({"state": "down", "state_cause": "silence"}, "down"),
    ({"state": "suspect", "state_cause": "flapping"}, "suspect"),
    ({"state": "unknown", "state_cause": "x"}, "unknown"),
    ({"forced_down": True}, "forced-down"),
    ({"disabled": True}, "disabled"),
    ({"stalled_reason": "disk"}, "stalled"),
    ({"state_incarnation": 0}, "suspect"),
    ({"deleted": 7}, "no-service"),
]


def test_a_host_that_is_not_well_is_refused(engine: sa.Engine) -> None:
    hosts = [f"h{n}" for n in range(len(BLOCKED) + 1)]
    fleet = claiming.Fleet(engine, *hosts)
    with engine.begin() as c:
        for host, (values, _) in zip(hosts, BLOCKED, strict=False):
            what = ", ".join(f"{name} = :{name}" for name in values)
            change = f"UPDATE services SET {what} WHERE host = :host"  # noqa: S608
            c.execute(sa.text(change), {**values, "host": host})
    (answer,) = fleet.claim(fleet.ask(*hosts[:-1]))
    assert words(answer) == [word for _, word in BLOCKED]
    (answer,) = fleet.claim(fleet.ask(*hosts))
    assert answer["host"] == hosts[-1]
    fleet.check()


def test_goodbye_is_refused_at_once(fleet: claiming.Fleet) -> None:
    grant = fleet.grants["h1"]
    fleet.records.goodbye("h1", "nova-compute", grant.incarnation, grant.secret)
    assert words(fleet.claim(fleet.ask())[0]) == ["down"]


def test_a_deleted_node_is_refused_and_one_in_use_stays(fleet: claiming.Fleet) -> None:
    fleet.claim(fleet.ask())
    node = fleet.nodes.compute_node_get(uuid=fleet.uuids["h1"])
    with pytest.raises(errors.ComputeNodeInUse, match="1 claims"):
        fleet.nodes.compute_node_destroy(node["id"], "h1")
    fleet.nodes.compute_node_destroy(node["id"], "h1", force=True)
    assert words(fleet.claim(fleet.ask())[0]) == ["deleted"]
    fleet.check()
    # What is released meanwhile doesn't come back with it.
    fleet.store.release(fleet.stored()[0][0])
    back = fleet.nodes.compute_node_create(
        {"host": "h1", "hypervisor_hostname": "h1", **claiming.NODE}
    )
    assert (back["id"], back["vcpus_used"]) == (node["id"], 0)
    fleet.check()


def test_without_a_leader_for_long_nothing_is_claimed(fleet: claiming.Fleet) -> None:
    set_lease(fleet, -30, -15)
    assert fleet.claim(fleet.ask())[0]["outcome"] == "claimed"
    # Since the last look, not since the lease ran out.
    set_lease(fleet, -90, -1)
    (answer,) = fleet.claim(fleet.ask())
    assert words(answer) == ["unknown"]
    assert "no leader looks" in answer["reasons"][0]["message"]


def set_lease(fleet: claiming.Fleet, looked: int, ends: int) -> None:
    """Store when the last look was and when the lease ends, in seconds from now."""
    now = datetime.datetime.now(datetime.UTC)
    values = {
        "renewed_at": now + datetime.timedelta(seconds=looked),
        "expires_at": now + datetime.timedelta(seconds=ends),
    }
    with fleet.engine.begin() as c:
        c.execute(models.leases.update().values(values))


def test_a_lease_of_which_nobody_looked_is_no_look(fleet: claiming.Fleet) -> None:
    """Leaders take it in turns, and none gets to look."""
    set_lease(fleet, -3600, -3600)
    taken = fleet.records.acquire(liveness.LEASE, "another", 15.0, looked=False)
    assert taken is not None
    (answer,) = fleet.claim(fleet.ask())
    assert words(answer) == ["unknown"]
    assert "doesn't get to look" in answer["reasons"][0]["message"]
    fleet.records.acquire(liveness.LEASE, "another", 15.0, looked=True)
    assert fleet.claim(fleet.ask())[0]["outcome"] == "claimed"


def test_after_the_clock_was_set_back_somebody_has_to_look(
    fleet: claiming.Fleet,
) -> None:
    set_lease(fleet, 3600, 3615)
    (answer,) = fleet.claim(fleet.ask())
    assert words(answer) == ["unknown"]
    assert "set back" in answer["reasons"][0]["message"]
    fleet.records.acquire(liveness.LEASE, claiming.LEADER, 15.0)
    assert fleet.claim(fleet.ask())[0]["outcome"] == "claimed"


def test_while_verdicts_are_frozen_for_long_nothing_is_claimed(
    fleet: claiming.Fleet,
) -> None:
    frozen = {"": ("group-emptied", "all of them")}
    assert fleet.term is not None
    fleet.records.write(liveness.LEASE, claiming.LEADER, fleet.term, [], frozen)
    assert fleet.claim(fleet.ask())[0]["outcome"] == "claimed"
    with fleet.engine.begin() as c:
        c.execute(sa.text("UPDATE freezes SET since = '2020-01-01 00:00:00'"))
    assert words(fleet.claim(fleet.ask())[0]) == ["unknown"]


def test_an_agent_claims_its_own_nodes_while_it_is_the_granted_one(
    fleet: claiming.Fleet,
) -> None:
    grant = fleet.grants["h1"]
    answers = fleet.claim(fleet.ask("h1"), fleet.ask("h2"), grant=grant)
    assert answers[0]["outcome"] == "claimed"
    assert words(answers[1]) == ["other-host"]
    number = fleet.records.grant(
        "h1", "nova-compute", "compute", "another", None, "1", "another-secret", 1
    )
    assert number == 2
    with pytest.raises(errors.Superseded):
        fleet.claim(fleet.ask("h1"), grant=grant)
    assert fleet.used() == (1, 0, 0)


def test_confirmed_once_and_kept(fleet: claiming.Fleet) -> None:
    asked = fleet.ask(seconds=0.001)
    kept = fleet.ask()
    fleet.claim(asked, kept)
    for _ in range(2):
        fleet.store.confirm(kept["uuid"])
    with pytest.raises(errors.ClaimNotFound):
        fleet.store.confirm(str(uuidlib.uuid4()))
    with pytest.raises(errors.ClaimGone) as caught:
        util.wait_until(lambda: fleet.store.confirm(asked["uuid"]))
    assert caught.value.state == "expired"
    assert [state for _, state, _ in fleet.stored()] in (
        ["held", "confirmed"],
        ["confirmed", "held"],
    )


def test_only_the_leader_expires(fleet: claiming.Fleet) -> None:
    due = [fleet.ask(seconds=0.001) for _ in range(3)]
    stays, confirmed = fleet.ask(), fleet.ask(seconds=600)
    fleet.claim(*due, stays, confirmed)
    fleet.store.confirm(confirmed["uuid"])
    assert fleet.term is not None
    lease = (liveness.LEASE, claiming.LEADER, fleet.term)
    assert fleet.store.expire(lease[0], "another", lease[2]) == []
    assert fleet.store.expire(lease[0], lease[1], lease[2] + 1) == []
    assert fleet.used() == (5, 0, 0)
    gone: list[str] = []

    def expired() -> bool:
        gone.extend(fleet.store.expire(*lease, limit=2))
        return len(gone) >= 3

    util.wait_until(expired)
    assert sorted(gone) == sorted(asked["uuid"] for asked in due)
    assert fleet.used() == (2, 0, 0)
    assert fleet.claim(due[0])[0]["outcome"] == "gone"
    fleet.check()
    # Known for as long as a message may be on its way, then forgotten.
    assert fleet.store.forget(*lease, seconds=3600) == 0
    assert fleet.store.forget(lease[0], "another", lease[2], seconds=-60) == 0
    assert fleet.store.forget(*lease, seconds=-60, limit=2) == 2
    assert fleet.store.forget(*lease, seconds=-60) == 1
    assert len(fleet.stored()) == 2


def test_listed_by_owner_and_host_in_pages(fleet: claiming.Fleet) -> None:
    mine = [fleet.ask("h1", owner="me") for _ in range(3)]
    yours = fleet.ask("h2", owner="you")
    fleet.claim(*mine, yours)
    listed = fleet.store.claims(owner="me")
    assert [c["uuid"] for c in listed] == sorted(asked["uuid"] for asked in mine)
    assert [c["uuid"] for c in fleet.store.claims(host="H2")] == [yours["uuid"]]
    assert fleet.store.claims(owner="me", host="h2") == []
    pages, marker = [], None
    while page := fleet.store.claims(limit=3, marker=marker):
        pages.append([c["uuid"] for c in page])
        marker = pages[-1][-1]
    assert [len(page) for page in pages] == [3, 1]
    fleet.store.release(yours["uuid"])
    assert fleet.store.claims(host="h2") == []
    (ended,) = fleet.store.claims(host="h2", finished=True)
    assert ended["state"] == "released"
    assert ended["resources"] == {"vcpus": 1}
    assert ended["node"] == fleet.uuids["h2"]
    for name in ("created_at", "expires_at", "finished_at"):
        assert ended[name].startswith("20")
    with pytest.raises(errors.MarkerNotFound):
        fleet.store.claims(marker=str(uuidlib.uuid4()))


def test_an_owner_is_one_by_case_and_spaces_too(fleet: claiming.Fleet) -> None:
    owners = ["tenant", "Tenant", "tenant ", "t\u00e9nant"]
    fleet.claim(*(fleet.ask(owner=owner) for owner in owners))
    for owner in owners:
        assert [c["owner"] for c in fleet.store.claims(owner=owner)] == [owner]
    assert fleet.store.claims(owner="TENANT") == []


def test_claims_of_a_host_are_looked_for_by_its_nodes(fleet: claiming.Fleet) -> None:
    """Also of a node of Juno's shape, of which its service tells the host."""
    asked = fleet.ask("h2")
    fleet.claim(fleet.ask("h1"), asked)
    with fleet.engine.begin() as c:
        c.execute(
            sa.text(
                "UPDATE compute_nodes SET host = NULL, service_id ="
                " (SELECT id FROM services WHERE host = 'h2') WHERE host = 'h2'"
            )
        )
    seen: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *more: Any) -> None:
        seen.append(" ".join(statement.split()))

    sa.event.listen(fleet.engine, "before_cursor_execute", note)
    (listed,) = fleet.store.claims(host="H2")
    sa.event.remove(fleet.engine, "before_cursor_execute", note)
    assert (listed["uuid"], listed["host"]) == (asked["uuid"], "h2")
    (query,) = [text for text in seen if "FROM allocations" in text]
    condition = query.partition(" WHERE ")[2]
    assert "allocations.node_id IN" in condition
    assert "host" not in condition
    assert fleet.store.claims(host="h3") == []


def test_a_move_is_booked_on_both_until_it_is_confirmed(fleet: claiming.Fleet) -> None:
    old = fleet.ask("h1", resources={"vcpus": 3, "local_gb": 7})
    fleet.claim(old)
    fleet.store.confirm(old["uuid"])
    new = fleet.ask("h2", replaces=old["uuid"])
    del new["resources"]
    (answer,) = first = fleet.claim(new)
    assert (answer["host"], answer["resources"]) == ("h2", {"vcpus": 3, "local_gb": 7})
    assert fleet.used("h1") == fleet.used("h2") == (3, 0, 7)
    assert fleet.claim(new) == first
    # Reverted, and moved under another uuid.
    again = {**new, "uuid": str(uuidlib.uuid4())}
    assert words(fleet.claim(again)[0]) == ["being-moved"]
    fleet.store.release(new["uuid"])
    assert (fleet.used("h1"), fleet.used("h2")) == ((3, 0, 7), (0, 0, 0))
    fleet.claim(again)
    for _ in range(2):
        fleet.store.confirm(again["uuid"])
    assert (fleet.used("h1"), fleet.used("h2")) == ((0, 0, 0), (3, 0, 7))
    assert words(fleet.claim(fleet.ask("h2", replaces=old["uuid"]))[0]) == [
        "nothing-to-move"
    ]
    fleet.check()


def test_a_move_is_not_moved_before_it_is_confirmed(fleet: claiming.Fleet) -> None:
    first = fleet.ask("h1")
    second = fleet.ask("h2", replaces=first["uuid"])
    third = fleet.ask("h1", replaces=second["uuid"])
    fleet.claim(first, second)  # of one call: nothing to move yet
    assert fleet.used("h2") == (0, 0, 0)
    assert fleet.claim(second)[0]["outcome"] == "claimed"
    assert words(fleet.claim(third)[0]) == ["being-moved"]
    fleet.store.confirm(second["uuid"])
    assert (fleet.used("h1"), fleet.used("h2")) == ((0, 0, 0), (1, 0, 0))
    assert fleet.claim(third)[0]["outcome"] == "claimed"
    fleet.store.confirm(third["uuid"])
    assert (fleet.used("h1"), fleet.used("h2")) == ((1, 0, 0), (0, 0, 0))
    assert [c["uuid"] for c in fleet.store.claims()] == [third["uuid"]]
    fleet.check()


def test_a_move_that_is_not_confirmed_in_time_leaves_the_first(
    fleet: claiming.Fleet,
) -> None:
    old = fleet.ask("h1")
    fleet.claim(old)
    fleet.store.confirm(old["uuid"])
    fleet.claim(fleet.ask("h2", replaces=old["uuid"], seconds=0.001))
    assert fleet.term is not None
    lease = (liveness.LEASE, claiming.LEADER, fleet.term)
    util.wait_until(lambda: fleet.store.expire(*lease))
    assert (fleet.used("h1"), fleet.used("h2")) == ((1, 0, 0), (0, 0, 0))
    fleet.check()


def test_ratio_and_reserved_and_the_size_of_the_node(engine: sa.Engine) -> None:
    fleet = claiming.Fleet(
        engine, cpu_allocation_ratio=4.0, reserved_vcpus=1, reserved_memory_mb=384
    )
    answers = fleet.claim(
        fleet.ask(resources={"vcpus": 9}),
        *(fleet.ask(resources={"vcpus": 8}) for _ in range(4)),
        fleet.ask(resources={"vcpus": 4}),
        fleet.ask(resources={"memory_mb": 16001}),
        fleet.ask(resources={"memory_mb": 16000}),
    )
    # (8 - 1) * 4 = 28, and not more than 8 at a time; 16384 - 384 = 16000.
    assert [a["outcome"] for a in answers] == [
        "refused", "claimed", "claimed", "claimed", "refused", "claimed",
        "refused", "claimed",
    ]  # fmt: skip
    assert fleet.used() == (29, 16384, 0)
    fleet.check()


def test_claimers_at_the_same_time_never_book_too_much(engine: sa.Engine) -> None:
    """Four claimers ask for 60 CPUs of 16, each of them twice; some release."""
    fleet = claiming.Fleet(engine, "h1", "h2")
    asked = [fleet.ask("h1", "h2", resources={"vcpus": 2}) for _ in range(30)]
    booked: dict[str, set[str]] = {}
    lock = threading.Lock()

    def work(part: list[dict[str, Any]]) -> None:
        for one in part:
            (answer,) = fleet.claim(one)
            if answer["outcome"] == "claimed":
                with lock:
                    booked.setdefault(one["uuid"], set()).add(answer["node"])

    parts = [asked[:15], asked[15:], asked[:15][::-1], asked[15:][::-1]]
    with futures.ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(work, parts))
    assert fleet.used("h1") == fleet.used("h2") == (8, 0, 0)
    live = {uuid for uuid, state, _ in fleet.stored() if state == "held"}
    assert len(live) == 8
    # Who was answered is booked, and nobody was told of two nodes.
    assert booked.keys() == live
    assert {len(nodes) for nodes in booked.values()} == {1}
    fleet.check()


def test_what_is_not_booked_yet_is_booked_before_it_is_claimed(
    fleet: claiming.Fleet,
) -> None:
    """Code of an older release left usage that nobody booked."""
    with fleet.engine.begin() as c:
        c.execute(
            sa.text(
                "UPDATE compute_nodes SET booking = 0, vcpus_used = 6 WHERE host = 'h1'"
            )
        )
    assert words(fleet.claim(fleet.ask(resources={"vcpus": 3}))[0]) == ["no-room"]
    assert fleet.claim(fleet.ask(resources={"vcpus": 2}))[0]["outcome"] == "claimed"
    assert fleet.used() == (8, 0, 0)
    fleet.check()


def test_a_uuid_of_something_else_is_left_alone(fleet: claiming.Fleet) -> None:
    with fleet.engine.begin() as c:
        c.execute(
            sa.text(
                "UPDATE compute_nodes SET booking = 0, vcpus_used = 6 WHERE host = 'h1'"
            )
        )
    fleet.claim(fleet.ask())
    legacy = next(uuid for uuid, _, vcpus in fleet.stored() if vcpus == 6)
    assert fleet.claim(fleet.ask(uuid=legacy))[0]["outcome"] == "conflict"
    for end in (fleet.store.release, fleet.store.confirm):
        with pytest.raises(errors.ClaimConflict):
            end(legacy)
    assert fleet.used() == (7, 0, 0)


def test_ids_of_another_database_are_looked_up_again(
    fleet: claiming.Fleet, engine: sa.Engine
) -> None:
    fleet.claim(fleet.ask("h1"))
    with engine.begin() as c:
        c.execute(
            sa.text("UPDATE compute_nodes SET uuid = :u WHERE host = 'h1'"),
            {"u": str(uuidlib.uuid4())},
        )
    assert words(fleet.claim(fleet.ask("h1"))[0]) == ["no-such-node"]


def test_a_node_purged_and_made_anew_between_two_claims(
    fleet: claiming.Fleet, engine: sa.Engine
) -> None:
    """This conductor saw nothing of it."""
    fleet.claim(fleet.ask("h1"))
    old = fleet.nodes.compute_node_get(uuid=fleet.uuids["h1"])
    fleet.add("h3")
    fleet.nodes.compute_node_destroy(old["id"], "h1", force=True)
    list(purge.purge(engine))
    fleet.nodes.compute_node_create(
        {"host": "h1", "hypervisor_hostname": "h1", **claiming.NODE}
        | {"uuid": fleet.uuids["h1"]}
    )
    assert fleet.claim(fleet.ask("h1"))[0]["outcome"] == "claimed"


def test_what_was_decided_long_ago_is_not_committed(
    fleet: claiming.Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was frozen in between, and the host may be down by now."""
    times = iter([0.0, 30.0, 30.0, 31.0])
    monkeypatch.setattr(fleet.store, "_clock", lambda: next(times))
    (answer,) = fleet.claim(fleet.ask())
    assert answer["outcome"] == "claimed"
    assert next(times, None) is None
    assert fleet.used() == (1, 0, 0)


def test_custom_resources_are_counted_as_well(fleet: claiming.Fleet) -> None:
    has = {"custom_resources": {"CUSTOM_FPGA": 2, "CUSTOM_BW": 100}}
    fleet.add("h3", **has)
    asked = [
        fleet.ask("h3", resources={"CUSTOM_FPGA": 1, "vcpus": 1}) for _ in range(3)
    ]
    answers = fleet.claim(*asked)
    assert [a["outcome"] for a in answers] == ["claimed", "claimed", "refused"]
    assert words(answers[2]) == ["no-room"]
    assert answers[0]["resources"] == {"CUSTOM_FPGA": 1, "vcpus": 1}
    assert fleet.claim(asked[1]) == [answers[1]]
    fleet.check()
    # What an agent reports doesn't change what is allocated.
    node = fleet.nodes.compute_node_get(uuid=fleet.uuids["h3"])
    more = {"custom_resources": {"CUSTOM_FPGA": 3}}
    fleet.nodes.compute_node_update(node["id"], more, node["inventory_generation"])
    fleet.check()
    (answer,) = fleet.claim(fleet.ask("h3", resources={"CUSTOM_FPGA": 1}))
    assert answer["outcome"] == "claimed"
    for uuid, _, _ in fleet.stored():
        fleet.store.release(uuid)
    assert fleet.used("h3") == (0, 0, 0)
    fleet.check()


def test_of_two_calls_neither_takes_back_what_both_were_told(
    fleet: claiming.Fleet,
) -> None:
    """In whichever order their messages arrive, and by way of whom they came."""
    first, second = str(uuidlib.uuid4()), str(uuidlib.uuid4())
    for one, another, gives_up in (
        (first, second, second),
        (second, first, first),
        (None, first, first),
        (first, None, first),
    ):
        asked = fleet.ask()
        for attempt in (one, another, another):
            (answer,) = fleet.claim({**asked, "attempt": attempt})
            assert answer["outcome"] == "claimed"
        fleet.store.release(asked["uuid"], attempt=gives_up)
    assert fleet.used() == (4, 0, 0)
    # What was asked otherwise wasn't told that it is there.
    asked = fleet.ask()
    fleet.claim({**asked, "attempt": first})
    (answer,) = fleet.claim({**asked, "attempt": second, "owner": "you"})
    assert answer["outcome"] == "conflict"
    fleet.store.release(asked["uuid"], attempt=second)
    assert fleet.used() == (5, 0, 0)
    fleet.store.release(asked["uuid"], attempt=first)
    assert fleet.used() == (4, 0, 0)
    fleet.check()


def test_an_agents_call_takes_back_only_what_nobody_else_was_told(
    fleet: claiming.Fleet,
) -> None:
    first, second = str(uuidlib.uuid4()), str(uuidlib.uuid4())
    asked = [fleet.ask() for _ in range(4)]
    fleet.claim(*({**one, "attempt": first} for one in asked))
    fleet.claim({**asked[1], "attempt": second})  # asked again, through the agent
    fleet.claim(asked[2])  # or of a conductor
    fleet.store.confirm(asked[3]["uuid"])
    for one in asked:
        fleet.store.release(one["uuid"], attempt=first)
    live = {c["uuid"] for c in fleet.store.claims()}
    assert live == {one["uuid"] for one in asked[1:]}
    assert fleet.used() == (3, 0, 0)
    # Whoever asked first was told of it, and isn't told of this.
    fleet.store.release(asked[1]["uuid"], attempt=second)
    assert fleet.used() == (3, 0, 0)
    # Nobody was told of what isn't known.
    late = fleet.ask()
    fleet.store.release(late["uuid"], attempt=first)
    assert fleet.claim(late)[0]["outcome"] == "gone"
    fleet.check()


def test_hosts_are_told_of_what_others_did(fleet: claiming.Fleet) -> None:
    """And not of what their own agent asked for."""
    told: list[set[str]] = []
    store = claim_store.ClaimStore(fleet.engine, tell=lambda h: told.append(set(h)))

    def claim(*asked: Any, **options: Any) -> None:
        store.claim(claim_requests.parse(asked, 600.0), **options)

    fleet.add("h7")
    one, other = fleet.ask(), fleet.ask("h7")
    claim(one, other, fleet.ask(resources={"vcpus": 1000}))
    assert told == [{"h1", "h7"}]
    told.clear()
    claim(fleet.ask(), grant=fleet.grants["h1"])
    store.confirm(one["uuid"])  # nothing of the node changes
    assert told == []
    moved = fleet.ask("h7", replaces=one["uuid"])
    claim(moved)
    store.confirm(moved["uuid"])
    assert {"h1"} <= told[-1]
    store.release(moved["uuid"])
    assert told[-1] == {"h7"}
    store.release(moved["uuid"])
    assert not told[-1]


def test_which_agents_understand_what_is_new(fleet: claiming.Fleet) -> None:
    fleet.add("h7")
    with fleet.engine.begin() as connection:
        connection.execute(
            sa.text(
                "UPDATE services SET version = 2, version_incarnation = incarnation"
                " WHERE host = 'h7'"
            )
        )
    hosts = ["h1", "H7", "nobody"]
    level = levels.compute_with(compute_rpcapi.NOTE_CLAIMS)
    assert fleet.records.reached("nova-compute", level, hosts) == ["h7"]
    fleet.set_state("h7", "down")
    assert fleet.records.reached("nova-compute", level, hosts) == []


def test_custom_usage_that_is_wrong_is_named_and_mended(
    engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = claiming.Fleet(engine, "h1", "h2", custom_resources={"CUSTOM_FPGA": 4})
    one = fleet.ask(resources={"CUSTOM_FPGA": 3})
    fleet.claim(one)

    def write(text: str, table: str = "compute_nodes") -> None:
        column = "custom" if table == "allocations" else "custom_used"
        where = "custom IS NOT NULL" if table == "allocations" else "host = 'h1'"
        with engine.begin() as connection:
            change = f"UPDATE {table} SET {column} = :text WHERE {where}"  # noqa: S608
            connection.execute(sa.text(change), {"text": text})

    def found() -> list[Any]:
        kinds = {kind.name: list(rows) for kind, rows in audit.findings(engine)}
        return [
            (row["host"], row["custom_used"], row["custom_booked"], row["unreadable"])
            for row in kinds["custom_usage_not_the_sum"]
        ]

    right = '{"CUSTOM_FPGA": 3}'
    assert found() == []
    for wrong in ('{"CUSTOM_FPGA": 2}', "{}", '{"CUSTOM_X": 1, "CUSTOM_FPGA": 3}'):
        write(wrong)
        assert found() == [("h1", wrong, right, None)]
        assert [m.used for m in mend.mend_custom(engine, dry_run=True)] == [right]
        assert [m.was for m in mend.mend_custom(engine)] == [wrong]
        assert found() == list(mend.mend_custom(engine)) == []
    # What can't be read isn't taken for nothing: no claim goes beyond what there is.
    odd = f'{{"{uuidlib.uuid4()}": '  # it is said once a process
    write(odd)
    assert found() == [("h1", odd, right, "custom_used")]
    more = fleet.ask(resources={"CUSTOM_FPGA": 1, "vcpus": 1})
    for _ in range(3):
        (answer,) = fleet.claim(more)
        assert words(answer) == ["no-room"]
    assert caplog.text.count("can't be read") == 1
    fleet.store.release(one["uuid"])
    assert found() == [("h1", odd, None, "custom_used")]
    list(mend.mend_custom(engine))
    (answer,) = fleet.claim(more)
    assert answer["outcome"] == "claimed"
    fleet.check()
    write("[1]", "allocations")
    assert found() == [("h1", '{"CUSTOM_FPGA": 1}', None, f"allocation {more['uuid']}")]
