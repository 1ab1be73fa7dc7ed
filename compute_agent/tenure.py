"""The grant under which this process serves: given at start, renewed if forgotten."""

from musterbook import context
from musterbook.context import Grant
from musterbook.context import RequestContext


class Tenure:
    """The process's current grant. Any thread may read it, one renews it.

    :param grant: the first one
    """

    def __init__(self, grant: Grant) -> None:
        self._context = context.service_context(grant)
        self._grant = grant

    @property
    def grant(self) -> Grant:
        """The current grant."""
        return self._grant

    @property
    def context(self) -> RequestContext:
        """A context that carries the current grant; not to be kept for long."""
        return self._context

    def renew(self, grant: Grant) -> None:
        """Serve under another grant from now on."""
        self._grant = grant
        self._context = context.service_context(grant)
