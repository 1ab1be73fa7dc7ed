"""Values on the command line, refused in one line if they make no sense."""

import argparse
import datetime

_LARGEST = 2**31 - 1
#: Nothing is older than the calendar of Python and the databases allows to ask for.
_MOST_DAYS = 36_500


def count(text: str) -> int:
    """Return a number of rows, at least 1."""
    return _number(text, _LARGEST, "a number of rows")


def days(text: str) -> int:
    """Return a number of days, at least 1."""
    return _number(text, _MOST_DAYS, "a number of days")


def instant(text: str) -> datetime.datetime:
    """Return a date or an instant as aware UTC; without an offset it is UTC."""
    try:
        found = datetime.datetime.fromisoformat(text)
        if found.tzinfo is None:
            return found.replace(tzinfo=datetime.UTC)
        return found.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!a} is not a date (YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS, UTC)"
        ) from None


def add_batching(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the two options of commands that work through a table.

    :param verb: what is done with rows, as "migrate"
    """
    parser.add_argument(
        "--max-count",
        type=count,
        metavar="N",
        help=f"{verb} at most N rows in this run; without it all. Locks are held for "
        "a batch of rows at a time, whatever N is",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="write nothing, tell what would be done"
    )


def _number(text: str, largest: int, what: str) -> int:
    # int() would also take "1_000", " 1" and other digits than ours.
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= largest):
        raise argparse.ArgumentTypeError(
            f"{text[:40]!a} is not {what} between 1 and {largest}"
        )
    return int(text)
