"""Names and amounts of custom resources, keys and values of labels."""

from collections.abc import Callable
import json
import string
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import pytest

from musterbook import custom
from musterbook import errors

UPPER = string.ascii_uppercase + string.digits + "_"
NAMES = st.text(UPPER, min_size=1, max_size=248).map(lambda tail: f"CUSTOM_{tail}")
AMOUNTS = st.integers(0, 2**31 - 1)
ENDS = st.sampled_from(string.ascii_letters + string.digits)
KEYS = st.builds(
    lambda first, middle, last: f"{first}{middle}{last}",
    ENDS,
    st.text(string.ascii_letters + string.digits + "._/-", max_size=61),
    ENDS,
)
TEXTS = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255
).filter(lambda text: text == text.strip())
#: What MySQL's TEXT holds.
TEXT_BYTES = 65_535


@given(st.dictionaries(NAMES, AMOUNTS, max_size=64))
def test_all_that_is_allowed_is_kept_in_order(given_ones: dict[str, int]) -> None:
    found = custom.check_resources(given_ones, "x")
    assert found == given_ones
    assert list(found) == sorted(given_ones)
    assert len(json.dumps(found)) <= TEXT_BYTES


@given(st.dictionaries(KEYS, TEXTS, max_size=64))
def test_all_labels_that_are_allowed_are_kept(given_ones: dict[str, str]) -> None:
    found = custom.check_labels(given_ones, "x")
    assert found == given_ones
    assert list(found) == sorted(given_ones)


def test_the_longest_labels_fit_their_column() -> None:
    labels = {f"{n:063}": '"' * 255 for n in range(64)}
    assert len(json.dumps(custom.check_labels(labels, "x"))) <= TEXT_BYTES


@pytest.mark.parametrize(
    ("check", "value", "says"),
    [
        (custom.check_resources, {"GPU": 1}, "'GPU' is no name of a custom resource"),
        (custom.check_resources, {"CUSTOM_": 1}, "'CUSTOM_' is no name"),
        (custom.check_resources, {"CUSTOM_gpu": 1}, "'CUSTOM_gpu' is no name"),
        (custom.check_resources, {"CUSTOM_GPU\n": 1}, r"'CUSTOM_GPU\\n' is no name"),
        (custom.check_resources, {7: 1}, "7 is no name"),
        (custom.check_resources, {"CUSTOM_" + "A" * 249: 1}, "more than 255"),
        (custom.check_resources, {"CUSTOM_A": -1}, "-1 is not between 0 and"),
        (custom.check_resources, {"CUSTOM_A": 2**31}, "2147483648 is not between"),
        (custom.check_resources, {"CUSTOM_A": True}, "True is not a whole number"),
        (custom.check_resources, {"CUSTOM_A": 1.0}, "1.0 is not a whole number"),
        (custom.check_resources, {"CUSTOM_A": "4"}, "'4' is not a whole number"),
        (custom.check_resources, ["CUSTOM_A"], "is not an object"),
        (
            custom.check_resources,
            {f"CUSTOM_{n}": 1 for n in range(65)},
            "has 65 entries, at most 64",
        ),
        (custom.check_labels, {"": "x"}, "'' is no key"),
        (custom.check_labels, {"-a": "x"}, "'-a' is no key"),
        (custom.check_labels, {"a" * 64: "x"}, "is no key"),
        (custom.check_labels, {"a": ""}, "a: '' is no value"),
        (custom.check_labels, {"a": " x"}, "a: ' x' is no value"),
        (custom.check_labels, {"a": "x\n"}, r"a: 'x\\n' is no value"),
        (custom.check_labels, {"a": "\u00e9"}, r"a: '\\xe9' is no value"),
        (custom.check_labels, {"a": 1}, "a: 1 is no value"),
        (custom.check_labels, {"a": "x" * 256}, r"a: 'x+\.\.\. is no value"),
        (custom.check_labels, None, "is not an object"),
    ],
)
def test_what_is_refused_is_named_in_one_line(
    check: Callable[[object, str], dict[str, Any]], value: object, says: str
) -> None:
    with pytest.raises(errors.InvalidInput, match=says) as caught:
        check(value, "the_option")
    assert caught.value.message.startswith("the_option: ")
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 300
