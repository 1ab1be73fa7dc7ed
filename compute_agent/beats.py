"""The db driver's ways: beats and their records through a conductor, by RPC."""

from collections.abc import Callable
from collections.abc import Mapping
import datetime

from compute_agent import tenure
from conductor import rpcapi as conductor_rpcapi
from musterbook import context
from musterbook import errors
from musterbook.servicegroup import db_driver


def teller(
    conductor: conductor_rpcapi.ConductorAPI,
    held: tenure.Tenure,
    on_refused: Callable[[], None],
) -> Callable[[float], None]:
    """Return what tells a conductor that the granted process lives.

    :param held: the grant that each beat carries
    :param on_refused: called when the grant isn't known or is another's: looks into it
    """

    def tell(seconds: float) -> None:
        try:
            conductor.beat(held.context, timeout=seconds)
        except (errors.Superseded, errors.GrantForgotten):
            on_refused()
            raise

    return tell


def reader(
    conductor: conductor_rpcapi.ConductorAPI,
) -> Callable[[float], Mapping[str, db_driver.Seen]]:
    """Return what asks a conductor who has beaten."""

    def read(seconds: float) -> Mapping[str, db_driver.Seen]:
        rows = conductor.get_beats(context.service_context(), timeout=seconds)
        return {
            f"{host}#{incarnation}": db_driver.Seen(
                datetime.datetime.fromisoformat(at), age
            )
            for host, incarnation, at, age in rows
        }

    return read


def _no_way(seconds: float) -> Mapping[str, db_driver.Seen]:
    raise errors.GroupUnavailable(backend="db", reason="no host was granted yet")


def _no_beat(seconds: float) -> None:
    _no_way(seconds)


#: For a driver that is only to say whether it is let in: this one has nobody to ask.
NO_WAYS = db_driver.Ways(_no_beat, _no_way)
