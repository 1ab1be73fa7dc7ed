"""The context of a call: who asks, under which request id, as which incarnation."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from oslo_context import context as oslo_context


@dataclasses.dataclass(frozen=True)
class Grant:
    """What the conductor granted an agent at hello; its later calls carry it.

    :ivar host: the agent's host, as stored
    :ivar incarnation: number of this start, rises by one with each grant
    :ivar secret: shared by the conductor and this process only
    """

    host: str
    incarnation: int
    secret: str = dataclasses.field(repr=False)

    @property
    def member(self) -> str:
        """The name under which this process joins its group."""
        return f"{self.host}#{self.incarnation}"


class RequestContext(oslo_context.RequestContext):
    """oslo.context's request context, plus the caller's grant if it has one.

    Immutable by convention once built; any thread may read it. What a thread logs
    carries the context that make_current() chose, and no other.
    """

    def __init__(self, grant: Grant | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grant = grant

    def update_store(self) -> None:
        """Do nothing; see make_current().

        oslo.context calls this for every context that is built in a thread without
        a current one, even with ``overwrite=False``: each thread would log the id of
        the first call it served for ever.
        """

    def make_current(self) -> None:
        """Make this the context of what the calling thread logs, until forgotten."""
        super().update_store()

    def get_logging_values(self) -> dict[str, Any]:
        """Return what formatters may show: all but the grant, which has a secret."""
        values = super().get_logging_values()
        values.pop("grant", None)
        return values

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values from which from_dict builds an equal context."""
        values: dict[str, Any] = {
            "request_id": self.request_id,
            "user_id": self.user_id,
            "project_id": self.project_id,
            "is_admin": self.is_admin,
            "roles": list(self.roles or []),
        }
        if self.grant is not None:
            values["grant"] = dataclasses.asdict(self.grant)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **kwargs: Any) -> "RequestContext":
        """Build a context from what to_dict gave; unknown keys are ignored."""
        grant = values.get("grant")
        return cls(
            grant=_grant(grant) if isinstance(grant, Mapping) else None,
            request_id=values.get("request_id"),
            user_id=values.get("user_id"),
            project_id=values.get("project_id"),
            is_admin=bool(values.get("is_admin")),
            roles=list(values.get("roles") or []),
            **kwargs,
        )


def _grant(values: Mapping[str, Any]) -> Grant | None:
    try:
        return Grant(
            host=str(values["host"]),
            incarnation=int(values["incarnation"]),
            secret=str(values["secret"]),
        )
    except (KeyError, TypeError, ValueError):
        return None  # a caller without a usable grant is a caller without one


def forget_current() -> None:
    """Let what the calling thread logs from now on belong to no context."""
    # oslo.context offers no way to do it; its own test fixture does it like this.
    vars(oslo_context._request_store).pop("context", None)


def service_context(grant: Grant | None = None) -> RequestContext:
    """Return a context for a service's own work (audits, leader, start-up)."""
    return RequestContext(grant=grant, is_admin=True)
