"""Who gets a host: hello against what is known and who answers."""

from typing import Any

import pytest

from conductor import grants
from conductor.db import liveness
from musterbook import context
from musterbook import errors


class Records:
    """Liveness records of one host; ``races`` others win before we do."""

    def __init__(self, known: liveness.KnownService | None, races: int = 0) -> None:
        self.service = known
        self.races = races
        self.granted: list[Any] = []

    def known(self, host: str, binary: str) -> liveness.KnownService | None:
        return self.service

    def grant(self, *args: Any, expected: int | None) -> int:
        if self.races:
            self.races -= 1
            raise liveness.GrantConflict
        self.granted.append((*args, expected))
        return (expected or 0) + 1


def known(**values: Any) -> liveness.KnownService:
    filled: dict[str, Any] = {
        "host": "web1",
        "incarnation": 4,
        "process_uuid": "old-process",
        "said_goodbye": False,
        **values,
    }
    return liveness.KnownService(**filled)


def hello(records: Records, answers: str | None, host: str = "web1") -> Any:
    asked: list[str] = []

    def ping(_: context.RequestContext, host: str) -> str | None:
        asked.append(host)
        return answers

    granter = grants.Granter(records, ping)  # type: ignore[arg-type]  # what is used
    answer = granter.hello(
        context.service_context(),
        host=host,
        process_uuid="new-process",
        boot_id=None,
        release="1",
        secret="a-secret",
    )
    return answer, asked


def test_a_new_host_is_granted_without_a_ping() -> None:
    records = Records(None)
    answer, asked = hello(records, None)
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


@pytest.mark.parametrize("answers", [None, "yet-another"])
def test_a_host_whose_process_is_silent_is_granted(answers: str | None) -> None:
    answer, asked = hello(Records(known()), answers)
    assert answer == {"host": "web1", "incarnation": 5}
    assert asked == ["web1"]


@pytest.mark.parametrize(
    "values",
    [
        {"said_goodbye": True},
        {"incarnation": None, "process_uuid": None},
        {"process_uuid": "new-process"},  # the same hello again
    ],
)
def test_nobody_is_pinged_when_nobody_can_be_there(values: dict[str, Any]) -> None:
    answer, asked = hello(Records(known(**values)), "old-process")
    assert answer["incarnation"] >= 1
    assert asked == []


def test_the_name_is_the_stored_one() -> None:
    answer, asked = hello(Records(known()), None, host="WEB1")
    assert answer["host"] == "web1"
    assert asked == ["web1"]


def test_a_lost_race_is_decided_anew() -> None:
    records = Records(known(), races=2)
    answer, asked = hello(records, None)
    assert answer["incarnation"] == 5
    assert len(asked) == 3


def test_races_end() -> None:
    with pytest.raises(errors.DatabaseBusy):
        hello(Records(known(), races=1000), None)
