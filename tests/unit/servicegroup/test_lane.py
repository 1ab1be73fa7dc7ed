import threading

import pytest

from musterbook.servicegroup import lane


class Resource:
    def __init__(self) -> None:
        self.let_go_in: str | None = None

    def let_go(self, _: "Resource") -> None:
        self.let_go_in = threading.current_thread().name


def thread_name(_: Resource) -> str:
    return threading.current_thread().name


def test_calls_run_in_the_lane_and_its_resource_ends_there() -> None:
    resource = Resource()
    road = lane.Lane("lane-test", lambda: resource, resource.let_go)
    assert road.call(thread_name, 5) == "lane-test"
    assert road.stop(5)
    assert resource.let_go_in == "lane-test"
    with pytest.raises(lane.Stuck):
        road.call(thread_name, 5)


def test_the_calls_own_timeout_error_is_not_ours() -> None:
    resource = Resource()
    road = lane.Lane("lane-test", lambda: resource, resource.let_go)

    def fail(_: Resource) -> None:
        raise TimeoutError("from the client")

    with pytest.raises(TimeoutError, match="from the client"):
        road.call(fail, 5)
    assert road.stop(5)


def test_a_resource_that_could_not_be_made_is_tried_again() -> None:
    resource = Resource()
    made: list[int] = []

    def make() -> Resource:
        made.append(1)
        if len(made) == 1:
            raise ConnectionError("not yet")
        return resource

    road = lane.Lane("lane-test", make, resource.let_go)
    with pytest.raises(ConnectionError):
        road.call(thread_name, 5)
    assert road.call(thread_name, 5) == "lane-test"
    assert road.stop(5)


def test_stuck_call_and_those_behind_it_end_in_time() -> None:
    resource = Resource()
    road = lane.Lane("lane-test", lambda: resource, resource.let_go)
    free = threading.Event()
    behind: list[BaseException] = []

    def queued() -> None:
        try:
            road.call(thread_name, 60)
        except lane.Stuck as exc:
            behind.append(exc)

    def hang(_: Resource) -> bool:
        waiter.start()
        return free.wait(60)

    waiter = threading.Thread(target=queued, name="queued")
    with pytest.raises(lane.Stuck):
        road.call(hang, 0.1)
    road.give_up()
    waiter.join(10)
    assert behind
    assert road.alive
    free.set()
    assert road.stop(10)
    assert resource.let_go_in == "lane-test"
