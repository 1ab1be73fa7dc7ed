"""A fleet, its group and its store in memory, watched on a virtual clock."""

import dataclasses

from musterbook import errors
from musterbook.servicegroup import ping
from musterbook.servicegroup import roster
from musterbook.servicegroup import verdict
from tests.unit.servicegroup import fakes

POLICY = verdict.Policy(
    member_timeout=10.0,
    service_down_time=40.0,
    mass_loss_minimum=5,
    mass_loss_threshold=0.2,
    mass_loss_hold=300.0,
)


class Fleet:
    """Steps once a virtual second; stores each transition as a leader would."""

    def __init__(self, hosts: int, zones: int = 1) -> None:
        self.now = 1000.0
        self.granted = {
            f"h{i:02}": verdict.Granted(
                host=f"h{i:02}",
                incarnation=1,
                goodbye=False,
                stalled=None,
                forced_down=False,
                previous=None,
                zone=f"z{i % zones}",
            )
            for i in range(hosts)
        }
        self.members = {g.member for g in self.granted.values()}
        self.reachable = True
        self.group_exists = True
        self.canary: bool | None = True
        self.answering: set[str] = set()
        self.pings_leave = True  # the leader's own connection to the broker works
        self.answered: dict[str, float] = {}
        self.unanswered: dict[str, float] = {}
        self.asked: dict[str, float] = {}
        self.not_asked: dict[str, float] = {}
        self.history: list[tuple[float, str, str, str]] = []
        self.watch = roster.Watch(POLICY)
        self.last = roster.Decision({}, {}, ())

    @property
    def hosts(self) -> list[str]:
        return sorted(self.granted)

    def poll(self) -> frozenset[str] | errors.GroupError:
        if not self.reachable:
            return fakes.unavailable()
        if not self.group_exists:
            return fakes.vanished()
        return frozenset(self.members)

    def new_leader(self) -> None:
        self.watch = roster.Watch(POLICY)
        self.watch.recall(self.past())
        self.answered, self.unanswered, self.asked, self.not_asked = {}, {}, {}, {}

    def past(self) -> list[roster.Past]:
        """Return what a leader finds of the last 20 minutes."""
        return [
            roster.Past(host, verdict.State(state), verdict.Cause(cause), when)
            for when, host, state, cause in self.history
            if self.now - when < 1200
        ]

    def reset(self, host: str) -> None:
        """End a hold, as the conductor does for an operator."""
        previous = self.granted[host].previous
        if previous is None or previous.cause is not verdict.Cause.FLAPPING:
            return
        said = dataclasses.replace(previous, cause=verdict.Cause.FLAPPING_RESET)
        self.history.append((self.now, host, said.state, said.cause))
        self.change(host, previous=said)

    def change(self, host: str, **facts: object) -> None:
        if "incarnation" in facts:
            known_of = self.answered, self.unanswered, self.asked, self.not_asked
            for known in known_of:
                known.pop(host, None)
        self.granted[host] = dataclasses.replace(
            self.granted[host],
            **facts,  # type: ignore[arg-type]  # fields of Granted
        )

    def leave(self, *hosts: str) -> None:
        self.members -= {self.granted[h].member for h in hosts}

    def join(self, *hosts: str) -> None:
        self.members |= {self.granted[h].member for h in hosts}
        self.group_exists = True

    def step(self, seconds: float = 1.0) -> roster.Decision:
        self.now += seconds
        replies = ping.Replies(
            self.asked, self.answered, self.unanswered, self.not_asked
        )
        canary = self.canary if self.reachable else None
        self.last = self.watch.step(
            self.poll(), self.granted, replies, self.now, canary
        )
        for host in self.last.to_ping:
            self.ask(host)
        for host, said in self.last.verdicts.items():
            if not said.same_as(self.granted[host].previous):
                self.history.append((self.now, host, said.state, said.cause))
                self.change(host, previous=said)
        return self.last

    def ask(self, host: str) -> None:
        self.asked[host] = self.now
        self.unanswered.pop(host, None)
        if self.pings_leave and host in self.answering:
            self.answered[host] = self.now
        elif self.pings_leave:
            self.unanswered[host] = self.now
        else:
            self.not_asked[host] = self.now

    def run(self, seconds: int) -> roster.Decision:
        for _ in range(seconds):
            self.step()
        return self.last

    def stored(self, host: str) -> tuple[str, str] | None:
        previous = self.granted[host].previous
        return None if previous is None else (previous.state, previous.cause)

    def when(self, host: str, state: str) -> float:
        """Return the instant of the host's last transition to a state."""
        return max(t for t, h, s, _ in self.history if (h, s) == (host, state))

    def states(self, host: str) -> list[tuple[str, str]]:
        return [(s, c) for _, h, s, c in self.history if h == host]
