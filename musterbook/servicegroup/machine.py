"""The verdict's state machine as data: what each cause means, begins by and ends by.

verdict.py decides; this says what may come of it. docs/liveness.md is made from it, and
tests hold the two against each other: no run shows a step that isn't in here, and each
step that is in here is shown by some run.
"""

from collections.abc import Iterator
import dataclasses

from musterbook.servicegroup import verdict
from musterbook.servicegroup.verdict import Cause
from musterbook.servicegroup.verdict import State


@dataclasses.dataclass(frozen=True)
class Standing:
    """One cause for which a host is in a state.

    :ivar begins: when a host gets there
    :ivar ends: what ends it, besides what ends any: an operator who forces it down,
        a goodbye, and the grant of another incarnation
    :ivar usually: what mostly follows
    """

    cause: Cause
    state: State
    begins: str
    ends: str
    usually: tuple[Cause, ...]


STANDINGS = (
    Standing(
        Cause.IN_GROUP,
        State.UP,
        "the granted incarnation is in the group",
        "it leaves the group, or says that it is stalled",
        (Cause.VANISHED, Cause.STALLED, Cause.GOODBYE, Cause.FORCED_DOWN),
    ),
    Standing(
        Cause.NOT_YET_JOINED,
        State.SUSPECT,
        "a process was granted the host and was never seen in the group, nor beat "
        "through a conductor",
        "it is seen there, or beats; or it is silent for service_down_time",
        (Cause.IN_GROUP, Cause.DB_BEAT, Cause.SILENT),
    ),
    Standing(
        Cause.VANISHED,
        State.SUSPECT,
        "it was in the group at one look and not at the next",
        "it is seen there again; or it answers each ping; or it is silent for "
        "service_down_time",
        (Cause.IN_GROUP, Cause.NOT_YET_BACK, Cause.FLAPPING, Cause.SILENT),
    ),
    Standing(
        Cause.NOT_YET_BACK,
        State.SUSPECT,
        "it was there before nobody could look (an outage, another leader), and isn't "
        "after that; or it left and has answered each ping since: the group has lost "
        "it, and the host lives",
        "it is seen there again; or it is silent for service_down_time",
        (Cause.IN_GROUP, Cause.SILENT),
    ),
    Standing(
        Cause.STALLED,
        State.SUSPECT,
        "it is in the group, or beats through a conductor, and says that its working "
        "loop makes no progress",
        "it says that the loop goes on; or it leaves the group, or ceases to beat",
        (Cause.IN_GROUP, Cause.VANISHED, Cause.DB_BEAT, Cause.NO_DB_BEAT),
    ),
    Standing(
        Cause.FLAPPING,
        State.SUSPECT,
        "it is in the group, after it was missed and came back three times within "
        "15 minutes",
        "the time is over (1 minute, doubled by each further return, 5 at most), or "
        "an operator resets it; or it leaves the group",
        (Cause.IN_GROUP, Cause.FLAPPING_RESET, Cause.VANISHED),
    ),
    Standing(
        Cause.FLAPPING_RESET,
        State.SUSPECT,
        "an operator has ended its hold for flapping",
        "the leader looks",
        (Cause.IN_GROUP,),
    ),
    Standing(
        Cause.SILENT,
        State.DOWN,
        "it was silent in the group for service_down_time, and was asked over RPC "
        "without an answer; time in which nobody could be asked doesn't count",
        "it is seen in the group; or it answers, which makes it suspect",
        (Cause.IN_GROUP, Cause.VANISHED, Cause.NOT_YET_JOINED),
    ),
    Standing(
        Cause.GOODBYE,
        State.DOWN,
        "its process says that it stops",
        "another process is granted the host",
        (Cause.NOT_YET_JOINED,),
    ),
    Standing(
        Cause.FORCED_DOWN,
        State.DOWN,
        "an operator forces it down",
        "the operator takes that back; what is then seen counts",
        (Cause.IN_GROUP, Cause.SILENT),
    ),
    Standing(
        Cause.GRANT_FORGOTTEN,
        State.UNKNOWN,
        "the database had forgotten the grant of a process that serves all the while",
        "it is seen under its new name, or beats; or it had a member timeout and two "
        "beats to join",
        (Cause.IN_GROUP, Cause.DB_BEAT),
    ),
    Standing(
        Cause.NEVER_GRANTED,
        State.UNKNOWN,
        "no agent of the host ever said hello, and no beat of a legacy one was seen",
        "one is granted the host, or a legacy one beats",
        (Cause.NOT_YET_JOINED, Cause.DB_BEAT),
    ),
    Standing(
        Cause.DB_BEAT,
        State.UP,
        "the last beat through a conductor (driver db, or a legacy agent) is no older "
        "than service_down_time by the database's clock",
        "it is older; or it says that it is stalled; or another process says hello",
        (
            Cause.NO_DB_BEAT,
            Cause.STALLED,
            Cause.NOT_YET_JOINED,
            Cause.GOODBYE,
            Cause.FORCED_DOWN,
        ),
    ),
    Standing(
        Cause.NO_DB_BEAT,
        State.SUSPECT,
        "that beat is older",
        "it beats; or the leader, too, has seen no beat for service_down_time, and "
        "nobody answers",
        (Cause.DB_BEAT, Cause.NO_DB_BEAT),
    ),
    Standing(
        Cause.NO_DB_BEAT,
        State.DOWN,
        "the leader has looked for a beat for service_down_time in vain, and nobody "
        "answers",
        "it beats; or it answers, which makes it suspect; or another process says "
        "hello",
        (Cause.DB_BEAT, Cause.NO_DB_BEAT, Cause.NOT_YET_JOINED),
    ),
)
#: Of hosts that beat through a conductor, or were never granted to anybody.
LEGACY = frozenset({Cause.NEVER_GRANTED, Cause.DB_BEAT, Cause.NO_DB_BEAT})

#: Causes of a freeze: the state is `unknown` with this cause, the verdict stands still.
FREEZES = (
    (
        Cause.GROUP_UNREACHABLE,
        "the whole fleet",
        "the leader gets no answer from the group backend",
        "it answers, and whoever was up is back or had a member timeout and two "
        "beats to come back, during which it answered",
    ),
    (
        Cause.GROUP_VANISHED,
        "the whole fleet",
        "the backend answers and the group is gone, as in a Redis that lost its data",
        "as above; or mass_loss_hold has passed, nobody answers a ping and the canary "
        "was there all the while: it is believed; or an operator says so",
    ),
    (
        Cause.MASS_LOSS,
        "a zone",
        "at least mass_loss_minimum hosts, and more than mass_loss_threshold of the "
        "zone, were lost within a member timeout",
        "so many are back that the rest is no mass loss; or mass_loss_hold has "
        "passed and a host in the group answers pings, or, with nobody there, the "
        "canary was there all the while; or an operator says so",
    ),
    (
        Cause.NO_LEADER,
        "the whole fleet",
        "no conductor has renewed the leader's lease (nothing is stored; whoever "
        "answers sees it)",
        "a conductor leads",
    ),
)
#: How a host begins.
FIRST = (
    Cause.NOT_YET_JOINED,
    Cause.GRANT_FORGOTTEN,
    Cause.NEVER_GRANTED,
    Cause.DB_BEAT,
    Cause.NO_DB_BEAT,
)


def may_follow(before: Cause, after: Cause) -> bool:
    """Return whether one cause may come right after another, of one host.

    Nearly any may: while verdicts are frozen, a host may go any way, and one that is
    started anew may have another driver. A host that was granted never is one that
    wasn't, and a legacy one that has beaten has beaten.
    """
    if before is after:
        return False  # it is the same, or the same of another incarnation
    if after is Cause.NEVER_GRANTED:
        return before is Cause.FORCED_DOWN
    if after is Cause.FLAPPING_RESET:
        return before is Cause.FLAPPING
    return (before, after) != (Cause.FLAPPING_RESET, Cause.FLAPPING)


def _state(cause: Cause, before: Standing) -> State:
    """Return the state that comes with a cause; of several the next in the table."""
    return next(s.state for s in STANDINGS if s.cause is cause and s is not before)


def usual_steps() -> Iterator[tuple[State, State, tuple[Cause, ...]]]:
    """Return from which state to which a host mostly goes, and by which causes."""
    for before in verdict.State:
        steps: dict[State, list[Cause]] = {}
        for standing in STANDINGS:
            if standing.state is before:
                for cause in standing.usually:
                    steps.setdefault(_state(cause, standing), []).append(cause)
        for after, causes in steps.items():
            if after is not before:
                yield before, after, tuple(dict.fromkeys(causes))
