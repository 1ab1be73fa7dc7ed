"""What a column can hold, checked before the SQL so that all databases agree.

SQLite would store anything, MySQL refuses what utf8mb3 has no room for, and
PostgreSQL knows no NUL character; callers get the same InvalidInput for all.
"""

from collections.abc import Mapping
import datetime
import math
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from musterbook import errors

#: What an integer column holds.
SMALLEST, LARGEST = -(2**31), 2**31 - 1
_TEXT_BYTES = 65_535
_MEDIUM_TEXT_BYTES = 16_777_215


def check(table: sa.Table, values: Mapping[str, Any]) -> None:
    """Return if every value fits its column.

    :raises InvalidInput: naming the field and its limit
    """
    for name, value in values.items():
        column = table.c.get(name)
        if column is None:
            raise _refused(name, "is not a field that can be set")
        if value is None:
            if not column.nullable:
                raise _refused(name, "can't be empty")
            continue
        reason = _misfit(column.type, value)
        if reason is not None:
            raise _refused(name, reason)


def refuse_uuid(values: Mapping[str, Any]) -> None:
    """Return if an update leaves the record's uuid alone, which is given at creation.

    :raises InvalidInput: it doesn't
    """
    if "uuid" in values:
        raise _refused("uuid", "can't be changed")


def storable(value: object) -> bool:
    """Tell whether a text could be a stored name or uuid at all.

    A look-up of anything else finds nothing, instead of upsetting a driver.
    """
    return isinstance(value, str) and _misfit(sa.String(255), value) is None


def countable(value: object) -> bool:
    """Tell whether a value could be an id at all."""
    return _integer_misfit(value) is None


def clip(text: str, length: int) -> str:
    """Return free text (a cause, evidence) in a form that always fits.

    :param length: most characters to keep
    """
    return "".join(c if _fits(c) else "?" for c in text[:length])


def _refused(field: str, reason: str) -> errors.InvalidInput:
    return errors.InvalidInput(field=field, reason=reason)


def _misfit(kind: sa.types.TypeEngine[Any], value: object) -> str | None:
    """Return why the value doesn't fit, or None."""
    if isinstance(kind, sa.String):
        return _text_misfit(kind, value)
    if isinstance(kind, sa.Boolean):
        return None if isinstance(value, bool) else "is not true or false"
    if isinstance(kind, sa.Integer):
        return _integer_misfit(value)
    if isinstance(kind, sa.Double):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        finite = number and math.isfinite(value)  # type: ignore[arg-type]  # a number
        return None if finite else "is not a finite number"
    return None if isinstance(value, datetime.datetime) else "is not an instant"


def _integer_misfit(value: object) -> str | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return "is not an integer"
    if not SMALLEST <= value <= LARGEST:
        return f"would be {value}, which is not between {SMALLEST} and {LARGEST}"
    return None


def _text_misfit(kind: sa.String, value: object) -> str | None:
    if not isinstance(value, str):
        return "is not text"
    # Most text is ASCII, for which this is the whole check.
    if not value.isascii() or "\0" in value:
        wrong = next((c for c in value if not _fits(c)), None)
        if wrong is not None:
            return f"has the character U+{ord(wrong):04X}, which can't be stored"
    if kind.length is not None:
        if len(value) > kind.length:
            return f"has {len(value)} characters, at most {kind.length} are stored"
        return None
    medium = isinstance(kind._variant_mapping.get("mysql"), mysql.MEDIUMTEXT)
    limit = _MEDIUM_TEXT_BYTES if medium else _TEXT_BYTES
    size = len(value) if value.isascii() else len(value.encode())
    if size > limit:
        return f"has {size} bytes in UTF-8, at most {limit} are stored"
    return None


def _fits(character: str) -> bool:
    """Tell whether every database stores it: no NUL, surrogate or four-byte one."""
    code = ord(character)
    return 0 < code < 0xD800 or 0xE000 <= code <= 0xFFFF
