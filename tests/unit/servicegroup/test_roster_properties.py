"""The rules that hold whatever happens, searched for with hypothesis."""

import dataclasses

import hypothesis
from hypothesis import strategies as st

from musterbook.servicegroup import flapping
from musterbook.servicegroup import roster
from musterbook.servicegroup import verdict
from tests.unit.servicegroup.fleet import Fleet
from tests.unit.servicegroup.fleet import POLICY

HOSTS = 8
_host = st.integers(0, HOSTS - 1).map(lambda i: f"h{i:02}")
_event = st.one_of(
    st.tuples(
        st.sampled_from(
            ["leave", "leave", "join", "join", "answer", "goodbye", "force", "lift"]
        ),
        _host,
    ),
    st.tuples(st.sampled_from(["stall", "restart", "ungrant", "delete"]), _host),
    st.tuples(
        st.sampled_from(
            [
                "all-leave",
                "all-join",
                "lose-group",
                "unreachable",
                "reachable",
                "leader",
                "release",
                "broker-lost",
                "broker-back",
                "canary-lost",
                "canary-back",
            ]
        ),
        st.just(""),
    ),
)
_script = st.lists(st.tuples(_event, st.sampled_from([0, 1, 3, 12, 45, 310])))


def apply(fleet: Fleet, event: str, host: str) -> None:  # noqa: C901 - a table of events
    if host and host not in fleet.granted:
        return
    match event:
        case "leave":
            fleet.leave(host)
        case "join":
            fleet.join(host)
        case "answer":
            fleet.answered[host] = fleet.now
            fleet.unanswered.pop(host, None)
        case "goodbye":
            fleet.change(host, goodbye=True)
        case "force" | "lift":
            fleet.change(host, forced_down=event == "force")
        case "stall":
            fleet.change(host, stalled="audit")
        case "restart":
            fleet.leave(host)
            old = fleet.granted[host].incarnation or 0
            fleet.change(host, incarnation=old + 1, goodbye=False, stalled=None)
        case "ungrant":
            fleet.change(host, incarnation=None)
        case "delete":
            del fleet.granted[host]
        case "all-leave":
            fleet.members.clear()
        case "all-join":
            fleet.join(*fleet.hosts)
        case "lose-group":
            fleet.members.clear()
            fleet.group_exists = False
        case "unreachable" | "reachable":
            fleet.reachable = event == "reachable"
        case "broker-lost" | "broker-back":
            fleet.pings_leave = event == "broker-back"
        case "canary-lost" | "canary-back":
            fleet.canary = event == "canary-back"
        case "leader":
            fleet.new_leader()
        case "release":
            for scope in ("", "z0", "z1"):
                fleet.watch.release(scope)


class Observer:
    """Checks each decision against what an onlooker with full sight knows."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        # When this leader last saw an incarnation, or first looked for it.
        self.seen: dict[tuple[str, int | None], float] = {}
        self.watch = fleet.watch

    def step(self) -> None:
        fleet = self.fleet
        if fleet.watch is not self.watch:
            self.watch = fleet.watch
            self.seen = {}
        before = dict(fleet.granted)
        decision = fleet.step()
        readable = fleet.reachable and fleet.group_exists
        for host, g in before.items():
            key = (host, g.incarnation)
            present = readable and g.member in fleet.members
            if present:
                self.seen[key] = fleet.now
            else:
                self.seen.setdefault(key, fleet.now)
            said = decision.verdicts.get(host)
            frozen = "" in decision.freezes or g.zone in decision.freezes
            if said is None:
                assert frozen
            else:
                self.check(g, said, present, frozen)

    def check(
        self, g: verdict.Granted, said: verdict.Verdict, present: bool, frozen: bool
    ) -> None:
        if g.forced_down:
            assert said.cause is verdict.Cause.FORCED_DOWN
            assert said.state is verdict.State.DOWN
            return
        assert said.cause is not verdict.Cause.FORCED_DOWN
        if g.goodbye and g.incarnation is not None:
            assert said.cause is verdict.Cause.GOODBYE
            return
        assert not frozen
        assert (said.state is verdict.State.UNKNOWN) == (g.incarnation is None)
        if g.incarnation is None:
            return
        if present:
            held = said.cause is verdict.Cause.FLAPPING
            if held:  # more of it in test_flapping.py
                assert self.returns(g.host) >= flapping.LIMIT
            waits = g.stalled or held
            expected = verdict.State.SUSPECT if waits else verdict.State.UP
            assert said.state is expected
        elif said.state is verdict.State.DOWN:
            self.check_down(g, said)
        else:
            assert said.state is verdict.State.SUSPECT

    def returns(self, host: str) -> int:
        """Return how often the host was missed by name, now being the last return."""
        left = self.fleet.now - flapping.WINDOW - flapping.MOST_HOLD
        return sum(
            verdict.has_expired(verdict.State(state), verdict.Cause(cause))
            for when, name, state, cause in self.fleet.history
            if name == host and when >= left
        )

    def check_down(self, g: verdict.Granted, said: verdict.Verdict) -> None:
        now = self.fleet.now
        assert said.cause is verdict.Cause.SILENT
        answered = self.fleet.answered.get(g.host)
        assert answered is None or now - answered >= POLICY.service_down_time
        if not said.same_as(g.previous):
            assert self.fleet.unanswered.get(g.host) is not None
            not_asked = self.fleet.not_asked.get(g.host)
            assert not_asked is None or now - not_asked >= POLICY.service_down_time
            silent = now - self.seen[g.host, g.incarnation]
            assert silent >= POLICY.service_down_time - POLICY.member_timeout


@hypothesis.given(_script)
@hypothesis.settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
def test_whatever_happens(
    script: list[tuple[tuple[str, str], int]],
) -> None:
    fleet = Fleet(HOSTS, zones=2)
    observer = Observer(fleet)
    observer.step()
    for (event, host), seconds in script:
        apply(fleet, event, host)
        for _ in range(seconds):
            observer.step()


@hypothesis.given(_script)
@hypothesis.settings(max_examples=40, deadline=None)
def test_same_inputs_same_answer(script: list[tuple[tuple[str, str], int]]) -> None:
    one, two = Fleet(HOSTS, zones=2), Fleet(HOSTS, zones=2)
    for (event, host), seconds in script:
        for fleet in (one, two):
            apply(fleet, event, host)
            fleet.run(min(seconds, 45))
        assert one.last == two.last
    assert one.history == two.history


@hypothesis.given(_script)
@hypothesis.settings(max_examples=60, deadline=None)
def test_leader_change_alone_moves_no_present_and_no_down_host(
    script: list[tuple[tuple[str, str], int]],
) -> None:
    fleet = Fleet(HOSTS, zones=2)
    fleet.step()
    for (event, host), seconds in script:
        apply(fleet, event, host)
        fleet.run(min(seconds, 45))
    fleet.pings_leave = True
    fleet.answered.clear()
    fleet.run(45)
    if fleet.last.freezes:
        return
    before = list(fleet.history)
    fleet.new_leader()
    fleet.step()
    assert fleet.history == before


@hypothesis.given(
    st.sets(_host, max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=60),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_nothing_that_happens_to_the_backend_alone_takes_a_host_down(
    rejoin_late: set[str], reachable: list[bool]
) -> None:
    fleet = Fleet(HOSTS, zones=2)
    fleet.step()
    for up in reachable:
        fleet.reachable = up
        fleet.step(3)
        if up:
            # Late ones need a beat to notice that they have to join again.
            fleet.members.clear()
            fleet.join(*(set(fleet.hosts) - rejoin_late))
            fleet.step(3)
            fleet.join(*rejoin_late)
            fleet.step()
    assert "down" not in {s for _, _, s, _ in fleet.history}


def test_the_dead_are_down_in_the_end() -> None:
    fleet = Fleet(HOSTS, zones=2)
    fleet.step()
    for _ in range(20):
        apply(fleet, "unreachable", "")
        fleet.run(30)
        apply(fleet, "reachable", "")
        fleet.leave("h03")
        fleet.run(57)
    assert fleet.stored("h03") == ("down", "silent")


def test_decision_and_verdict_are_values() -> None:
    said = verdict.Verdict(verdict.State.UP, verdict.Cause.IN_GROUP, 1, "seen")
    other = dataclasses.replace(said, evidence="seen again")
    assert other.same_as(said)
    assert not other.same_as(None)
    assert not dataclasses.replace(said, incarnation=2).same_as(said)
    empty = roster.Decision({}, {}, ())
    assert empty == roster.Decision({}, {}, ())
