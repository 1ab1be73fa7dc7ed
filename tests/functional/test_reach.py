"""Waiting for the broker: what passes, what never does, and being told to stop."""

import pathlib
import signal
import socket
import threading
import time
from urllib import parse

import pytest

from musterbook import backoff
from musterbook import errors
from musterbook import rpc
from musterbook.rpc import reach
from tests import rpc_lab
from tests import util
from tests.functional import lab as labs


def replaced(url: str, user: str = "", vhost: str = "") -> str:
    parts = parse.urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    changed = parts._replace(netloc=f"{user or login}@{host}")
    return parse.urlunsplit(changed._replace(path=f"/{vhost}") if vhost else changed)


def wait(url: str, stopping: threading.Event | None = None) -> bool:
    return rpc.wait_for_broker(rpc_lab.make_conf(url), stopping or threading.Event())


def test_a_broker_that_is_there(rabbit_url: str) -> None:
    assert wait(rabbit_url)


def test_a_second_host_will_do(rabbit_url: str) -> None:
    parts = parse.urlsplit(rabbit_url)
    both = f"u:p@127.0.0.1:1,{parts.netloc}"
    assert wait(parse.urlunsplit(parts._replace(netloc=both)))


def test_without_a_broker_there_is_nothing_to_wait_for() -> None:
    assert wait("inproc://")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"user": "guest:CANARY"}, "password"),
        ({"user": "CANARY:guest"}, "user"),
        ({"vhost": "CANARY"}, "virtual host"),
    ],
)
def test_a_broker_that_refuses(
    rabbit_url: str, change: dict[str, str], said: str
) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        wait(replaced(rabbit_url, **change))
    assert caught.value.option == "transport_url"
    assert said in caught.value.message
    assert "CANARY" not in caught.value.message


@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize("kind", ["refuses", "is silent"])
def test_waiting_ends_soon_when_told(kind: str, hosts: int) -> None:
    stopping = threading.Event()
    ended: list[bool] = []
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        if kind == "is silent":
            held.listen()
        address = f"u:p@127.0.0.1:{held.getsockname()[1]}"
        url = f"rabbit://{','.join([address] * hosts)}/"
        waiter = threading.Thread(
            target=lambda: ended.append(wait(url, stopping)), name="waiter"
        )
        waiter.start()
        waiter.join(1)
        assert waiter.is_alive()
        stopping.set()
        told = time.monotonic()
        waiter.join(30)
    assert ended == [False]
    assert time.monotonic() - told < 8


def test_it_says_when_the_waiting_begins_and_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["h:1: refused"] * 3 + ["h:1: silent"] * 2 + [""])
    monkeypatch.setattr(reach, "_attempt", lambda *_: next(answers))
    monkeypatch.setattr(backoff, "_MOST_PAUSE", 0.1)
    monkeypatch.setattr(backoff, "_FIRST_PAUSE", 0.1)
    assert wait("rabbit://u:p@h:1/")
    assert [record.getMessage() for record in caplog.records] == [
        "Waiting for the message broker: h:1: refused",
        "Waiting for the message broker: h:1: silent",
        "The message broker answers, after 0 s",
    ]


def conductor(folder: pathlib.Path, url: str) -> labs.Process:
    lab = labs.Lab(
        folder,
        url,
        f"file://{folder}/groups",
        f"sqlite:///{folder}/some.sqlite",
    )
    with labs.opened(lab):
        lab.sync()
    return labs.Process(
        folder, "c1", "conductor.main", "--config-file", lab.config("c1", {"host": "c"})
    )


def test_a_conductor_without_a_broker_stops_at_once(tmp_path: pathlib.Path) -> None:
    run = conductor(tmp_path, "rabbit://u:CANARY@127.0.0.1:1/")
    said = "Waiting for the message broker: 127.0.0.1:1: Connection refused"
    try:
        util.wait_until(lambda: said in run.errors())
        run.send(signal.SIGTERM)
        sent = time.monotonic()
        assert run.wait() == 0
        assert time.monotonic() - sent < 5
        assert "Traceback" not in run.errors()
        assert "CANARY" not in run.errors()
    finally:
        run.kill()


def test_a_conductor_with_a_wrong_password_says_so(
    tmp_path: pathlib.Path, rabbit_url: str
) -> None:
    run = conductor(tmp_path, replaced(rabbit_url, user="guest:CANARY"))
    try:
        assert run.wait() == 2
        said = run.errors().splitlines()[-1]
        assert "transport_url" in said
        assert "password" in said
        assert "Traceback" not in run.errors()
        assert "CANARY" not in run.errors()
    finally:
        run.kill()
