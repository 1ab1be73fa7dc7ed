"""Claims: decided, stored and counted in one transaction.

1. lock the candidates, in the order of their ids
2. known uuids: the same answer again, or why not
3. the others: the first candidate whose host is up and enabled and that has room,
   counting what this batch takes
4. INSERT the allocations, UPDATE the nodes

5. after the commit: the reasons of those that got nothing

A uuid that somebody else inserts meanwhile, a deadlock, a lost connection or a lost
answer to the commit run all of it again: the uuid makes that safe.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import datetime
import json
import time
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from conductor.db import allocations
from conductor.db import claim_grounds
from conductor.db import claim_moves
from conductor.db import claim_nodes
from conductor.db import claim_reasons
from conductor.db import claim_rules
from conductor.db import grants
from conductor.db import models
from conductor.db import retry
from musterbook import errors
from musterbook import names
from musterbook.context import Grant
from objects import service as service_obj

_A = models.allocations
_N = models.compute_nodes
#: What was known about the hosts when it was decided is at most so old, in seconds,
#: when it is committed, but for the commit's own time: a process that is frozen in
#: between, and wakes up, must not book on a host that went down meanwhile.
_FRESH_SECONDS = 2.0
#: Asked first, as there is hardly ever one: it brings one column, not twenty.
_KNOWN_UUIDS = sa.select(_A.c.uuid).where(
    _A.c.uuid.in_(sa.bindparam("uuids", expanding=True))
)
_KNOWN = (
    sa.select(_A, _N.c.uuid.label("node"), _N.c.host, _N.c.hypervisor_hostname)
    .select_from(_A.outerjoin(_N, _N.c.id == _A.c.node_id))
    .where(_A.c.uuid.in_(sa.bindparam("uuids", expanding=True)))
)
_IS_HELD = sa.and_(_A.c.kind == allocations.CLAIM, _A.c.state == allocations.HELD)
Answer = dict[str, Any]
#: What reasons of one answer have, and a page of a list, unless said otherwise: far
#: less than a broker takes, as an error says some twice, and JSON is packed in JSON.
ANSWER_BYTES = 2**20
#: Characters that are told of resources that differ.
_SHOWN = 500


#: What an answer says became of a claim.
CLAIMED, REFUSED, CONFLICT, GONE = "claimed", "refused", "conflict", "gone"


class _StaleIds(Exception):
    """A remembered id has another uuid, or is gone.

    The database isn't the one it was, or the node was purged, and made anew perhaps.
    """


class _Changed(Exception):
    """What was decided is too old to be committed, or somebody else was faster."""


class _Decided(NamedTuple):
    """What one transaction came to.

    :ivar answers: by uuid, but for those that got nothing
    :ivar choices: of the new ones
    :ivar rooms: from which was chosen
    """

    answers: dict[str, Answer]
    choices: Sequence[claim_rules.Choice] = ()
    rooms: Mapping[str, claim_rules.Room] = {}


class ClaimWriter:
    """Books claims; any thread, any number of conductors at once.

    :param unknown_after: returns the seconds for which a host that was up may be
        claimed while nobody can tell who lives
    :param clock: monotonic seconds
    :param answer_bytes: that the reasons of one call may have as JSON
    """

    def __init__(
        self,
        engine: sa.Engine,
        unknown_after: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        answer_bytes: int = ANSWER_BYTES,
    ) -> None:
        self._engine = engine
        self._answer_bytes = answer_bytes
        self._unknown_after = unknown_after
        self._clock = clock
        self._ids = claim_nodes.Ids()

    def claim(
        self,
        requests: Sequence[claim_rules.Request],
        *,
        atomic: bool = False,
        grant: Grant | None = None,
    ) -> list[Answer]:
        """Book each request on the first of its candidates that has room.

        Asked again, with the same uuids, it answers the same, whatever became of the
        nodes since; also when the first answer was lost.

        :param requests: of different uuids
        :param atomic: book all that aren't booked yet, or none of them: also if one
            is gone or known with other content
        :param grant: the caller's, if it is an agent: it claims nodes of its own host
        :returns: in the same order: ``uuid``, ``outcome`` (CLAIMED ..) and, if it
            is claimed, ``node``, ``host``, ``hypervisor_hostname``, ``state``,
            ``resources``, ``owner``, ``replaces``, ``created_at``, ``expires_at``;
            else ``reasons`` and, if some don't fit the answer, ``reasons_left_out``
        :raises Superseded, GrantForgotten: the grant isn't the current one
        :raises DatabaseBusy, DatabaseUnavailable:
        """
        for _ in range(_ATTEMPTS):
            try:
                decided = retry.run(
                    self._engine,
                    lambda c: self._book(c, requests, atomic, grant),
                    again_on_duplicate=True,
                )
                return self._answers(requests, decided)
            except _StaleIds:
                self._ids.forget()
            except _Changed:
                continue
        raise errors.DatabaseBusy(reason="no claim could be committed in time")

    def _answers(
        self, requests: Sequence[claim_rules.Request], decided: _Decided
    ) -> list[Answer]:
        """Return all answers in the order of the requests."""
        reasons = claim_reasons.explain(
            decided.choices, decided.rooms, self._answer_bytes
        )
        answers = decided.answers | {
            uuid: _refused(uuid, told) for uuid, told in reasons.items()
        }
        return [answers[request.uuid] for request in requests]

    def _book(
        self,
        connection: sa.Connection,
        requests: Sequence[claim_rules.Request],
        atomic: bool,
        grant: Grant | None,
    ) -> _Decided:
        candidates = {uuid for r in requests for uuid in r.candidates}
        ids = self._ids.find(connection, candidates)
        moves = claim_moves.Moves(connection, requests)
        locked = claim_nodes.lock(connection, ids | moves.node_ids)
        by_uuid = {row["uuid"]: row for row in locked}
        named = [row["uuid"] for row in locked if row["id"] in ids]
        if len(named) < len(ids) or not candidates.issuperset(named):
            raise _StaleIds
        moves.lock(connection)
        known = _known(connection, requests)
        new = [moves.filled(r) for r in requests if r.uuid not in known]
        answers = {
            r.uuid: _again(r, known[r.uuid]) for r in requests if r.uuid in known
        }
        if grant is not None:
            grants.check(connection, grant, service_obj.COMPUTE_BINARY)
        _note_attempts(connection, requests, known, answers)
        if atomic and any(one["outcome"] != CLAIMED for one in answers.values()):
            # A member that can't be booked any more: nor are the others.
            return _Decided(answers | {r.uuid: _refused(r.uuid) for r in new})
        if not new:
            return _Decided(answers)
        began = self._clock()
        hopeless = moves.hopeless(new)
        booked = self._book_new(connection, new, by_uuid, atomic, grant, hopeless)
        if self._clock() - began > _FRESH_SECONDS:
            raise _Changed
        return booked._replace(answers=answers | booked.answers)

    def _book_new(
        self,
        connection: sa.Connection,
        requests: Sequence[claim_rules.Request],
        nodes: Mapping[str, Mapping[str, Any]],
        atomic: bool,
        grant: Grant | None,
        hopeless: Mapping[str, claim_rules.Reason],
    ) -> _Decided:
        hosts = {row["host"] for row in nodes.values() if row["host"] is not None}
        grounds = claim_grounds.read(connection, hosts)
        after = self._unknown_after()
        rooms = {
            uuid: claim_rules.room_of(row, _hindrances(row, grounds, after, grant))
            for uuid, row in nodes.items()
        }
        choices = claim_rules.choose(requests, rooms, atomic=atomic, hopeless=hopeless)
        inserts: list[dict[str, Any]] = []
        changes = claim_nodes.Changes(nodes.values())
        answers: dict[str, Answer] = {}
        for choice in choices:
            request = choice.request
            resources = request.resources or {}
            if choice.node is None:
                continue
            node = nodes[choice.node]
            now = grounds[names.fold(node["host"])].now
            row = _row(request, resources, node["id"], now)
            inserts.append(row)
            changes.add(node["id"], resources)
            answers[request.uuid] = _claimed(row, resources, node)
        if inserts:
            # In one order: two batches with the same uuids wait for each other.
            inserts.sort(key=lambda row: str(row["uuid"]))
            connection.execute(_A.insert(), inserts)
            changes.write(connection)
        return _Decided(answers, choices, rooms)


_ATTEMPTS = 3


def _known(
    connection: sa.Connection, requests: Sequence[claim_rules.Request]
) -> dict[str, Mapping[str, Any]]:
    wanted = {"uuids": [request.uuid for request in requests]}
    if not connection.execute(_KNOWN_UUIDS, wanted).all():
        return {}
    found = connection.execute(_KNOWN, wanted).mappings()
    return {row["uuid"]: {**row} for row in found}


def _note_attempts(
    connection: sa.Connection,
    requests: Sequence[claim_rules.Request],
    known: Mapping[str, Mapping[str, Any]],
    answers: Mapping[str, Answer],
) -> None:
    """Keep claims that are answered to a second call from being taken back by either.

    Which of the two answers arrived, and in which order they were asked, nobody knows:
    if neither is wanted, the claim expires.
    """
    for request in requests:
        stored = known.get(request.uuid)
        if (
            stored is not None
            and answers[request.uuid]["outcome"] == CLAIMED
            and stored["state"] == allocations.HELD
            and stored["attempt"] not in (None, request.attempt)
        ):
            change = _A.update().where(_A.c.id == stored["id"], _IS_HELD)
            if not connection.execute(change.values(attempt=None)).rowcount:
                raise _Changed


def _hindrances(
    node: Mapping[str, Any],
    grounds: Mapping[str, claim_grounds.Ground],
    unknown_after: float,
    grant: Grant | None,
) -> list[claim_grounds.Hindrance]:
    if node["deleted"]:
        return [("deleted", "the node is deleted")]
    host = node["host"]
    if node["bare"]:
        return [("not-taken-over", "no agent of this release has reported the node")]
    if grant is not None and names.fold(host) != names.fold(grant.host):
        return [("other-host", f"the node is host {host}'s, not {grant.host}'s")]
    return claim_grounds.by_host(grounds, host, unknown_after)


def _row(
    request: claim_rules.Request,
    resources: Mapping[str, int],
    node_id: int,
    now: datetime.datetime,
) -> dict[str, Any]:
    custom = {n: a for n, a in resources.items() if n not in claim_rules.RESOURCES}
    return {
        "uuid": request.uuid,
        "node_id": node_id,
        "kind": allocations.CLAIM,
        "state": allocations.HELD,
        **{name: resources.get(name, 0) for name in claim_rules.RESOURCES},
        "custom": json.dumps(custom, sort_keys=True) if custom else None,
        "owner": request.owner,
        "replaces": request.replaces,
        "attempt": request.attempt,
        "created_at": now,
        "expires_at": now + datetime.timedelta(seconds=request.seconds),
    }


def _again(request: claim_rules.Request, stored: Mapping[str, Any]) -> Answer:
    """Return what is answered for a uuid that is known."""
    if stored["kind"] != allocations.CLAIM:
        return {
            "uuid": request.uuid,
            "outcome": CONFLICT,
            "reasons": [_why("conflict", "the uuid is not a claim's")],
        }
    if stored["state"] not in allocations.LIVE:
        text = f"the claim is {stored['state']}; ask under a new uuid"
        return {
            "uuid": request.uuid,
            "outcome": GONE,
            "reasons": [_why(str(stored["state"]), text)],
        }
    had = claim_nodes.amounts(stored)
    differs = []
    if request.resources is not None and had != dict(request.resources):
        differs.append(f"resources {_shown(had)}, not {_shown(request.resources)}")
    differs += [
        f"{name} {stored[name]}, not {getattr(request, name)}"
        for name in ("owner", "replaces")
        if stored[name] != getattr(request, name)
    ]
    if differs:
        text = f"the claim is known with {'; '.join(differs)}"
        return {
            "uuid": request.uuid,
            "outcome": CONFLICT,
            "reasons": [_why("conflict", text)],
        }
    return _claimed(stored, had, stored)


def _why(word: str, text: str) -> dict[str, Any]:
    return {"reason": word, "message": text}


def _shown(resources: Mapping[str, int]) -> str:
    text = ", ".join(f"{name} {resources[name]}" for name in sorted(resources))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _refused(uuid: str, told: claim_reasons.Told = claim_reasons.NOTHING) -> Answer:
    """Return what is answered for what got nothing.

    :param told: nothing: the others of its group are the reason
    """
    group = _why("group", "another claim of the group got no node")
    answer: Answer = {
        "uuid": uuid,
        "outcome": REFUSED,
        "reasons": told.reasons or [group],
    }
    if told.left_out:
        answer["reasons_left_out"] = told.left_out
    return answer


def _claimed(
    row: Mapping[str, Any], resources: Mapping[str, int], node: Mapping[str, Any]
) -> Answer:
    return {
        "uuid": row["uuid"],
        "outcome": CLAIMED,
        "node": node["uuid"] if "node" not in node else node["node"],
        **{name: node[name] for name in ("host", "hypervisor_hostname")},
        "state": row["state"],
        "resources": dict(resources),
        "owner": row["owner"],
        "replaces": row["replaces"],
        "created_at": row["created_at"].isoformat(),
        "expires_at": row["expires_at"].isoformat(),
    }
