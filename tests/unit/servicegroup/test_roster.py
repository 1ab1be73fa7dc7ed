"""The reader's side by example; test_roster_properties.py searches for others."""

import pytest

from musterbook.servicegroup import ping
from musterbook.servicegroup import verdict
from tests.unit.servicegroup import fleet as fleet_module
from tests.unit.servicegroup.fleet import Fleet
from tests.unit.servicegroup.fleet import POLICY

UP = ("up", "in-group")
SILENT = ("down", "silent")
VANISHED = ("suspect", "vanished")
GRACE = int(POLICY.recovery_grace) + 1
HOLD = int(POLICY.mass_loss_hold)


@pytest.fixture
def three() -> Fleet:
    fleet = Fleet(3)
    fleet.step()
    return fleet


@pytest.fixture
def ten() -> Fleet:
    """Ten hosts of one zone, ten of another."""
    fleet = Fleet(20, zones=2)
    fleet.step()
    return fleet


def zone(fleet: Fleet, name: str) -> list[str]:
    return [h for h in fleet.hosts if fleet.granted[h].zone == name]


# -- one host ----------------------------------------------------------------------


def test_present_hosts_are_up_at_first_sight(three: Fleet) -> None:
    assert {three.stored(h) for h in three.hosts} == {UP}
    assert three.last.to_ping == ()


def test_one_of_three_killed_is_suspect_then_down_at_the_exact_time(
    three: Fleet,
) -> None:
    three.leave("h01")
    three.run(60)
    missed = three.when("h01", "suspect")
    assert missed == 1002
    assert three.states("h01")[1:] == [("suspect", "vanished"), SILENT]
    assert three.when("h01", "down") == (
        missed - POLICY.member_timeout + POLICY.service_down_time
    )
    assert three.last.freezes == {}
    assert three.stored("h00") == UP


def test_who_answers_is_suspect_and_never_down(three: Fleet) -> None:
    three.leave("h01")
    three.answering.add("h01")
    three.run(1000)
    assert three.states("h01")[1:] == [VANISHED, ("suspect", "not-yet-back")]
    assert "the group has lost it, the host lives" in (
        three.last.verdicts["h01"].evidence
    )
    three.answering.clear()
    last = three.answered["h01"]
    three.run(60)
    assert three.when("h01", "down") == last + POLICY.service_down_time


def test_back_before_down_is_up_without_more(three: Fleet) -> None:
    three.leave("h01")
    three.run(20)
    three.join("h01")
    three.step()
    assert three.states("h01") == [UP, ("suspect", "vanished"), UP]


def test_down_comes_back_when_seen(three: Fleet) -> None:
    three.leave("h01")
    three.run(60)
    three.join("h01")
    three.step()
    assert three.stored("h01") == UP
    three.leave("h01")
    three.step()
    assert three.stored("h01") == ("suspect", "vanished")


def test_down_becomes_suspect_when_it_answers(three: Fleet) -> None:
    three.leave("h01")
    three.run(60)
    three.answered["h01"] = three.now
    three.step()
    assert three.stored("h01") == ("suspect", "vanished")


def test_never_granted_is_unknown(three: Fleet) -> None:
    three.change("h01", incarnation=None)
    three.step()
    assert three.stored("h01") == ("unknown", "never-granted")


def test_granted_and_not_joined_is_suspect_then_down() -> None:
    fleet = Fleet(3)
    fleet.leave("h01")
    fleet.run(60)
    assert fleet.states("h01") == [("suspect", "not-yet-joined"), SILENT]
    assert fleet.when("h01", "down") == 1001 + POLICY.service_down_time


def test_goodbye_is_down_at_once_even_while_still_in_the_group(three: Fleet) -> None:
    three.change("h01", goodbye=True)
    three.step()
    assert three.stored("h01") == ("down", "goodbye")


def test_forced_down_wins_over_everything(three: Fleet) -> None:
    three.change("h01", forced_down=True, goodbye=True, incarnation=None)
    three.reachable = False
    three.step()
    assert three.stored("h01") == ("down", "forced-down")


def test_forced_down_lifted(three: Fleet) -> None:
    three.change("h01", forced_down=True)
    three.run(100)
    three.change("h01", forced_down=False)
    three.step()
    assert three.stored("h01") == UP


def test_stalled_is_suspect_with_its_reason(three: Fleet) -> None:
    three.change("h01", stalled="audit has not ended for 300 s")
    three.run(600)
    assert three.stored("h01") == ("suspect", "stalled")
    assert "300 s" in three.last.verdicts["h01"].evidence
    three.change("h01", stalled=None)
    three.step()
    assert three.stored("h01") == UP


def test_next_incarnation_starts_anew(three: Fleet) -> None:
    three.leave("h01")
    three.run(60)
    three.change("h01", incarnation=2)
    three.step()
    assert three.stored("h01") == ("suspect", "not-yet-joined")
    three.members.add("h01#1")  # the old process thaws: nobody any more
    three.step()
    assert three.stored("h01") == ("suspect", "not-yet-joined")
    three.join("h01")
    three.step()
    assert three.stored("h01") == UP


def grant_anew(fleet: Fleet, host: str, incarnation: int) -> None:
    """Store what a hello of a process stores whose grant was forgotten."""
    said = verdict.Verdict(
        verdict.State.UNKNOWN, verdict.Cause.GRANT_FORGOTTEN, incarnation, ""
    )
    fleet.change(host, incarnation=incarnation, previous=said)


def test_granted_anew_is_unknown_until_it_has_joined(three: Fleet) -> None:
    grant_anew(three, "h01", 7)
    three.run(GRACE - 2)
    three.join("h01")
    three.step()
    # Never suspect, which would be a reason to act; h00 and h02 are as they were.
    assert three.states("h01") == [UP, UP]
    assert three.stored("h00") == UP


def test_granted_anew_and_never_joined_is_suspect_then_down(three: Fleet) -> None:
    grant_anew(three, "h01", 7)
    three.run(GRACE + int(POLICY.service_down_time))
    assert three.states("h01")[1:] == [("suspect", "not-yet-back"), SILENT]


def test_granted_anew_and_lost_again_is_suspect(three: Fleet) -> None:
    grant_anew(three, "h01", 7)
    three.join("h01")
    three.step()
    three.leave("h01")
    three.step()
    assert three.stored("h01") == ("suspect", "vanished")


def test_deleted_host_is_forgotten(three: Fleet) -> None:
    three.leave("h01")
    three.step()
    del three.granted["h01"]
    assert "h01" not in three.step().verdicts


# -- the backend -------------------------------------------------------------------


def test_fresh_deployment_without_a_group_is_no_freeze() -> None:
    fleet = Fleet(2)
    fleet.group_exists = False
    fleet.leave(*fleet.hosts)
    assert fleet.step().freezes == {}
    assert fleet.stored("h00") == ("suspect", "not-yet-joined")
    fleet.join("h00", "h01")
    fleet.step()
    assert fleet.stored("h00") == UP


def test_unreachable_freezes_and_thaws_when_all_are_back(three: Fleet) -> None:
    three.reachable = False
    three.step()
    assert three.last.verdicts == {}
    assert three.last.freezes[""].cause == "group-unreachable"
    assert three.last.freezes[""].since == three.now
    assert "switched off" in three.last.freezes[""].evidence
    assert three.last.to_ping == ()
    three.run(500)
    assert three.last.freezes[""].since == 1002
    three.reachable = True
    three.step()
    assert three.last.freezes == {}
    assert {s for _, _, s, _ in three.history} == {"up"}


def test_missing_after_an_outage_is_suspect_after_the_grace_and_counts_from_recovery(
    three: Fleet,
) -> None:
    three.reachable = False
    three.run(100)
    three.leave("h01")
    three.reachable = True
    three.step()
    recovered = three.now
    assert three.last.freezes[""].cause == "group-unreachable"
    assert three.last.to_ping == ("h01",)
    three.run(GRACE - 1)
    assert three.stored("h01") == UP
    three.step()
    assert three.last.freezes == {}
    assert three.stored("h01") == ("suspect", "not-yet-back")
    three.run(60)
    assert three.when("h01", "down") == recovered + POLICY.service_down_time


def test_frozen_words_still_count(three: Fleet) -> None:
    three.reachable = False
    three.change("h00", forced_down=True)
    three.change("h01", goodbye=True)
    three.step()
    assert set(three.last.verdicts) == {"h00", "h01"}


def test_redis_restarted_empty_freezes_until_everyone_joined_again(
    three: Fleet,
) -> None:
    three.group_exists = False
    three.members.clear()
    three.step()
    assert three.last.freezes[""].cause == "group-vanished"
    three.join("h00")
    three.step()
    assert three.last.freezes[""].cause == "group-vanished"
    three.join("h01", "h02")
    three.step()
    assert three.last.freezes == {}
    assert {s for _, _, s, _ in three.history} == {"up"}


def test_unreachable_then_vanished_keeps_since_and_changes_its_cause(
    three: Fleet,
) -> None:
    three.reachable = False
    three.run(10)
    three.reachable, three.group_exists = True, False
    three.members.clear()
    three.step()
    assert three.last.freezes[""].cause == "group-vanished"
    assert three.last.freezes[""].since == 1002


def test_group_that_nobody_can_join_stays_frozen_while_hosts_answer(
    three: Fleet,
) -> None:
    three.answering.update(three.hosts)
    three.group_exists = False
    three.run(3 * HOLD)
    assert three.last.freezes[""].cause == "group-vanished"
    assert {s for _, _, s, _ in three.history} == {"up"}


def test_group_gone_with_all_its_hosts_is_believed_after_the_hold(
    three: Fleet,
) -> None:
    three.group_exists = False
    three.members.clear()
    three.run(HOLD)
    assert three.last.freezes
    three.step()
    assert three.last.freezes == {}
    assert {three.stored(h) for h in three.hosts} == {SILENT}


def test_operator_ends_a_vanished_group(three: Fleet) -> None:
    three.group_exists = False
    three.run(5)
    assert three.watch.release("")
    three.step()
    assert three.last.freezes == {}
    assert three.stored("h00") == ("suspect", "vanished")
    three.run(60)
    assert three.stored("h00") == SILENT


def test_operator_can_not_end_what_nobody_can_see(three: Fleet) -> None:
    assert not three.watch.release("")
    three.reachable = False
    three.step()
    assert not three.watch.release("")


def test_short_outages_only_pause_the_count(three: Fleet) -> None:
    three.leave("h01")
    three.run(20)
    for _ in range(4):  # a second each that nobody could look
        three.reachable = False
        three.step()
        three.reachable = True
        three.step()
    three.run(60)
    missed = three.when("h01", "suspect")
    assert three.when("h01", "down") == missed + 30 + 4


def test_backend_that_fails_again_gives_the_whole_grace_again(three: Fleet) -> None:
    three.leave("h01")
    three.reachable = False
    three.run(20)
    three.reachable = True
    three.run(5)
    three.reachable = False
    three.run(20)
    three.reachable = True
    three.run(GRACE)
    assert three.stored("h01") == UP
    three.step()
    assert three.stored("h01") == ("suspect", "not-yet-back")


def test_a_backend_that_fails_now_and_then_hides_no_death() -> None:
    fleet = Fleet(10)
    fleet.answering.update(fleet.hosts)
    fleet.run(5)
    dead = fleet.hosts[0]
    fleet.answering.discard(dead)
    fleet.reachable = False
    fleet.step()
    fleet.leave(dead)
    frozen = 0
    for number in range(1, 601):
        fleet.reachable = number % 15 != 0
        frozen += bool(fleet.step().freezes)
    assert fleet.stored(dead) == SILENT
    assert frozen <= GRACE + 2 + 600 / 15
    assert {fleet.stored(h) for h in fleet.hosts[1:]} == {UP}


def test_a_backend_that_fails_every_other_time_hides_no_death(three: Fleet) -> None:
    three.leave("h01")
    three.run(3)
    for number in range(120):
        three.reachable = number % 2 == 0
        three.step()
    missed = three.when("h01", "suspect")
    # The seconds at the end of which it answered count.
    assert missed + 55 <= three.when("h01", "down") <= missed + 62


def test_a_group_that_is_gone_is_believed_though_the_backend_fails_at_times(
    three: Fleet,
) -> None:
    three.group_exists = False
    three.members.clear()
    for number in range(1, int(HOLD * 1.2)):
        three.reachable = number % 15 != 0
        three.step()
    assert {three.stored(h) for h in three.hosts} == {SILENT}


def test_unreachable_after_vanished_starts_the_hold_anew(three: Fleet) -> None:
    three.group_exists = False
    three.run(HOLD - 10)
    three.reachable = False
    three.run(60)
    assert three.last.to_ping == ()
    three.reachable = True
    three.run(HOLD)
    assert three.last.freezes[""].cause == "group-vanished"
    three.step()
    assert three.stored("h00") == SILENT


def test_stalled_members_are_awaited_too(three: Fleet) -> None:
    three.change("h01", stalled="audit")
    three.step()
    three.reachable = False
    three.step()
    three.leave("h01")
    three.reachable = True
    three.step()
    assert "" in three.last.freezes


def test_who_was_missing_before_the_group_vanished_counts_from_then(
    three: Fleet,
) -> None:
    three.leave("h01")
    three.run(29)
    three.reachable = False
    three.run(100)
    three.reachable, three.group_exists = True, False
    three.run(5)
    three.watch.release("")
    three.run(2)
    assert three.stored("h01") == ("suspect", "vanished")


def test_an_operators_word_holds_until_it_can_be_followed(ten: Fleet) -> None:
    ten.leave(*zone(ten, "z1"))
    ten.run(5)
    assert ten.watch.release("z1")
    ten.reachable = False
    ten.step()
    ten.reachable = True
    ten.run(2)
    assert ten.last.freezes == {}
    assert ten.stored(zone(ten, "z1")[0])[0] == "suspect"  # type: ignore[index]


def test_a_new_leader_takes_an_operator_at_his_word(ten: Fleet) -> None:
    ten.leave(*zone(ten, "z1"))
    ten.run(5)
    ten.new_leader()
    assert ten.watch.release("z1")
    ten.step()
    assert ten.last.freezes == {}


def test_operator_ends_the_wait_for_those_not_back(ten: Fleet) -> None:
    ten.reachable = False
    ten.step()
    ten.leave(*zone(ten, "z1"))
    ten.reachable = True
    ten.step()
    assert ten.watch.release("")
    ten.step()
    assert ten.last.freezes == {}
    assert ten.stored(zone(ten, "z1")[0]) == ("suspect", "not-yet-back")


def test_leader_that_was_frozen_starts_the_count_anew(three: Fleet) -> None:
    three.leave("h01")
    three.run(5)
    three.step(seconds=300)
    assert three.stored("h01") == ("suspect", "vanished")
    woke = three.now
    three.run(60)
    assert three.when("h01", "down") == woke + POLICY.service_down_time


# -- zones -------------------------------------------------------------------------


def test_ten_of_ten_killed_is_held_then_down(ten: Fleet) -> None:
    dead = zone(ten, "z1")
    ten.answering.update(zone(ten, "z0"))
    ten.leave(*dead)
    ten.step()
    assert ten.last.freezes["z1"].cause == "mass-loss"
    assert "10 of 10 hosts of zone z1" in ten.last.freezes["z1"].evidence
    assert set(ten.last.verdicts) == set(zone(ten, "z0"))
    assert set(dead) <= set(ten.last.to_ping)
    assert set(ten.last.to_ping) & set(zone(ten, "z0"))  # the controls
    ten.run(HOLD - 1)
    assert {ten.stored(h) for h in dead} == {UP}
    ten.run(2)
    assert ten.last.freezes == {}
    assert {ten.stored(h) for h in dead} == {SILENT}
    assert {ten.stored(h) for h in zone(ten, "z0")} == {UP}


def test_whole_fleet_killed_is_held_then_down() -> None:
    fleet = Fleet(10)
    fleet.step()
    fleet.leave(*fleet.hosts)
    fleet.run(HOLD)
    assert {fleet.stored(h) for h in fleet.hosts} == {UP}
    fleet.run(2)
    assert {fleet.stored(h) for h in fleet.hosts} == {SILENT}


def test_mass_loss_is_held_while_no_ping_arrives_anywhere(ten: Fleet) -> None:
    ten.leave(*zone(ten, "z1"))
    ten.run(3 * HOLD)
    assert "z1" in ten.last.freezes


def test_one_of_the_lost_that_answers_keeps_nobody_frozen_for_ever(ten: Fleet) -> None:
    lives, *dead = zone(ten, "z1")
    ten.answering.update(zone(ten, "z0"), {lives})
    ten.leave(lives, *dead)
    ten.run(HOLD)
    assert "z1" in ten.last.freezes
    ten.run(2)
    assert ten.last.freezes == {}
    assert {ten.stored(h) for h in dead} == {SILENT}
    ten.run(3600)
    assert ten.stored(lives) == ("suspect", "not-yet-back")
    assert "down" not in {state for state, _ in ten.states(lives)}


def test_one_that_drops_out_later_keeps_nobody_frozen(ten: Fleet) -> None:
    late, *dead = zone(ten, "z1")
    ten.answering.update(zone(ten, "z0"), {late})
    ten.leave(*dead)
    ten.run(200)
    ten.leave(late)
    ten.run(HOLD - 200 + 2)
    assert ten.last.freezes == {}
    assert {ten.stored(h) for h in dead} == {SILENT}
    assert ten.stored(late)[0] == "suspect"  # type: ignore[index]  # there is one


def test_a_second_mass_loss_gets_the_whole_hold(ten: Fleet) -> None:
    """Of those that vanish in a later one, nobody is down for the first one's sake."""
    first, second = zone(ten, "z1")[:5], zone(ten, "z1")[5:]
    ten.answering.update(zone(ten, "z0"), second)
    ten.leave(*first)
    ten.run(HOLD - 10)
    ten.answering.difference_update(second)
    ten.leave(*second)
    ten.run(60)
    assert "z1" in ten.last.freezes
    ten.answering.update(second)
    ten.join(*second)
    ten.run(GRACE)
    assert ten.last.freezes == {}
    assert {ten.stored(h) for h in first} == {SILENT}
    assert [ten.states(h) for h in second] == [[UP]] * 5


def test_a_second_mass_loss_is_believed_in_its_own_time(ten: Fleet) -> None:
    first, second = zone(ten, "z1")[:5], zone(ten, "z1")[5:]
    ten.answering.update(zone(ten, "z0"))
    ten.leave(*first)
    ten.run(200)
    ten.leave(*second)
    ten.step()
    began = ten.now
    ten.run(HOLD - 1)
    assert "z1" in ten.last.freezes
    ten.run(2)
    assert {ten.when(h, "down") for h in second} == {began + HOLD}


def test_with_nobody_present_the_canary_has_to_prove_the_backend() -> None:
    fleet = Fleet(10)
    fleet.canary = None  # nobody could join it
    fleet.step()
    fleet.leave(*fleet.hosts)
    assert fleet.step().canary  # it is asked for
    fleet.run(3 * HOLD)
    assert fleet.last.freezes
    fleet.canary = True
    fleet.run(HOLD - 50)
    fleet.canary = False  # the backend has lost it, and so may have lost them
    fleet.step()
    fleet.canary = True
    fleet.run(HOLD)
    assert fleet.last.freezes
    assert {fleet.stored(h) for h in fleet.hosts} == {UP}
    fleet.run(2)
    assert {fleet.stored(h) for h in fleet.hosts} == {SILENT}
    assert not fleet.last.canary


def test_a_group_that_is_gone_needs_the_canary_too(three: Fleet) -> None:
    three.canary = None
    three.group_exists = False
    three.members.clear()
    assert three.step().canary
    three.run(3 * HOLD)
    assert three.last.freezes
    three.canary = True
    three.run(HOLD + 1)
    assert {three.stored(h) for h in three.hosts} == {SILENT}


def test_mass_loss_ends_when_all_return(ten: Fleet) -> None:
    ten.leave(*zone(ten, "z1"))
    ten.run(100)
    ten.join(*zone(ten, "z1"))
    ten.step()
    assert ten.last.freezes == {}
    assert {s for _, _, s, _ in ten.history} == {"up"}


def test_mass_loss_waits_for_the_last_before_it_judges_them(ten: Fleet) -> None:
    dead = zone(ten, "z1")
    ten.leave(*dead)
    ten.run(100)
    ten.join(*dead[:9])  # a network heals; the tenth comes back a beat later
    ten.run(4)
    assert "z1" in ten.last.freezes
    ten.run(GRACE)
    assert ten.last.freezes == {}
    assert ten.stored(dead[9]) == SILENT


def test_mass_loss_ends_when_the_lost_explain_themselves(ten: Fleet) -> None:
    dead = zone(ten, "z1")
    ten.leave(*dead)
    ten.step()
    for host in dead[:5]:
        ten.change(host, goodbye=True)
    for host in dead[5:9]:
        ten.change(host, incarnation=2)
    del ten.granted[dead[9]]
    ten.step()
    assert ten.last.freezes == {}


def test_mass_loss_ends_on_an_operators_word_and_does_not_begin_again(
    ten: Fleet,
) -> None:
    ten.leave(*zone(ten, "z1"))
    ten.run(5)
    assert ten.watch.release("z1")
    ten.step()
    assert ten.last.freezes == {}
    assert ten.stored(zone(ten, "z1")[0]) == ("suspect", "vanished")
    ten.run(60)
    assert ten.stored(zone(ten, "z1")[0]) == SILENT


def test_loss_spread_over_the_window_is_a_mass_loss_too(ten: Fleet) -> None:
    for host in zone(ten, "z1")[:5]:
        ten.leave(host)
        ten.run(2)
    assert "z1" in ten.last.freezes


def test_slow_losses_are_single_ones(ten: Fleet) -> None:
    for host in zone(ten, "z1")[:6]:
        ten.leave(host)
        ten.run(5)
        assert ten.last.freezes == {}


def test_few_or_a_small_share_is_no_mass_loss() -> None:
    fleet = Fleet(4)
    fleet.step()
    fleet.leave(*fleet.hosts)
    fleet.run(60)
    assert {fleet.stored(h) for h in fleet.hosts} == {SILENT}
    fleet = Fleet(40)
    fleet.step()
    fleet.leave(*fleet.hosts[:8])  # exactly a fifth
    assert fleet.step().freezes == {}


def test_goodbyes_and_restarts_are_no_mass_loss(ten: Fleet) -> None:
    for host in zone(ten, "z1"):
        ten.leave(host)
        ten.change(host, goodbye=True)
    for host in zone(ten, "z0"):
        ten.leave(host)
        ten.change(host, incarnation=2)
    assert ten.step().freezes == {}


def test_missing_after_an_outage_in_mass_is_a_mass_loss(ten: Fleet) -> None:
    ten.reachable = False
    ten.run(30)
    ten.leave(*zone(ten, "z1"))
    ten.reachable = True
    ten.run(GRACE + 1)
    assert set(ten.last.freezes) == {"z1"}
    assert {s for _, _, s, _ in ten.history} == {"up"}


def test_five_that_left_one_by_one_are_no_mass_loss_to_a_new_leader(
    ten: Fleet,
) -> None:
    ten.answering.update(ten.hosts)
    for host in zone(ten, "z1")[:5]:
        ten.leave(host)
        ten.run(60)
    ten.new_leader()
    before = list(ten.history)
    ten.run(3600)
    assert ten.last.freezes == {}
    assert ten.history == before


# -- a new leader ------------------------------------------------------------------


def test_new_leader_repeats_nothing(ten: Fleet) -> None:
    ten.leave("h00", "h02")
    ten.change("h04", goodbye=True)
    ten.run(60)
    ten.leave("h06")
    ten.step()
    before = list(ten.history)
    assert ten.stored("h00") == SILENT
    assert ten.stored("h06") == ("suspect", "vanished")
    ten.new_leader()
    ten.run(5)
    assert ten.history == before


def test_new_leader_misses_nothing(three: Fleet) -> None:
    three.leave("h01")
    three.new_leader()
    three.run(60)
    assert three.states("h01")[1:] == [("suspect", "not-yet-back"), SILENT]
    three.new_leader()
    three.join("h01")
    three.step()
    assert three.stored("h01") == UP


def test_new_leader_finds_a_mass_loss_that_the_former_had_half_noticed(
    ten: Fleet,
) -> None:
    dead = zone(ten, "z1")
    ten.leave(*dead[:3])
    ten.step()
    assert ten.stored(dead[0]) == ("suspect", "vanished")
    ten.leave(*dead[3:6])
    ten.new_leader()
    ten.step()
    assert "z1" in ten.last.freezes


@pytest.mark.parametrize("reachable", [False, True])
def test_new_leader_in_an_outage_freezes(three: Fleet, reachable: bool) -> None:
    three.reachable, three.group_exists = reachable, False
    three.new_leader()
    three.step()
    assert three.last.verdicts == {}
    assert "" in three.last.freezes
    del three.granted["h02"]
    three.change("h01", incarnation=2)
    three.members.clear()
    three.reachable = True
    three.join("h00")
    three.step()
    assert three.last.freezes == {}
    assert three.stored("h00") == UP


def test_new_leader_believes_a_vanished_group_after_the_hold(three: Fleet) -> None:
    three.group_exists = False
    three.new_leader()
    three.run(HOLD + 1)
    assert {three.stored(h) for h in three.hosts} == {SILENT}


# -- pings -------------------------------------------------------------------------


def test_missing_are_pinged_at_once_and_then_every_few_seconds(three: Fleet) -> None:
    three.leave("h01")
    asked = [three.now for _ in range(20) if "h01" in three.step().to_ping]
    assert len(asked) == 4
    three.run(40)
    assert three.stored("h01") == SILENT
    # Often at first, should it have been wrong; after four minutes once in one.
    asked = [three.now for _ in range(120) if "h01" in three.step().to_ping]
    assert len(asked) > 120 / ping.DOWN_EVERY + 2
    three.run(150)
    asked = [three.now for _ in range(130) if "h01" in three.step().to_ping]
    assert len(asked) == 130 // ping.DOWN_EVERY


def test_pings_of_one_step_are_bounded_and_reach_everybody() -> None:
    fleet = Fleet(3 * ping.PER_STEP)
    fleet.step()
    fleet.leave(*fleet.hosts)
    asked: set[str] = set()
    for _ in range(4):
        chosen = fleet.step().to_ping
        assert len(chosen) <= ping.PER_STEP
        asked |= set(chosen)
    assert asked == set(fleet.hosts)


def test_nobody_is_down_without_having_been_asked(three: Fleet) -> None:
    three.leave("h01")
    three.pings_leave = False  # the leader has lost the broker
    three.run(500)
    assert three.stored("h01") == ("suspect", "vanished")
    assert "not asked on RPC yet" in three.last.verdicts["h01"].evidence
    # What nobody could ask about was no silence: it begins with the first question.
    three.pings_leave = True
    three.run(int(POLICY.service_down_time) - ping_every())
    assert three.stored("h01") == VANISHED
    three.run(2 * ping_every())
    assert three.stored("h01") == SILENT


@pytest.mark.parametrize(
    ("hosts", "cut", "away"),
    [(3, 1, 30), (3, 1, 45), (3, 1, 60), (20, 4, 60), (20, 20, 60), (20, 8, 60)],
)
def test_a_broker_that_was_away_takes_nobody_down(
    hosts: int, cut: int, away: int
) -> None:
    """Agents that the group has lost answer; the broker goes, and comes back.

    For some seconds it knows no agent's queue then: to ask in vain means nothing.
    """
    fleet = Fleet(hosts)
    fleet.answering.update(fleet.hosts)
    fleet.run(5)
    fleet.leave(*fleet.hosts[:cut])
    fleet.run(400)
    fleet.pings_leave = False
    fleet.run(away)
    fleet.pings_leave = True
    fleet.answering.clear()
    fleet.run(6)
    fleet.answering.update(fleet.hosts)
    fleet.run(90)
    assert "down" not in {s for _, _, s, _ in fleet.history}


def test_a_question_from_before_it_vanished_is_no_silence(three: Fleet) -> None:
    three.unanswered["h01"] = three.now
    three.leave("h01")
    three.pings_leave = False
    three.asked["h01"] = three.now
    three.run(2)
    assert "not asked on RPC yet" in three.last.verdicts["h01"].evidence
    three.unanswered["h01"] = three.when("h01", "suspect") - 0.1
    three.asked["h01"] = three.now + 1000  # not again
    three.run(100)
    assert three.stored("h01") == ("suspect", "vanished")


def test_who_is_down_stays_so_while_nobody_can_be_asked(three: Fleet) -> None:
    three.leave("h01")
    three.run(60)
    three.pings_leave = False
    three.run(200)
    three.new_leader()
    three.run(5)
    assert three.stored("h01") == SILENT


def test_a_group_that_vanished_takes_nobody_down_unasked(three: Fleet) -> None:
    three.group_exists = False
    three.members.clear()
    three.pings_leave = False
    three.run(3 * HOLD)
    assert "down" not in {s for _, _, s, _ in three.history}


def test_never_asked_come_first_then_the_most_overdue() -> None:
    asked = {"a": 99.0, "b": 94.0, "c": 90.0, "d": 30.0, "e": 0.0, "f": 50.0}
    down = dict.fromkeys("def", float("-inf"))
    hosts = [*asked, "z", "y"]
    # c is 10 s late of 5, e 100 of 60, b 6 of 5, d 70 of 60; a and f aren't due.
    assert ping.due(hosts, down, asked, 100.0, 5.0) == ("y", "z", "c", "e", "b", "d")


def ping_every() -> int:
    return int(POLICY.member_timeout / 2)


def test_everybody_gets_a_turn_when_only_few_can_be_asked() -> None:
    """Silent hosts hold a ping for its whole timeout: five a second at best."""
    asked: dict[str, float] = {}
    turns: dict[str, int] = {}
    hosts = [f"h{i:03}" for i in range(500)]
    down = dict.fromkeys(hosts[:250], float("-inf"))
    for now in range(1000, 2500):
        if now == 1200:
            hosts.append("new")  # behind nobody, whatever waits
        for host in ping.due(hosts, down, asked, float(now), 5.0)[:5]:
            asked[host] = now
            turns[host] = turns.get(host, 0) + 1
        if now == 1200:
            assert asked["new"] == now
    assert turns.keys() == set(hosts)
    assert min(turns.values()) >= 2


def test_controls_change() -> None:
    present = [f"h{i}" for i in range(30)]
    assert ping.controls(present, 0.0, 5.0) != ping.controls(present, 5.0, 5.0)
    assert ping.controls([], 0.0, 5.0) == set()
    assert fleet_module.POLICY.recovery_grace > POLICY.member_timeout


def test_a_fleet_that_starts_at_once_is_no_mass_loss() -> None:
    fleet = Fleet(20)
    fleet.leave(*fleet.hosts)
    hello = verdict.Verdict(
        verdict.State.SUSPECT, verdict.Cause.NOT_YET_JOINED, 1, "granted"
    )
    later = {host: fleet.granted.pop(host) for host in fleet.hosts[10:]}
    fleet.step()
    for host, granted in later.items():
        fleet.granted[host] = granted
        fleet.change(host, previous=hello)
    decision = fleet.step()
    assert decision.freezes == {}
    fleet.join(*fleet.hosts)
    assert {said.state for said in fleet.step().verdicts.values()} == {"up"}
