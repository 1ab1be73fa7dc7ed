"""Host and node names: what is allowed and when two are the same.

Allowed are 1 to 255 characters out of A-Z a-z 0-9 . _ - (they travel through
RPC topics, group member names, file names and URLs, and must come out unharmed).
Two names are the same when their casefolded forms are: the database that is
taken over from Juno compares that way.
"""

import re

from musterbook import errors

MAX_LENGTH = 255
#: Longest host that a process can serve under: AMQP's names end at 255 bytes, and the
#: longest queue is ``conductor.<host>``.
MAX_HOST_LENGTH = 245
_ALLOWED = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


def check(value: object, field: str) -> str:
    """Return the name unchanged if it is allowed.

    :param value: what was given
    :param field: the option or field to name in the error
    :raises InvalidName: with the rule and what broke it
    """
    if not isinstance(value, str):
        raise errors.InvalidName(field=field, reason="is not text")
    if not value:
        raise errors.InvalidName(field=field, reason="is empty")
    if len(value) > MAX_LENGTH:
        raise errors.InvalidName(field=field, reason=f"has {len(value)} characters")
    if not _ALLOWED.fullmatch(value):
        wrong = next(c for c in value if not _ALLOWED.fullmatch(c))
        raise errors.InvalidName(field=field, reason=f"has the character {wrong!a}")
    if value in {".", ".."}:
        raise errors.InvalidName(field=field, reason="is a directory's name")
    return value


def fold(value: str) -> str:
    """Return the form in which names are compared."""
    return value.casefold()
