"""Stopping politely: work in hand, the group, calls that take too long (A-LIFE-1)."""

from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import contextlib
import pathlib
import signal
import time
import uuid

import pytest
import sqlalchemy as sa

from compute_agent import rpcapi as compute_rpcapi
from musterbook import context
from musterbook import errors
from musterbook import rpc
from tests import rpc_lab
from tests import util
from tests.functional import lab as labs
from tests.functional import load as loads

#: What a machine may be late by that others use, too; the promises are without it.
SLACK = 5.0
CALL_TIMEOUT = 40.0


@pytest.fixture
def lab(
    tmp_path: pathlib.Path, rabbit_url: str, redis_url: str, mariadb_url: str
) -> Iterator[labs.Lab]:
    made = labs.Lab(tmp_path, rabbit_url, redis_url, mariadb_url)
    with labs.opened(made):
        made.sync()
        yield made


@pytest.fixture
def pool() -> Iterator[futures.ThreadPoolExecutor]:
    with futures.ThreadPoolExecutor(thread_name_prefix="call") as made:
        yield made


def holder(lab: labs.Lab, host: str) -> Callable[[float], str]:
    """Return what makes a call of a slow agent that takes so many seconds."""
    client = rpc.Client(
        lab.transport,
        compute_rpcapi.TOPIC,
        "1.0",
        rpc.ContextSerializer(),
        rpc_lab.unavailable,
        CALL_TIMEOUT,
    )

    def hold(seconds: float) -> str:
        asking = context.service_context()
        return str(client.call(asking, "hold", server=host, seconds=seconds))

    return hold


def wait_in_hand(process: labs.Process, said: str, calls: int) -> None:
    """Wait until so many calls have reached the process."""
    util.wait_until(lambda: process.errors().count(said) == calls, 30, "the calls")


def ready(lab: labs.Lab, graceful: int) -> labs.Process:
    """Return a slow agent that is up, with this graceful_shutdown_timeout."""
    lab.start_conductor()
    lab.write_nodes("web1", {"web1": labs.NODE})
    config = lab.config("web1", {"host": "web1", "graceful_shutdown_timeout": graceful})
    agent = lab.run("tests.functional.slow_agent", "--config-file", config, name="web1")
    lab.wait_state("web1", "up", timeout=60)
    return agent


def test_an_agent_finishes_what_is_in_hand(
    lab: labs.Lab, pool: futures.ThreadPoolExecutor
) -> None:
    agent = ready(lab, graceful=10)
    hold = holder(lab, "web1")
    calls = [pool.submit(hold, 3.0) for _ in range(5)]
    wait_in_hand(agent, "Holding a call", 5)
    agent.send(signal.SIGTERM)
    sent = time.monotonic()
    assert lab.wait_state("web1", "down") - sent < 2 + SLACK
    assert not [call for call in calls if call.done()]  # gone before it is done
    assert [call.result(CALL_TIMEOUT) for call in calls] == ["held"] * 5
    assert agent.wait() == 0
    assert time.monotonic() - sent < 10
    assert "Traceback" not in agent.errors()
    with pytest.raises(errors.MusterbookError):
        hold(0.0)


def test_an_agent_tells_whom_it_can_not_answer(
    lab: labs.Lab, pool: futures.ThreadPoolExecutor
) -> None:
    agent = ready(lab, graceful=2)
    hold = holder(lab, "web1")
    long, short = pool.submit(hold, 60.0), pool.submit(hold, 2.0)
    wait_in_hand(agent, "Holding a call", 2)
    agent.send(signal.SIGTERM)
    sent = time.monotonic()
    with pytest.raises(errors.ConductorUnavailable) as caught:
        long.result(CALL_TIMEOUT)
    assert caught.value.message == (
        "compute.web1 stopped before it had finished hold, ask again"
    )
    assert agent.wait() == 0
    assert time.monotonic() - sent < 2 + 2 + SLACK
    assert short.result(CALL_TIMEOUT) == "held"
    assert "agent did not stop within 2 s" in agent.errors()
    assert "Traceback" not in agent.errors()
    # The next one has the host at once.
    lab.start_agent("web1", file="again")
    lab.wait_state("web1", "up")


@contextlib.contextmanager
def locked(lab: labs.Lab, host: str) -> Iterator[None]:
    """Keep others from changing a host's service record."""
    engine = sa.create_engine(lab.database)
    with engine.connect() as connection, connection.begin():
        query = sa.text("SELECT id FROM services WHERE host = :host FOR UPDATE")
        assert connection.execute(query, {"host": host}).all()
        yield
    engine.dispose()


def say_hello(lab: labs.Lab, identity: str) -> int:
    answer = lab.conductor.hello(
        context.service_context(),
        host="web1",
        process_uuid=identity,
        boot_id=None,
        release="1",
        secret="some-secret",
        timeout=CALL_TIMEOUT,
    )
    return int(answer["incarnation"])


@pytest.fixture
def conductor(lab: labs.Lab) -> Callable[[int], labs.Process]:
    def start(graceful: int) -> labs.Process:
        lab.workers = 2
        more = {"host": "c1", "graceful_shutdown_timeout": graceful, "debug": True}
        config = lab.config("c1", more)
        made = lab.run("conductor.main", "--config-file", config, name="c1")
        util.wait_until(lambda: len(made.children()) == 2, what="two workers")
        return made

    return start


def test_a_conductor_finishes_what_is_in_hand(
    lab: labs.Lab,
    conductor: Callable[[int], labs.Process],
    pool: futures.ThreadPoolExecutor,
) -> None:
    run = conductor(10)
    identity = str(uuid.uuid4())
    util.wait_until(lambda: answers(lab), 60)
    assert say_hello(lab, identity) == 1
    with locked(lab, "web1"):
        calls = [pool.submit(say_hello, lab, identity) for _ in range(5)]
        wait_in_hand(run, "asks: hello of web1", 1 + 5)
        run.send(signal.SIGTERM)
        sent = time.monotonic()
        time.sleep(2)  # less than it takes the database to give up
        assert run.popen.poll() is None
    assert [call.result(CALL_TIMEOUT) for call in calls] == [1] * 5
    assert run.wait() == 0
    assert time.monotonic() - sent < 10
    assert "Traceback" not in run.errors()


def test_a_conductor_tells_whom_it_can_not_answer(
    lab: labs.Lab,
    conductor: Callable[[int], labs.Process],
    pool: futures.ThreadPoolExecutor,
) -> None:
    run = conductor(1)
    identity = str(uuid.uuid4())
    util.wait_until(lambda: answers(lab), 60)
    say_hello(lab, identity)
    with locked(lab, "web1"):
        calls = [pool.submit(say_hello, lab, identity) for _ in range(4)]
        wait_in_hand(run, "asks: hello of web1", 1 + 4)
        run.send(signal.SIGTERM)
        sent = time.monotonic()
        assert run.wait() == 0
        assert time.monotonic() - sent < 1 + 2 + SLACK
        for call in calls:
            with pytest.raises(errors.ConductorUnavailable) as caught:
                call.result(CALL_TIMEOUT)
            assert "stopped before it had finished hello" in caught.value.message
    assert "Traceback" not in run.errors()


def answers(lab: labs.Lab) -> bool:
    try:
        lab.conductor.ping(context.service_context(), timeout=2.0)
    except errors.ConductorUnavailable:
        return False
    return True


def stop_in_turn(lab: labs.Lab, stops: int) -> loads.Load:
    """Stop and start one of two conductors at a time, under load."""
    lab.workers = 2
    running = [lab.start_conductor("c0"), lab.start_conductor("c1")]
    util.wait_until(lambda: answers(lab), 60)
    with loads.Load(
        lambda: lab.conductor.get_fleet(context.service_context(), timeout=20.0)
    ) as load:
        for number in range(stops):
            which = number % 2
            # The one that goes on must be serving before the other one leaves.
            served(running[1 - which], lab)
            load.wait_answers(10)
            assert running[which].stop() == 0
            load.wait_answers(20)
            running[which] = lab.start_conductor(f"c{which}")
    return load


def served(run: labs.Process, lab: labs.Lab) -> None:
    """Wait until a conductor and all its workers serve."""
    queue = f"conductor.{'c0' if 'c0' in run.err.name else 'c1'}"
    util.wait_until(lambda: labs.consumers(lab.rabbit, queue) == 2, 60, queue)


def test_stopping_one_of_two_conductors_loses_no_call(lab: labs.Lab) -> None:
    load = stop_in_turn(lab, 3)
    assert load.failed() == []
    assert load.slowest() < 3
    for run in lab.processes:
        assert "Traceback" not in run.errors()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_stops_lose_no_call(lab: labs.Lab) -> None:
    load = stop_in_turn(lab, 10)
    assert load.failed() == []
    assert load.slowest() < 3
