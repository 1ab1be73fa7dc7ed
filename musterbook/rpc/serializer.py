"""Carrying the context, and objects by a serializer of theirs."""

from collections.abc import Mapping
from typing import Any

import oslo_messaging

from musterbook import context
from musterbook import errors


class ContextSerializer(oslo_messaging.Serializer):  # type: ignore[misc]  # untyped base
    """Sends a RequestContext as its dictionary and leaves arguments to another.

    :param inner: an oslo.messaging serializer for arguments and results, such as that
        of oslo.versionedobjects; without one they have to be JSON values
    """

    def __init__(self, inner: Any = None) -> None:
        self._inner = inner if inner is not None else oslo_messaging.NoOpSerializer()

    def serialize_entity(self, ctxt: Any, entity: Any) -> Any:
        """Return the entity as JSON values."""
        return self._inner.serialize_entity(ctxt, entity)

    def deserialize_entity(self, ctxt: Any, entity: Any) -> Any:
        """Return the entity that was sent.

        :raises UnsupportedObject: if it is none that this process knows
        """
        try:
            return self._inner.deserialize_entity(ctxt, entity)
        except errors.MusterbookError:
            raise
        except Exception as exc:
            line = errors.one_line(str(exc))[:300]
            raise errors.UnsupportedObject(
                reason=f"{type(exc).__name__}: {line}"
            ) from exc

    def serialize_context(self, ctxt: context.RequestContext) -> dict[str, Any]:
        """Return the context as JSON values."""
        return ctxt.to_dict()

    def deserialize_context(self, ctxt: Mapping[str, Any]) -> context.RequestContext:
        """Return an equal context to the one that was sent.

        :raises InvalidInput: nobody can have sent that
        """
        try:
            return context.RequestContext.from_dict(ctxt)
        except (TypeError, ValueError, AttributeError) as exc:
            raise errors.InvalidInput(
                field="context", reason=f"can't be read ({type(exc).__name__})"
            ) from None
