"""What the driver does with tooz's odd answers; real servers are in functional."""

from collections.abc import Callable
import threading
import time
from typing import Any

import pytest
from tooz import coordination

from musterbook import errors
from musterbook.servicegroup import clients
from musterbook.servicegroup import tooz_driver
from musterbook.servicegroup import url as group_url


class Result:
    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "tooz waits without limit unless told"
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class Coordinator:
    """Answers as told, by method; each answer once, the last one for ever."""

    def __init__(self, answers: dict[str, list[Any]]) -> None:
        self.answers = answers
        self.calls: list[str] = []

    def start(self, start_heart: bool) -> None:
        assert not start_heart
        self._next("start")

    def heartbeat(self) -> None:
        self._next("heartbeat")

    def __getattr__(self, name: str) -> Callable[..., Result]:
        if name.startswith("_") or name == "client":
            raise AttributeError(name)

        def call(*args: Any) -> Result:
            try:
                return Result(self._next(name))
            except Exception as exc:  # noqa: BLE001 - tooz raises it in get()
                return Result(exc)

        return call

    def _next(self, name: str) -> Any:
        self.calls.append(name)
        answers = self.answers.get(name, [None])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer


Build = Callable[..., tuple[tooz_driver.ToozDriver, list[Coordinator]]]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Build:
    def make(
        answers: dict[str, list[Any]], text: str = "redis://:s3cret@h", limit: float = 5
    ) -> tuple[tooz_driver.ToozDriver, list[Coordinator]]:
        made: list[Coordinator] = []

        def factory(url: group_url.GroupURL, option: str) -> Any:
            def coordinator(member: bytes) -> Coordinator:
                made.append(Coordinator(answers))
                return made[-1]

            return coordinator

        monkeypatch.setattr(clients, "factory", factory)
        url = group_url.parse(text)
        return tooz_driver.ToozDriver(url, "a#1", call_timeout=limit), made

    return make


EXISTS = coordination.GroupAlreadyExist(b"g")
ALREADY = coordination.MemberAlreadyExist(b"g", b"a#1")
NOT_JOINED = coordination.MemberNotJoined(b"g", b"a#1")
NOT_CREATED = coordination.GroupNotCreated(b"g")


def test_join_after_a_recent_beat_needs_no_other(build: Build) -> None:
    driver, made = build({"heartbeat": [None, OSError("gone"), None]})
    driver.join("g")
    driver.beat()
    driver.join("g")
    assert made[0].calls.count("heartbeat") == 1
    with pytest.raises(errors.GroupUnavailable):
        driver.beat()
    driver.join("g")  # the beat before it didn't work
    driver.join("g")
    assert made[0].calls.count("heartbeat") == 3
    driver.stop()


def test_join_beats_first_then_replaces_an_entry_of_its_own_name(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tooz_driver, "_RECENT", 1e12)  # no beat is recent
    driver, made = build({"join_group": [ALREADY, None]})
    driver.join("g")
    assert made[0].calls == [
        "start",
        "heartbeat",
        "join_group",
        "leave_group",
        "join_group",
    ]
    assert driver.is_visible("g")
    driver.stop()


@pytest.mark.parametrize("created", [None, EXISTS])
def test_join_makes_a_group_that_is_not_there(
    build: Build, created: Exception | None
) -> None:
    answers = {"create_group": [created], "join_group": [NOT_CREATED, None]}
    driver, made = build(answers)
    driver.join("g")
    assert made[0].calls == ["start", "join_group", "create_group", "join_group"]
    assert driver.is_visible("g")
    driver.stop()


def test_entry_that_expires_while_it_is_replaced(build: Build) -> None:
    driver, _ = build({"join_group": [ALREADY, None], "leave_group": [NOT_JOINED]})
    driver.join("g")
    driver.stop()


@pytest.mark.parametrize("answer", [NOT_JOINED, NOT_CREATED])
def test_leaving_what_one_is_not_in(build: Build, answer: Exception) -> None:
    driver, _ = build({"leave_group": [answer]})
    driver.leave("g")
    driver.stop()


def test_not_visible(build: Build) -> None:
    driver, made = build({"get_member_capabilities": [NOT_JOINED]})
    assert not driver.is_visible("g")
    assert "get_member_capabilities" not in made[0].calls  # it never joined
    driver.join("g")
    assert not driver.is_visible("g")
    driver.stop()


def test_group_that_is_gone(build: Build) -> None:
    driver, _ = build(
        {"get_members": [NOT_CREATED], "get_member_capabilities": [NOT_CREATED]}
    )
    with pytest.raises(errors.GroupVanished, match="redis://h has lost the group g"):
        driver.get_all("g")
    driver.join("g")
    with pytest.raises(errors.GroupVanished):
        driver.is_visible("g")
    driver.stop()


@pytest.mark.parametrize(
    "error",
    [
        coordination.ToozConnectionError("refused\nfor s3cret"),
        OSError(5, "I/O error for s3cret"),
        ValueError(),
        TimeoutError("s3cret"),
        RuntimeError("unreachable"),
    ],
)
def test_every_error_is_ours_in_one_line_without_the_password(
    build: Build, error: Exception
) -> None:
    driver, made = build({"heartbeat": [error, None]})
    with pytest.raises(errors.GroupUnavailable) as caught:
        driver.beat()
    assert "redis://h" in caught.value.message
    assert "s3cret" not in caught.value.message
    assert "\n" not in caught.value.message
    driver.beat()
    assert len(made) == 1  # clients reconnect by themselves
    driver.stop()


def test_when_a_member_was_last_found(build: Build) -> None:
    driver, _ = build({"get_members": [{b"a#1"}, set(), OSError("no")]})
    seen = driver.get_updated_time("g", "a#1")
    assert seen is not None
    assert driver.get_updated_time("g", "a#1") == seen  # has left
    with pytest.raises(errors.GroupUnavailable):
        driver.get_updated_time("g", "a#1")
    driver.stop()


def test_start_that_fails_is_tried_again_with_a_new_coordinator(build: Build) -> None:
    driver, made = build({"start": [OSError("no"), None]})
    with pytest.raises(errors.GroupUnavailable):
        driver.start()
    driver.start()
    assert len(made) == 2
    driver.stop()


def test_call_that_hangs_is_given_up_and_the_next_starts_anew(build: Build) -> None:
    free = threading.Event()
    driver, made = build({"heartbeat": [lambda: free.wait(60), None]}, limit=0.2)
    driver.join("g")
    began = time.monotonic()
    with pytest.raises(errors.GroupUnavailable, match="no answer within"):
        driver.beat()
    assert time.monotonic() - began < 5
    assert not driver.is_visible("g")  # the new connection is member of nothing
    assert len(made) == 2
    free.set()
    driver.stop()


def test_calls_that_hang_are_bounded_in_number(build: Build) -> None:
    free = threading.Event()
    driver, _ = build({"heartbeat": [lambda: free.wait(60)]}, limit=0.01)
    for _ in range(tooz_driver.MAX_STUCK):
        with pytest.raises(errors.GroupUnavailable, match="no answer"):
            driver.beat()
    with pytest.raises(errors.GroupUnavailable, match="have not come back"):
        driver.beat()
    free.set()
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            driver.beat()
            break
        except errors.GroupUnavailable:
            time.sleep(0.01)
    else:
        pytest.fail("did not recover")
    driver.stop()


def test_stop_is_bounded_when_a_call_hangs(build: Build) -> None:
    free = threading.Event()
    hanging = threading.Event()

    def hang() -> None:
        hanging.set()
        free.wait(60)

    driver, _ = build({"heartbeat": [hang]}, limit=0.3)

    def call() -> None:
        with pytest.raises(errors.GroupUnavailable):
            driver.beat()

    caller = threading.Thread(target=call, name="caller")
    caller.start()
    assert hanging.wait(10)
    began = time.monotonic()
    driver.stop()
    assert time.monotonic() - began < 5
    caller.join(10)
    free.set()
