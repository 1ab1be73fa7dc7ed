"""Requests for claims as they come over the wire: checked, with what they leave out."""

from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any

from oslo_utils import uuidutils

from conductor.db import claim_rules
from conductor.db import limits
from musterbook import custom
from musterbook import errors

#: Of one call, each with at most so many candidates, all of them with at most so many
#: nodes: all are locked at once.
MOST_REQUESTS = 500
MOST_CANDIDATES = 100
MOST_NODES = 2000
#: Of all requests, each one's for itself: while they are looked through, all nodes are
#: locked.
MOST_CHOICES = 10_000
#: For which one may be held.
MOST_SECONDS = 7 * 86_400
_MOST_OWNER = 255
_FIELDS = {"uuid", "resources", "candidates", "owner", "seconds", "replaces", "attempt"}


def parse(value: object, hold_seconds: float) -> list[claim_rules.Request]:
    """Return the requests of one call.

    :param value: a list of objects; each has uuid and candidates, and resources unless
        it has replaces, and may have owner and seconds
    :param hold_seconds: of those that say none
    :raises InvalidInput: naming what can't be
    """
    if not isinstance(value, list | tuple):
        raise _refused("requests", "is not a list")
    if not value:
        raise _refused("requests", "is empty")
    if len(value) > MOST_REQUESTS:
        raise _refused(
            "requests", f"has {len(value)} claims, at most {MOST_REQUESTS} at a time"
        )
    found = [_request(one, f"requests[{n}]", hold_seconds) for n, one in _each(value)]
    seen: set[str] = set()
    for number, request in enumerate(found):
        if request.uuid in seen:
            raise _refused(f"requests[{number}].uuid", "comes twice")
        seen.add(request.uuid)
    choices = sum(len(request.candidates) for request in found)
    if choices > MOST_CHOICES:
        raise _refused(
            "requests",
            f"have {choices} candidates in all, at most {MOST_CHOICES} at a time",
        )
    nodes = {uuid for request in found for uuid in request.candidates}
    if len(nodes) > MOST_NODES:
        raise _refused(
            "requests", f"name {len(nodes)} nodes, at most {MOST_NODES} at a time"
        )
    return found


def _each(value: Sequence[object]) -> list[tuple[int, object]]:
    return list(enumerate(value))


def _request(value: object, field: str, hold_seconds: float) -> claim_rules.Request:
    if not isinstance(value, Mapping):
        raise _refused(field, "is not an object")
    unknown = value.keys() - _FIELDS
    if unknown:
        shown = ascii(min(map(str, unknown)))[:64]
        raise _refused(field, f"has {shown}, which is no field of a claim")
    replaces = value.get("replaces")
    uuid = check_uuid(value.get("uuid"), f"{field}.uuid")
    if replaces is not None:
        replaces = check_uuid(replaces, f"{field}.replaces")
        if replaces == uuid:
            raise _refused(f"{field}.replaces", "is the claim's own uuid")
    attempt = value.get("attempt")
    if attempt is not None:
        attempt = check_uuid(attempt, f"{field}.attempt")
    given = value.get("resources")
    resources = None
    if given is not None or replaces is None:
        resources = check_resources(given, f"{field}.resources")
    return claim_rules.Request(
        uuid=uuid,
        resources=resources,
        candidates=_candidates(value.get("candidates"), f"{field}.candidates"),
        owner=check_owner(value.get("owner"), f"{field}.owner"),
        seconds=_seconds(value.get("seconds"), f"{field}.seconds", hold_seconds),
        replaces=replaces,
        attempt=attempt,
    )


def check_uuid(value: object, field: str) -> str:
    """Return a uuid in the form in which it is stored.

    :raises InvalidInput: it is none
    """
    if not (
        isinstance(value, str) and len(value) == 36 and uuidutils.is_uuid_like(value)
    ):
        raise _refused(field, "is not a uuid of 36 characters")
    return value.lower()


def check_resources(value: object, field: str) -> dict[str, int]:
    """Return the amounts that are above 0, by name.

    :raises InvalidInput: one is no whole number from 0 to what a column holds, a name
        is unknown, or nothing is left
    """
    if not isinstance(value, Mapping):
        raise _refused(field, "is not an object of names and amounts")
    plain = {name: value[name] for name in claim_rules.RESOURCES if name in value}
    for name, amount in plain.items():
        if not limits.countable(amount) or amount < 0:
            raise _refused(
                f"{field}.{name}",
                f"{ascii(amount)[:32]} is not a whole number from 0 to "
                f"{limits.LARGEST}",
            )
    rest = {name: amount for name, amount in value.items() if name not in plain}
    given = plain | custom.check_resources(rest, field)
    found = {name: amount for name, amount in given.items() if amount}
    if not found:
        raise _refused(field, "asks for nothing")
    return found


def check_owner(value: object, field: str) -> str | None:
    """Return an owner; InvalidInput."""
    if value is None:
        return None
    if not isinstance(value, str) or not limits.storable(value) or not value:
        raise _refused(
            field, f"is not a text of 1 to {_MOST_OWNER} characters that can be stored"
        )
    return value


def _candidates(value: object, field: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise _refused(field, "is not a list of nodes' uuids")
    if not value:
        raise _refused(field, "is empty")
    if len(value) > MOST_CANDIDATES:
        raise _refused(field, f"has {len(value)} nodes, at most {MOST_CANDIDATES}")
    found = tuple(check_uuid(one, f"{field}[{n}]") for n, one in enumerate(value))
    return tuple(dict.fromkeys(found))


def _seconds(value: object, field: str, default: float) -> float:
    if value is None:
        return default
    number: Any = value if isinstance(value, int | float) else math.nan
    if isinstance(value, bool) or not 0 < number <= MOST_SECONDS:
        raise _refused(
            field, f"{ascii(value)[:32]} is not above 0 and at most {MOST_SECONDS}"
        )
    return float(number)


def _refused(field: str, reason: str) -> errors.InvalidInput:
    return errors.InvalidInput(field=field, reason=reason)
