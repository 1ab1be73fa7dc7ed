"""Reading what the kernel shows in /proc and /sys.

Every reader takes the root of the tree, "/" on a real machine. A file that is
missing, unreadable or empty is None: which ones there are depends on the kernel,
the architecture and the container, and each caller knows what to do without.
"""

from collections.abc import Iterator
import pathlib


def text(path: pathlib.Path) -> str | None:
    """Return the file's text without white space around it."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    # The device tree's strings end in a zero byte.
    return content.decode("utf-8", "replace").strip().strip("\0").strip() or None


def integer(path: pathlib.Path) -> int | None:
    """Return the whole number in the file."""
    content = text(path)
    try:
        return None if content is None else int(content)
    except ValueError:
        return None


def id_set(listing: str | None) -> frozenset[int] | None:
    """Return the members of a list such as "0-3,8", or None if it isn't one."""
    if not listing:
        return None
    members: set[int] = set()
    try:
        for part in listing.split(","):
            first, _, last = part.partition("-")
            members.update(range(int(first), int(last or first) + 1))
    except ValueError:
        return None
    return frozenset(members) or None


def fields(path: pathlib.Path) -> dict[str, str]:
    """Return the lines "name: value" of a file, the first of each name."""
    found: dict[str, str] = {}
    for line in (text(path) or "").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def kibibytes(value: str | None) -> int | None:
    """Return the bytes of a value such as "16384 kB"."""
    number = (value or "").removesuffix("kB").strip()
    return int(number) * 1024 if number.isdecimal() else None


def numbered(
    directory: pathlib.Path, prefix: str
) -> Iterator[tuple[int, pathlib.Path]]:
    """Yield number and path of entries such as cpu0, cpu1, by number."""
    try:
        names = [entry.name for entry in directory.iterdir()]
    except OSError:
        return
    numbers = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    for number in sorted(int(n) for n in numbers if n.isdecimal()):
        yield number, directory / f"{prefix}{number}"
