"""Custom resources and labels of nodes: what is allowed.

A custom resource is something countable that isn't CPU, memory or disk, such as GPUs.
Its name is CUSTOM_ and then characters out of A-Z 0-9 _, as in OpenStack's Placement. A
label is a key and a value, both text, that nobody counts.
"""

from collections.abc import Mapping
import re

from musterbook import errors

PREFIX = "CUSTOM_"
MAX_NAME = 255
MAX_KEY = 63
MAX_VALUE = 255
#: Of each, so that their text fits its column and a list of nodes its message.
MAX_COUNT = 64
#: What the database's INTEGER holds.
MAX_AMOUNT = 2**31 - 1
_NAME = re.compile(r"CUSTOM_[A-Z0-9_]+", re.ASCII)
_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?", re.ASCII)
_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?", re.ASCII)


def check_resources(value: object, field: str) -> dict[str, int]:
    """Return the amounts by name, sorted by it, if they are allowed.

    :param value: what was given
    :param field: the option or field to name in the error
    :raises InvalidInput: with the rule and what broke it
    """
    found = {}
    for name, amount in _items(value, field):
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise _refused(
                field,
                f"{_shown(name)} is no name of a custom resource: {PREFIX} and then "
                "characters out of A-Z 0-9 _",
            )
        if len(name) > MAX_NAME:
            raise _refused(field, f"{_shown(name)} has more than {MAX_NAME} characters")
        if type(amount) is not int:
            raise _refused(field, f"{name}: {_shown(amount)} is not a whole number")
        if not 0 <= amount <= MAX_AMOUNT:
            raise _refused(field, f"{name}: {amount} is not between 0 and {MAX_AMOUNT}")
        found[name] = amount
    return dict(sorted(found.items()))


def check_labels(value: object, field: str) -> dict[str, str]:
    """Return the values by key, sorted by it, if they are allowed.

    :param value: what was given
    :param field: the option or field to name in the error
    :raises InvalidInput: with the rule and what broke it
    """
    found = {}
    for key, text in _items(value, field):
        if not (isinstance(key, str) and len(key) <= MAX_KEY and _KEY.fullmatch(key)):
            raise _refused(
                field,
                f"{_shown(key)} is no key of a label: 1 to {MAX_KEY} characters out of "
                "A-Z a-z 0-9 . _ / -, a letter or digit at both ends",
            )
        if not (
            isinstance(text, str) and len(text) <= MAX_VALUE and _VALUE.fullmatch(text)
        ):
            raise _refused(
                field,
                f"{key}: {_shown(text)} is no value of a label: 1 to {MAX_VALUE} "
                "printable ASCII characters, no blank at either end",
            )
        found[key] = text
    return dict(sorted(found.items()))


def _items(value: object, field: str) -> list[tuple[object, object]]:
    if not isinstance(value, Mapping):
        raise _refused(field, "is not an object of names and values")
    if len(value) > MAX_COUNT:
        raise _refused(field, f"has {len(value)} entries, at most {MAX_COUNT} are kept")
    return list(value.items())


def _shown(value: object) -> str:
    """Return what was given, short enough for one line."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _refused(field: str, reason: str) -> errors.InvalidInput:
    return errors.InvalidInput(field=field, reason=reason)
