from collections.abc import Callable
import dataclasses
import logging
import random

import pytest

from musterbook import errors
from musterbook.servicegroup import driver as group_driver
from musterbook.servicegroup import pulse
from musterbook.servicegroup import traits
from tests.unit.servicegroup import fakes

INTERVAL = 3.0


class Bench:
    """A pulse on a virtual clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []
        self.stopping = False
        self.driver = fakes.FakeDriver()
        self.make: Callable[[], fakes.FakeDriver] = lambda: self.driver
        self.pulse = pulse.Pulse(
            lambda: self.make(),
            "compute",
            INTERVAL,
            rng=random.Random(1),
            clock=lambda: self.now,
            wait=self.wait,
        )

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        return self.stopping

    def turn(self) -> list[str]:
        """Do a turn and the pause after it; return the driver's calls."""
        self.driver.calls.clear()
        self.now += self.pulse.turn()
        return list(self.driver.calls)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def member(bench: Bench, caplog: pytest.LogCaptureFixture) -> Bench:
    bench.turn()
    bench.turn()
    caplog.clear()
    return bench


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_first_turn_joins_then_beats_and_looks(bench: Bench) -> None:
    assert bench.turn() == ["start", "join"]
    assert bench.waits == []  # a first join is not put off
    assert bench.pulse.status() == pulse.Status(True, INTERVAL, None)
    assert bench.turn() == ["beat", "is_visible"]


def test_quiet_while_all_is_well(
    member: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        member.turn()
    assert warnings(caplog) == []


def test_invisible_rejoins_in_the_same_turn_with_one_warning(
    member: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    member.driver.members.clear()
    assert member.turn() == ["beat", "is_visible", "join"]
    assert 0 <= member.waits[-1] <= INTERVAL * pulse.JITTER
    member.turn()
    (line,) = warnings(caplog)
    assert line.startswith("Joined again")


@pytest.mark.parametrize("step", ["beat", "is_visible"])
def test_vanished_rejoins_in_the_same_turn_with_one_warning(
    member: Bench, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    member.driver.fail[step] = [fakes.vanished()]
    assert member.turn()[-1] == "join"
    (line,) = warnings(caplog)
    assert line.startswith("Joined again")


@pytest.mark.parametrize("step", ["beat", "is_visible"])
def test_short_fault_is_logged_when_it_begins_and_ends(
    member: Bench, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    member.driver.fail[step] = [fakes.unavailable() for _ in range(2)]
    member.turn()
    status = member.pulse.status()
    assert status.error is not None
    assert "switched off" in status.error
    member.turn()
    assert "join" not in member.turn()
    begin, end = warnings(caplog)
    assert "switched off" in begin
    assert "work again" in end
    assert member.pulse.status().error is None


def test_silence_longer_than_the_member_timeout_rejoins_unasked(
    member: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    member.driver.fail["beat"] = [fakes.unavailable() for _ in range(3)]
    calls = [member.turn() for _ in range(5)]
    assert calls[:3] == [["beat"]] * 3
    assert calls[3:] == [["join"], ["beat", "is_visible"]]
    begin, end = warnings(caplog)
    assert "beat failed" in begin
    assert end.startswith("Joined again")


def test_a_process_that_was_frozen_rejoins(
    member: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    member.now += 25
    assert member.turn() == ["join"]
    assert len(warnings(caplog)) == 1


def test_failing_rejoin_goes_on_until_it_works_with_one_warning_at_the_end(
    member: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    member.driver.members.clear()
    member.driver.fail["join"] = [fakes.unavailable() for _ in range(2)]
    member.turn()
    assert not member.pulse.joined.is_set()
    assert member.turn() == ["join"]
    assert member.turn() == ["join"]
    assert member.pulse.joined.is_set()
    begin, end = warnings(caplog)
    assert "beat failed" in begin
    assert end.startswith("Joined again")


def test_asked_to_rejoin_it_looks_first(
    member: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    member.pulse.rejoin()
    assert member.turn() == ["beat", "is_visible"]
    assert warnings(caplog) == []
    member.driver.members.clear()
    member.pulse.rejoin()
    assert member.turn() == ["beat", "is_visible", "join"]


def test_after_a_fault_a_join_is_put_off_once(
    member: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Others come back from the same fault; a kick doesn't make it come sooner."""
    member.driver.fail["beat"] = [fakes.unavailable(), fakes.vanished()]
    member.turn()
    began = member.now
    assert member.turn() == ["beat"]
    assert began < member.now <= began + INTERVAL * pulse.SPREAD
    assert not member.pulse.joined.is_set()
    due, member.now = member.now, began
    member.pulse.rejoin()
    assert member.turn() == []
    assert member.now == pytest.approx(due)
    assert member.turn() == ["join"]
    assert member.waits == []
    begin, end = warnings(caplog)
    assert "beat failed" in begin
    assert end.endswith("because the backend had lost the group")
    assert member.turn() == ["beat", "is_visible"]


def test_a_join_that_was_put_off_and_fails_is_tried_again(member: Bench) -> None:
    member.driver.fail["beat"] = [fakes.unavailable(), fakes.vanished()]
    member.driver.fail["join"] = [fakes.unavailable()]
    calls = [member.turn() for _ in range(4)]
    assert calls == [["beat"], ["beat"], ["join"], ["join"]]
    assert member.pulse.joined.is_set()


def test_stopping_while_a_join_is_put_off_leaves(member: Bench) -> None:
    member.driver.fail["beat"] = [fakes.unavailable(), fakes.vanished()]
    member.turn()
    member.turn()
    member.driver.calls.clear()
    member.pulse.leave()
    assert member.driver.calls == ["leave", "stop"]


def test_a_process_that_was_frozen_looks_where_a_late_beat_counts(
    member: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member.driver, "traits", traits.TRAITS["zookeeper"])
    member.now += 25
    assert member.turn() == ["beat", "is_visible"]
    member.driver.members.clear()
    member.now += 25
    assert member.turn() == ["beat", "is_visible", "join"]


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        (traits.TRAITS["memcached"], INTERVAL, INTERVAL * (1 + pulse.SPREAD)),
        (traits.DB, INTERVAL / 4, INTERVAL / 4),
    ],
)
def test_a_server_that_hangs_is_sent_little(
    member: Bench,
    monkeypatch: pytest.MonkeyPatch,
    kind: group_driver.Traits,
    least: float,
    most: float,
) -> None:
    """What it keeps in its sockets it gets to when it goes on."""
    monkeypatch.setattr(member.driver, "traits", kind)

    def hang() -> None:
        member.now += 3.0
        raise fakes.unavailable()

    monkeypatch.setattr(member.driver, "beat", hang)
    monkeypatch.setattr(member.driver, "join", lambda group: hang())
    pauses = []
    for _ in range(10):
        pauses.append(member.pulse.turn())
        member.now += pauses[-1]
    # Until the member timeout is over a beat may still save the membership.
    assert pauses[:2] == [pytest.approx(INTERVAL / 4)] * 2
    assert all(least <= pause <= most for pause in pauses[3:])


@pytest.fixture
def blind(member: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a member of a backend where it can't see itself."""
    kind = dataclasses.replace(member.driver.traits, visibility_check=False)
    monkeypatch.setattr(member.driver, "traits", kind)
    return member


def test_asked_to_rejoin_where_it_cannot_look(
    blind: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    blind.pulse.rejoin()
    assert blind.turn() == ["join"]
    assert blind.turn() == ["beat", "is_visible"]
    assert len(warnings(caplog)) == 1


def test_asked_to_rejoin_is_not_forgotten_when_the_join_fails(blind: Bench) -> None:
    member = blind
    member.driver.fail["join"] = [fakes.unavailable()]
    member.pulse.rejoin()
    member.turn()
    assert member.turn() == ["join"]


def test_unexpected_error_is_survived_and_logged_with_its_traceback(
    member: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    member.driver.fail["beat"] = [ZeroDivisionError("bug")]
    member.turn()
    (record,) = caplog.records
    assert record.exc_info is not None
    assert member.pulse.status().error == "ZeroDivisionError: bug"
    assert member.turn() == ["beat", "is_visible"]


def test_first_join_is_tried_with_growing_pauses(bench: Bench) -> None:
    bench.driver.fail["join"] = [fakes.unavailable() for _ in range(12)]
    pauses = [bench.pulse.turn() for _ in range(12)]
    assert pauses[0] <= pulse.FIRST_PAUSE
    assert pauses[5] > pauses[0]
    assert max(pauses) <= pulse.LONGEST_PAUSE
    assert not bench.pulse.joined.is_set()
    bench.pulse.turn()
    assert bench.pulse.joined.is_set()


def test_driver_that_could_not_start_is_stopped_and_made_anew(bench: Bench) -> None:
    made: list[fakes.FakeDriver] = []

    def make() -> fakes.FakeDriver:
        driver = fakes.FakeDriver()
        if not made:
            driver.fail["start"] = [fakes.unavailable()]
        made.append(driver)
        return driver

    bench.make = make
    bench.pulse.turn()
    bench.pulse.turn()
    assert made[0].calls == ["start", "stop"]
    assert made[1].calls == ["start", "join"]


def test_pause_makes_up_for_a_slow_turn_but_never_spins(member: Bench) -> None:
    real = member.driver.beat

    def slow() -> None:
        member.now += 2.5
        real()

    member.driver.beat = slow  # type: ignore[method-assign]  # a fault
    assert member.pulse.turn() == pytest.approx(0.5)
    member.now += 0.5
    member.driver.fail["beat"] = [fakes.unavailable()]
    assert member.pulse.turn() == pytest.approx(INTERVAL / 4)


def test_stopping_during_the_jitter_does_not_join(member: Bench) -> None:
    member.driver.members.clear()
    member.stopping = True
    assert "join" not in member.turn()


def test_leave_survives_a_backend_that_is_gone(
    member: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    member.driver.fail = {"leave": [fakes.unavailable()], "stop": [OSError("x")]}
    member.driver.calls.clear()
    member.pulse.leave()
    assert member.driver.calls == ["leave", "stop"]
    assert not member.pulse.joined.is_set()
    assert len(warnings(caplog)) == 1


def test_leave_before_any_turn_touches_nothing(bench: Bench) -> None:
    bench.pulse.leave()
    assert bench.driver.calls == []


def test_another_name_is_joined_before_the_former_is_left(member: Bench) -> None:
    former, member.driver = member.driver, fakes.FakeDriver("me#2")
    order: list[str] = []
    former.note = lambda call: order.append(f"former {call}")
    member.driver.note = lambda call: order.append(f"new {call}")
    member.pulse.rename()
    member.turn()
    assert order == ["new start", "new join", "former leave", "former stop"]
    assert member.turn() == ["beat", "is_visible"]
    assert former.members == set()


def test_a_name_that_cannot_be_joined_yet_keeps_the_former(member: Bench) -> None:
    former, member.driver = member.driver, fakes.FakeDriver("me#2")
    member.driver.fail["join"] = [fakes.unavailable()]
    member.pulse.rename()
    member.turn()
    assert former.members == {"compute"}
    member.turn()
    assert former.members == set()
    assert member.pulse.status().joined


def test_a_rename_before_the_first_turn_is_none(bench: Bench) -> None:
    bench.pulse.rename()
    assert bench.turn() == ["start", "join"]


def test_a_name_that_was_taken_up_before_it_was_told_is_kept(member: Bench) -> None:
    """The name changed, the driver was made anew, then rename() came."""
    member.pulse._driver = None
    member.driver = fakes.FakeDriver("me#2")
    assert member.turn() == ["start", "beat", "is_visible", "join"]
    member.pulse.rename()
    again, member.driver = member.driver, fakes.FakeDriver("me#2")
    again.calls.clear()
    member.turn()
    assert again.calls == ["beat", "is_visible"]
    assert again.members == {"compute"}
    assert member.pulse.status().joined


def test_a_stop_leaves_under_both_names(member: Bench) -> None:
    former, member.driver = member.driver, fakes.FakeDriver("me#2")
    member.driver.fail["join"] = [fakes.unavailable()]
    member.pulse.rename()
    member.turn()
    member.pulse.leave()
    assert former.members == set()


def test_a_refusal_is_told_until_it_passes(bench: Bench) -> None:
    refusal = errors.GroupRefused(backend="fake", reason="it refused the password")
    bench.driver.fail["start"] = [refusal]
    bench.turn()
    assert bench.pulse.status().refused is refusal
    bench.turn()
    assert bench.pulse.status().refused is None


def test_rejoins_of_a_fleet_are_spread() -> None:
    """Who finds the same fault at the same moment doesn't join at the same moment."""
    waits = []
    for seed in range(1000):
        one = Bench()
        one.pulse._rng.seed(seed)
        one.turn()
        one.driver.members.clear()
        one.turn()
        waits += one.waits
    assert len(waits) == 1000
    slots = [0] * 10
    for seconds in waits:
        slots[int(seconds / (INTERVAL * pulse.JITTER) * 10)] += 1
    # A tenth of the time has about a tenth of the joins.
    assert min(slots) > 50
    assert max(slots) < 200


def test_joins_that_are_put_off_are_spread() -> None:
    dues = []
    for seed in range(1000):
        one = Bench()
        one.pulse._rng.seed(seed)
        one.turn()
        one.driver.fail["beat"] = [fakes.unavailable(), fakes.vanished()]
        one.turn()
        began = one.now
        one.turn()
        dues.append(one.now - began)
    slots = [0] * 10
    for seconds in dues:
        slots[int(seconds / (INTERVAL * pulse.SPREAD) * 10)] += 1
    assert min(slots) > 50
    assert max(slots) < 200
