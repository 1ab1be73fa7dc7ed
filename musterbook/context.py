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

    Immutable by convention once built; any thread may read it.
    """

    def __init__(self, grant: Grant | None = None, **kwargs: Any) -> None:
        # oslo.context would otherwise make the newest context the thread's
        # "current" one, which is how log lines get a stranger's request id.
        kwargs.setdefault("overwrite", False)
        super().__init__(**kwargs)
        self.grant = grant

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


def service_context(grant: Grant | None = None) -> RequestContext:
    """Return a context for a service's own work (audits, leader, start-up)."""
    return RequestContext(grant=grant, is_admin=True)
