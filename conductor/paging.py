"""Lists that are too large for one message, fetched piece by piece."""

from collections.abc import Callable
from typing import Any

from musterbook import errors

#: Nodes that are asked for at once, to begin with: about 1 MB.
_PAGE = 500


def fetch_all(fetch_page: Callable[[int, int | None], Any]) -> Any:
    """Return one list with the nodes of all pages.

    Nodes that come or go meanwhile may or may not be in it; each other is, once.

    :param fetch_page: returns the list of up to so many nodes after the one with an id
    :raises MessageTooLarge: not even a single node fits
    """
    size, found, markers = _PAGE, None, [None]
    while True:
        try:
            page = fetch_page(size, markers[-1])
        except errors.MessageTooLarge:
            if size == 1:
                raise
            size = max(1, size // 2)
            continue
        except errors.MarkerNotFound:
            markers.pop()  # it was deleted: go on after the one before
            continue
        known = set(markers)
        if found is None:
            found = page
        else:
            found.objects.extend(node for node in page if node.id not in known)
        markers.extend(node.id for node in page if node.id not in known)
        if len(page) < size:
            found.obj_reset_changes()
            return found
