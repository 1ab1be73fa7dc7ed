"""Who gets a host: hello against what is known and who answers."""

from concurrent import futures
import hashlib
import threading
import time
from typing import Any

import pytest

from conductor import grants
from conductor.db import liveness
from musterbook import context
from musterbook import errors
from tests import util

UUID = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001"
OTHER = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a002"


class Records:
    """Liveness records of one host; ``races`` others win before we do."""

    def __init__(self, known: liveness.KnownService | None, races: int = 0) -> None:
        self.service = known
        self.races = races
        self.granted: list[Any] = []
        self.former: liveness.KnownService | None = None
        self.claim: Any = None

    def known(self, host: str, binary: str) -> liveness.KnownService | None:
        return self.former if host == "former" else self.service

    def nodes_of(self, host: str, uuids: Any) -> list[tuple[str, str]]:
        assert host == "former"
        return [(uuid, "n1") for uuid in uuids if uuid == UUID]

    def hosts_of(self, uuids: Any) -> list[tuple[str, str | None]]:
        return [(uuid, "web1" if uuid == UUID else None) for uuid in uuids]

    def grant(
        self,
        *args: Any,
        expected: int | None,
        had: int | None,
        claim: Any,
        version: int = 0,
    ) -> int:
        self.claim = claim
        if self.races:
            self.races -= 1
            raise liveness.GrantConflict
        self.granted.append((*args, expected))
        return max(expected or 0, had or 0) + 1


def known(**values: Any) -> liveness.KnownService:
    filled: dict[str, Any] = {
        "host": "web1",
        "incarnation": 4,
        "process_uuid": "old-process",
        "said_goodbye": False,
        **values,
    }
    return liveness.KnownService(**filled)


SILENCE = errors.AgentUnavailable(host="web1", method="ping", seconds=3)
NOT_THERE = errors.AgentNotThere(host="web1", method="ping", seconds=0)
OURS, THEIRS = (hashlib.sha256(s).hexdigest() for s in (b"a-secret", b"another"))
NOT_ASKED = errors.AgentNotAsked(host="web1", method="ping", reason="no broker")


def hello(
    records: Records,
    answers: str | errors.MusterbookError | dict[str, Any],
    host: str = "web1",
    formerly: grants.Formerly | None = None,
) -> Any:
    """Say hello while the host's old process answers a uuid, a dict or an error."""
    asked: list[str] = []

    def ping(_: context.RequestContext, host: str) -> dict[str, Any]:
        asked.append(host)
        if isinstance(answers, errors.MusterbookError):
            raise answers
        return {"process_uuid": answers} if isinstance(answers, str) else answers

    granter = grants.Granter(records, ping)  # type: ignore[arg-type]  # what is used
    return say(granter, host, formerly), asked


def say(
    granter: grants.Granter,
    host: str = "web1",
    formerly: grants.Formerly | None = None,
) -> dict[str, Any]:
    return granter.hello(
        context.service_context(),
        host=host,
        process_uuid="new-process",
        boot_id=None,
        release="1",
        secret="a-secret",
        formerly=formerly,
    )


def test_a_new_host_is_granted_without_a_ping() -> None:
    records = Records(None)
    answer, asked = hello(records, SILENCE)
    assert answer == {"host": "web1", "incarnation": 1}
    assert asked == []
    assert records.granted == [
        ("web1", "nova-compute", "compute", "new-process", None, "1", "a-secret", None)
    ]


def test_a_host_whose_process_answers_is_refused() -> None:
    records = Records(known())
    with pytest.raises(errors.HostTaken) as caught:
        hello(records, "old-process")
    assert caught.value.process_uuid == "old-process"
    assert records.granted == []


@pytest.mark.parametrize(
    "odd",
    [
        errors.RemoteFailure(class_name="KeyError"),
        errors.UnsupportedObject(reason="2.0"),
        errors.MethodNotRemotable("there is no RPC method ping"),
        {"incarnation": 4},
        "old-process",
    ],
)
def test_whoever_answers_in_any_way_lives(odd: Any) -> None:
    records = Records(known())
    with pytest.raises(errors.HostTaken) as caught:
        hello(records, odd)
    assert caught.value.process_uuid == "old-process"
    assert records.granted == []


def test_who_could_not_be_asked_keeps_the_host_for_now() -> None:
    records = Records(known())
    with pytest.raises(errors.AgentNotAsked):
        hello(records, NOT_ASKED)
    assert records.granted == []


def test_a_flood_of_hellos_leaves_threads_for_other_work() -> None:
    go_on = threading.Event()
    asked: list[str] = []

    def ping(_: context.RequestContext, host: str) -> dict[str, Any]:
        asked.append(host)
        assert go_on.wait(20)
        raise SILENCE

    granter = grants.Granter(Records(known()), ping)  # type: ignore[arg-type]
    most = grants.PINGS_AT_ONCE
    with futures.ThreadPoolExecutor(most) as pool:
        held = [pool.submit(say, granter) for _ in range(most)]
        util.wait_until(lambda: len(asked) == most)
        try:
            with pytest.raises(errors.AgentNotAsked, match="16 other"):
                say(granter)
        finally:
            go_on.set()
        assert {run.result()["incarnation"] for run in held} == {5}
    assert len(asked) == most
    assert say(granter)["incarnation"] == 5


def test_a_host_whose_process_is_silent_is_granted() -> None:
    answer, asked = hello(Records(known()), SILENCE)
    assert answer == {"host": "web1", "incarnation": 5}
    assert asked == ["web1"]


@pytest.mark.parametrize(
    "values",
    [
        {"said_goodbye": True},
        {"incarnation": None, "process_uuid": None},
        {"process_uuid": "new-process", "secret_hash": OURS},  # the same hello again
    ],
)
def test_nobody_is_pinged_when_nobody_can_be_there(values: dict[str, Any]) -> None:
    answer, asked = hello(Records(known(**values)), "old-process")
    assert answer["incarnation"] >= 1
    assert asked == []


def test_a_uuid_that_anybody_may_know_takes_nothing_over() -> None:
    records = Records(known(process_uuid="new-process", secret_hash=THEIRS))
    with pytest.raises(errors.HostTaken):
        hello(records, "new-process")
    assert records.granted == []


def test_a_process_without_a_grant_answers_for_nobody() -> None:
    records = Records(known())
    with pytest.raises(errors.AgentNotAsked, match="without a grant"):
        hello(records, "yet-another")
    assert records.granted == []


def test_a_process_that_the_database_forgot_is_granted_anew() -> None:
    answer, asked = hello(Records(known()), "new-process")
    assert answer == {"host": "web1", "incarnation": 5}
    assert asked == ["web1"]


def test_who_may_be_about_to_listen_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    records = Records(known(up=True))

    def ping(_: context.RequestContext, host: str) -> dict[str, Any]:
        raise NOT_THERE

    granter = grants.Granter(records, ping)  # type: ignore[arg-type]  # what is used
    for now in (100.0, 105.0, 109.9):
        clock[0] = now
        with pytest.raises(errors.AgentNotAsked, match=r"wait for (10\.0|5\.0|0\.1) s"):
            say(granter)
    assert records.granted == []
    clock[0] = 110.0
    assert say(granter)["incarnation"] == 5
    # Each time stands for itself, and one that is long past says nothing.
    with pytest.raises(errors.AgentNotAsked, match=r"10\.0 s"):
        say(granter)
    clock[0] = 200.0
    with pytest.raises(errors.AgentNotAsked, match=r"10\.0 s"):
        say(granter)


@pytest.mark.parametrize(("values", "settle"), [({"down": True}, 10), ({}, 0)])
def test_nobody_waits_for_who_is_down_or_can_only_be_here(
    values: dict[str, Any], settle: float
) -> None:
    def ping(_: context.RequestContext, host: str) -> dict[str, Any]:
        raise NOT_THERE

    granter = grants.Granter(Records(known(**values)), ping, settle)  # type: ignore[arg-type]
    assert say(granter)["incarnation"] == 5


def test_the_name_is_the_stored_one() -> None:
    answer, asked = hello(Records(known()), SILENCE, host="WEB1")
    assert answer["host"] == "web1"
    assert asked == ["web1"]


def test_a_lost_race_is_decided_anew() -> None:
    records = Records(known(), races=2)
    answer, asked = hello(records, SILENCE)
    assert answer["incarnation"] == 5
    assert len(asked) == 3


def test_races_end() -> None:
    with pytest.raises(errors.DatabaseBusy):
        hello(Records(known(), races=1000), SILENCE)


# -- a host that was renamed -------------------------------------------------------

FORMERLY = grants.Formerly("former", [(UUID, "n1"), (OTHER, "n2")])


def renamed(
    answers: Any,
    former: liveness.KnownService | None,
    formerly: grants.Formerly = FORMERLY,
) -> tuple[Any, Records, list[str]]:
    records = Records(None)
    records.former = former
    answer, asked = hello(records, answers, formerly=formerly)
    return answer, records, asked


@pytest.mark.parametrize(
    ("former", "asked"),
    [
        (None, []),  # its service was deleted
        (known(host="former", said_goodbye=True, up=True), []),
        (known(host="former", incarnation=None, process_uuid=None), []),
        (known(host="former"), ["former"]),  # nobody answers
    ],
)
def test_nodes_of_a_name_that_nobody_serves_are_claimed(
    former: liveness.KnownService | None, asked: list[str]
) -> None:
    answer, records, pinged = renamed(SILENCE, former)
    assert answer["nodes"] == [[UUID, "web1"], [OTHER, None]]
    number = former.incarnation if former else None
    assert records.claim == liveness.Claim("former", number, frozenset([UUID]))
    assert pinged == asked


@pytest.mark.parametrize(
    "answers", ["old-process", errors.RemoteFailure(class_name="KeyError")]
)
def test_a_copy_of_a_living_agent_is_refused(answers: Any) -> None:
    records = Records(None)
    records.former = known(host="former")
    with pytest.raises(errors.NodeTaken) as caught:
        hello(records, answers, formerly=FORMERLY)
    assert (caught.value.host, caught.value.uuid) == ("former", UUID)
    for word in ("former", UUID, "old-process", "state_path"):
        assert word in caught.value.message
    assert records.granted == []


@pytest.mark.parametrize(
    ("answers", "up"), [(SILENCE, True), (NOT_ASKED, False), (NOT_ASKED, True)]
)
def test_nodes_of_who_may_live_are_waited_for(answers: Any, up: bool) -> None:
    records = Records(None)
    records.former = known(host="former", up=up)
    with pytest.raises(errors.AgentUnavailable):
        hello(records, answers, formerly=FORMERLY)
    assert records.granted == []


def test_where_nothing_is_to_be_claimed_nobody_is_pinged() -> None:
    answer, records, asked = renamed(
        "old-process",
        known(host="former"),
        grants.Formerly("former", [(OTHER, "n2")]),
    )
    assert answer["nodes"] == [[OTHER, None]]
    assert (records.claim, asked) == (None, [])
