"""The agent's life against a real conductor's endpoint, in one process."""

from collections.abc import Iterator
from concurrent import futures
import json
import logging
import pathlib
import shutil
import threading
import time
from typing import Any
import uuid

from oslo_config import cfg
import pytest
from sqlalchemy import event

from compute_agent import agent
from compute_agent import main as agent_main
from compute_agent import resource_tracker
from compute_agent import rpcapi as compute_rpcapi
from conductor import grants
from conductor import manager
from conductor import rpcapi as conductor_rpcapi
from conductor.db import engine as db_engine
from conductor.db import liveness
from conductor.db import store as db_store
from musterbook import conf as conf_module
from musterbook import context
from musterbook import daemon
from musterbook import errors
from musterbook import levels
from musterbook import rpc
from musterbook.servicegroup import driver as group_driver
from musterbook.servicegroup import traits
from objects import base
from objects import service as service_obj
from objects import store
from tests import schema
from tests import util

NODE = {"vcpus": 8, "memory_mb": 16384, "local_gb": 200}


class Group(group_driver.GroupDriver):
    """A group in memory that notes who joins and leaves."""

    traits = traits.TRAITS["file"]
    member_timeout = 5.0

    def __init__(self, seen: list[str], member: str) -> None:
        self._seen = seen
        self._member = member
        self._joined = False

    @property
    def member(self) -> str:
        return self._member

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def join(self, group: str) -> None:
        self._joined = True
        self._seen.append(f"join {self._member}")

    def leave(self, group: str) -> None:
        self._joined = False
        self._seen.append(f"leave {self._member}")

    def beat(self) -> None: ...

    def is_visible(self, group: str) -> bool:
        return self._joined

    def get_all(self, group: str) -> frozenset[str]:
        return frozenset()


class World:
    """A conductor's endpoint on SQLite, and agents."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.seen: list[str] = []
        self.url = f"inproc:///{uuid.uuid4()}"
        self.engine = db_engine.make_engine(f"sqlite:///{folder}/a.sqlite")
        schema.make(self.engine)
        self.records = liveness.LivenessStore(self.engine)
        self.transport = rpc.make_transport(self.conf("conductor"))
        self.api = conductor_rpcapi.ConductorAPI(self.transport, 10.0)
        self.compute = compute_rpcapi.ComputeAPI(self.transport, 2.0)
        self.server: rpc.Server | None = None
        self.failures: dict[str, BaseException] = {}
        self.agents: list[agent.Agent] = []
        self.transports = [self.transport]

    def conf(self, host: str, **values: Any) -> cfg.ConfigOpts:
        def override(conf: cfg.ConfigOpts) -> None:
            conf.set_override("host", host)
            conf.set_override("transport_url", self.url)
            conf.set_override("rpc_response_timeout", 5)
            conf.set_override("state_path", str(self.folder / f"{host}.state"))
            conf.set_override("update_resources_interval", 0.2)
            conf.set_override("source", "fake", "inventory")
            conf.set_override(
                "file", str(self.folder / f"{host}.json"), "inventory_fake"
            )
            for name, value in values.items():
                group, _, option = name.rpartition("/")
                conf.set_override(option, value, group or None)

        return conf_module.load(
            [],
            "test",
            prepare=[rpc.register_options],
            defaults=override,
            config_files=[],
        )

    def serve(self) -> None:
        granter = grants.Granter(self.records, self.compute.ping)
        self.server = manager.make_server(
            self.transport, "c1", manager.ConductorManager(granter, self.records)
        )
        self.server.start()

    def write(self, host: str, nodes: Any = None, **more: Any) -> None:
        path = self.folder / f"{host}.json"
        path.with_suffix(".new").write_text(
            json.dumps({"nodes": nodes or {host: NODE}, **more})
        )
        path.with_suffix(".new").replace(path)

    def agent(self, host: str, name: str = "", **values: Any) -> agent.Agent:
        conf = self.conf(host, **values)
        transport = rpc.make_transport(conf)
        self.transports.append(transport)
        made = agent.Agent(
            conf, transport, lambda member, _: Group(self.seen, member), lambda: 0.1
        )
        made.fail = (  # type: ignore[method-assign]  # stands in for the process
            lambda reason: self.failures.__setitem__(name or host, reason)
        )
        self.agents.append(made)
        return made

    def incarnation(self, host: str) -> int | None:
        known = self.records.known(host, service_obj.COMPUTE_BINARY)
        return known.incarnation if known else None

    def copy_state(self, host: str, to: str) -> None:
        """Give a host's state directory to another host, as an image does."""
        shutil.copytree(self.folder / f"{host}.state", self.folder / f"{to}.state")

    def nodes(self) -> list[Any]:
        return db_store.DatabaseStore(self.engine).compute_nodes()

    def memory(self) -> list[int]:
        rows = db_store.DatabaseStore(self.engine).compute_nodes()
        return [row["memory_mb"] for row in rows]


@pytest.fixture
def world(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr(base.MusterObject, "indirection_api", made.api)
    store.bind(db_store.DatabaseStore(made.engine))
    yield made
    for one in made.agents:
        one.stop()
    if made.server is not None:
        made.server.stop()
        made.server.wait()
    for transport in made.transports:
        transport.cleanup()
    store.unbind()
    made.engine.dispose()


def in_thread(part: daemon.Part) -> threading.Thread:
    thread = threading.Thread(target=part.start, name="test-start")
    thread.start()
    return thread


def test_the_whole_life(world: World) -> None:
    world.serve()
    world.write("web1")
    one = world.agent("web1")
    one.start()
    util.wait_until(lambda: world.seen == ["join web1#1"])
    world.write("web1", {"web1": {**NODE, "memory_mb": 32768}})
    util.wait_until(lambda: world.memory() == [32768])
    one.stop()
    assert world.seen == ["join web1#1", "leave web1#1"]
    known = world.records.known("web1", "nova-compute")
    assert known is not None
    assert known.said_goodbye
    # Nothing audits any more.
    world.write("web1", {"web1": {**NODE, "memory_mb": 1}})
    assert not [t for t in threading.enumerate() if t.name in {"beat", "verifier"}]
    one.stop()  # twice is harmless


def test_it_waits_for_a_conductor(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world.write("web1")
    starting = in_thread(world.agent("web1"))
    util.wait_until(lambda: caplog.text.count("Waiting for a conductor") >= 3)
    world.serve()
    util.wait_until(lambda: world.seen == ["join web1#1"])
    starting.join(20)
    assert not starting.is_alive()
    waits = [r for r in caplog.records if r.msg.startswith("Waiting")]
    pauses: list[Any] = [r.args[1] for r in waits if isinstance(r.args, tuple)]
    assert pauses == sorted(pauses)
    assert [r.levelname for r in waits][:2] == ["WARNING", "INFO"]


def test_it_can_be_stopped_while_it_waits(world: World) -> None:
    world.write("web1")
    one = world.agent("web1")
    starting = in_thread(one)
    one.stop()
    starting.join(20)
    assert not starting.is_alive()
    assert world.seen == []


def test_it_answers_while_its_first_audit_takes_long(world: World) -> None:
    world.serve()
    world.write("web1", fault="block")
    starting = in_thread(world.agent("web1"))
    util.wait_until(lambda: world.incarnation("web1") == 1)

    def answers() -> bool:
        try:
            answer = world.compute.ping(context.service_context(), "web1")
        except errors.AgentUnavailable:
            return False
        return bool(answer["incarnation"] == 1)

    util.wait_until(answers)
    assert starting.is_alive()
    # So a second one is refused, although the first has not joined.
    world.write("WEB1")
    with pytest.raises(errors.HostTaken):
        world.agent("WEB1", "second").start()
    assert world.seen == []
    world.write("web1")
    util.wait_until(lambda: world.seen == ["join web1#1"])
    starting.join(20)
    assert not starting.is_alive()


def test_a_stop_during_the_first_audit_leaves_nothing(world: World) -> None:
    world.serve()
    world.write("web1", fault="block")
    one = world.agent("web1")
    starting = in_thread(one)
    util.wait_until(lambda: world.incarnation("web1") == 1)
    one.stop()
    starting.join(20)
    assert not starting.is_alive()
    known = world.records.known("web1", "nova-compute")
    assert known is not None
    assert known.said_goodbye
    assert [seen for seen in world.seen if seen.startswith("join")] == []
    with pytest.raises(errors.AgentUnavailable):
        world.compute.ping(context.service_context(), "web1")


def test_a_step_of_the_stop_that_fails_keeps_no_other_from_it(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.serve()
    world.write("web1")
    made = world.agent("web1")
    made.start()

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(made._conductor, "goodbye", fail)
    made.stop()
    assert world.seen[-1] == "leave web1#1"
    assert not [t for t in threading.enumerate() if t.name in {"beat", "verifier"}]
    failed = [r for r in caplog.records if "going on with the others" in r.message]
    assert len(failed) == 1


def test_superseded_it_ends(world: World) -> None:
    world.serve()
    world.write("web1")
    one = world.agent("web1", verify_interval=1.0)
    one.start()
    # Another process is granted the host, as after a freeze of this one.
    known = world.records.known("web1", "nova-compute")
    assert known is not None
    world.records.grant(
        "web1", "nova-compute", "compute", "another-process", None, "1", "secret", 1
    )
    util.wait_until(lambda: "web1" in world.failures)
    assert isinstance(world.failures["web1"], errors.Superseded)


def test_superseded_it_saves_nothing_more(world: World) -> None:
    world.serve()
    world.write("web1")
    one = world.agent("web1", verify_interval=3600.0)
    one.start()
    util.wait_until(lambda: world.memory() == [16384])
    world.records.grant(
        "web1", "nova-compute", "compute", "another-process", None, "1", "secret", 1
    )
    world.write("web1", {"web1": {**NODE, "memory_mb": 1}})
    util.wait_until(lambda: "web1" in world.failures)
    assert isinstance(world.failures["web1"], errors.Superseded)
    assert world.memory() == [16384]


def test_what_was_deleted_behind_its_back_comes_back(world: World) -> None:
    world.serve()
    world.write("web1")
    one = world.agent("web1", verify_interval=1.0)
    one.start()
    nodes = db_store.DatabaseStore(world.engine)
    util.wait_until(lambda: len(nodes.compute_nodes()) == 1)
    (before,) = nodes.compute_nodes()
    nodes.compute_node_destroy(before["id"], None)
    (after,) = util.wait_until(nodes.compute_nodes)
    assert after["uuid"] == before["uuid"]


def test_it_takes_up_the_configuration_as_it_is_now(world: World) -> None:
    world.serve()
    world.write("web1")
    one = world.agent("web1", update_resources_interval=86400.0, stalled_after=0.0)
    one.start()
    util.wait_until(lambda: world.seen == ["join web1#1"])
    world.write("web1", {"web1": {**NODE, "memory_mb": 32768}})
    conf = one._conf
    conf.set_override("update_resources_interval", 0.1)
    conf.set_override("reserved_host_memory_mb", 2048)
    conf.set_override("timeout", 0.2, group="inventory")
    one.reset()
    util.wait_until(lambda: world.memory() == [32768])
    (row,) = db_store.DatabaseStore(world.engine).compute_nodes()
    assert row["reserved_memory_mb"] == 2048
    assert one._reader._timeout == 0.2
    assert world.seen == ["join web1#1"]


def test_a_reset_before_the_start_does_no_harm(world: World) -> None:
    world.serve()
    world.write("web1")
    one = world.agent("web1")
    one.reset()
    one.abandon()
    one.start()
    util.wait_until(lambda: world.seen == ["join web1#1"])


def forget(world: World) -> None:
    """Make the database one that knows nothing of anybody."""
    with world.engine.begin() as connection:
        for table in ("services", "compute_nodes", "transitions"):
            connection.exec_driver_sql(f"DELETE FROM {table}")  # noqa: S608


def test_forgotten_it_says_hello_again_and_goes_on(world: World) -> None:
    world.serve()
    world.write("web1")
    one = world.agent("web1", update_resources_interval=3600.0, stalled_after=0.0)
    one.start()
    util.wait_until(lambda: world.memory() == [16384])
    forget(world)
    # What a leader does that sees it in the group.
    world.compute.look(context.service_context(), "web1")
    util.wait_until(lambda: world.incarnation("web1") == 2)
    util.wait_until(
        lambda: world.seen == ["join web1#1", "join web1#2", "leave web1#1"]
    )
    # Long before the next audit is due.
    util.wait_until(lambda: world.memory() == [16384])
    answer = world.compute.ping(context.service_context(), "web1")
    assert answer["incarnation"] == 2
    assert world.failures == {}
    one.stop()
    known = world.records.known("web1", "nova-compute")
    assert known is not None
    assert known.said_goodbye
    assert world.seen[-1] == "leave web1#2"


def test_forgotten_it_finds_out_by_saving(world: World) -> None:
    world.serve()
    world.write("web1")
    world.agent("web1", verify_interval=3600.0).start()
    util.wait_until(lambda: world.memory() == [16384])
    forget(world)
    world.write("web1", {"web1": {**NODE, "memory_mb": 32768}})
    util.wait_until(lambda: world.memory() == [32768])
    assert world.incarnation("web1") == 2
    assert world.failures == {}


def test_forgotten_and_another_was_faster_it_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two living processes of one host, one goes; as at any start."""
    answer = {"process_uuid": "other-process", "incarnation": 1}
    monkeypatch.setattr(world.compute, "ping", lambda *_: answer)
    world.serve()
    world.write("web1")
    world.agent("web1", verify_interval=1.0).start()
    forget(world)
    world.records.grant(
        "web1", "nova-compute", "compute", "other-process", None, "1", "secret", None
    )
    util.wait_until(lambda: "web1" in world.failures)
    assert isinstance(world.failures["web1"], errors.HostTaken)
    assert world.incarnation("web1") == 1


def test_nodes_that_were_set_back_are_written_again(world: World) -> None:
    world.serve()
    world.write("web1")
    world.agent("web1", update_resources_interval=3600.0, stalled_after=0.0).start()
    util.wait_until(lambda: world.memory() == [16384])
    with world.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE compute_nodes SET memory_mb = 1")
    world.compute.look(context.service_context(), "web1")
    util.wait_until(lambda: world.memory() == [16384])
    assert world.incarnation("web1") == 1


@pytest.mark.parametrize(("configured", "limit"), [(60, 10), (5, 5)])
def test_calls_of_audits_have_a_short_limit_of_their_own(
    world: World, configured: int, limit: int
) -> None:
    conf = world.conf("web1", rpc_response_timeout=configured)
    carrier = agent_main.carrier(conf, world.transport)
    assert carrier._client.timeout == limit


@pytest.mark.parametrize(
    ("pin", "level"),
    [(None, levels.SERVICE_LEVEL), ("1.0", 0), ("auto", levels.SERVICE_LEVEL)],
)
def test_the_service_level_is_told_unless_a_pin_forbids_it(
    world: World, pin: str | None, level: int
) -> None:
    world.serve()
    world.write("web1")
    values: dict[str, Any] = {"upgrade_levels/conductor": pin}
    world.agent("web1", **values).start()
    assert world.records.lowest_level(service_obj.COMPUTE_BINARY) == level


# -- audits on demand --------------------------------------------------------------


def test_an_audit_on_demand_says_what_it_did(world: World) -> None:
    world.serve()
    world.write("web1")
    one = world.agent("web1", update_resources_interval=86400.0, stalled_after=0.0)
    one.start()
    ctxt = context.service_context()
    # What is read before the first verification has ended may be read once more.
    world.compute.audit(ctxt, "web1", wait=60.0)
    answer = world.compute.audit(ctxt, "web1", wait=60.0)
    assert answer["ended"]
    assert (answer["counts"]["unchanged"], answer["nodes"]) == (1, {})
    world.write("web1", {"web1": {**NODE, "memory_mb": 32768}})
    answer = world.compute.audit(ctxt, "web1", wait=60.0)
    assert answer["nodes"] == {"saved": ["web1"]}
    assert world.memory() == [32768]
    world.write("web1", fault="not-ready")
    answer = world.compute.audit(ctxt, "web1", wait=60.0)
    assert answer["error"]["code"] == "inventory-unavailable"
    assert "not ready" in answer["error"]["message"]
    assert world.compute.audit(ctxt, "web1", wait=0.0) == {"ended": False}
    with pytest.raises(errors.InvalidInput):
        world.compute.audit(ctxt, "web1", wait=61.0)


def test_requests_share_an_audit_and_none_waits_for_ever(world: World) -> None:
    world.serve()
    world.write("web1")
    values: dict[str, Any] = {"inventory/timeout": 60.0, "stalled_after": 0.0}
    one = world.agent("web1", update_resources_interval=86400.0, **values)
    one.start()
    ctxt = context.service_context()
    util.wait_until(lambda: world.compute.audit(ctxt, "web1", wait=60.0)["ended"])
    reads: list[float] = []
    read = one._source.read

    def counted() -> Any:
        reads.append(time.monotonic())
        return read()

    one._source.read = counted  # type: ignore[method-assign]
    world.write("web1", fault="block")
    assert world.compute.audit(ctxt, "web1", wait=0.0) == {"ended": False}
    util.wait_until(lambda: len(reads) == 1)
    with futures.ThreadPoolExecutor(6) as pool:
        pending = [
            pool.submit(world.compute.audit, ctxt, "web1", wait=60.0) for _ in range(6)
        ]
        util.wait_until(lambda: one._demand._waiting == 6)
        # It serves other calls while they wait, and a bounded wait ends.
        assert world.compute.audit(ctxt, "web1", wait=0.1) == {"ended": False}
        assert world.compute.ping(ctxt, "web1")["incarnation"] == 1
        world.write("web1")
        answers = [each.result() for each in pending]
    assert all(answer["ended"] for answer in answers)
    assert len(reads) == 2  # the one in hand, and one for all of them


@pytest.mark.parametrize("count", [2, 9])
def test_a_verification_reads_once_however_many_nodes(
    world: World, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[object] = []
    reread = resource_tracker.ResourceTracker.reread

    def noted(tracker: resource_tracker.ResourceTracker) -> None:
        reread(tracker)
        verified.append(tracker)

    monkeypatch.setattr(resource_tracker.ResourceTracker, "reread", noted)
    world.serve()
    world.write("web1", {f"n{number}": NODE for number in range(count)})
    one = world.agent("web1", update_resources_interval=0.1, verify_interval=86400.0)
    one.start()
    ctxt = context.service_context()
    util.wait_until(lambda: len(verified) == 1)
    world.compute.audit(ctxt, "web1", wait=60.0)  # which reads for the last time
    statements: list[str] = []
    event.listen(
        world.engine,
        "before_cursor_execute",
        lambda _c, _u, statement, *_: statements.append(statement),
    )
    for _ in range(5):
        answer = world.compute.audit(ctxt, "web1", wait=60.0)
        assert answer["counts"]["unchanged"] == count
    assert statements == []  # five audits, and those of the timer
    one._conf.set_override("verify_interval", 43200.0)
    one.reset()  # news of the interval have it look at once
    util.wait_until(lambda: len(verified) == 2)
    world.compute.audit(ctxt, "web1", wait=60.0)
    # The grant, and all the nodes; nothing is written. A conductor also looks for rows
    # of Juno's shape, once a second at most, whoever asks.
    own = [s for s in statements if s != "BEGIN" and "host IS NULL" not in s]
    first_words = [s.split()[0] for s in own]
    assert first_words == ["SELECT", "SELECT"]


# -- identity ----------------------------------------------------------------------


def saved(world: World, host: str) -> Any:
    path = world.folder / f"{host}.state" / "nodes.json"
    return json.loads(path.read_text()) if path.exists() else None


def test_a_renamed_host_keeps_its_node(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The machine web1 gets the name web2; its one node has the host's name."""
    world.serve()
    world.write("web1", one_machine=True)
    one = world.agent("web1")
    one.start()
    (before,) = world.nodes()
    named = {"name": "web1", "uuid": before["uuid"]}
    util.wait_until(lambda: saved(world, "web1") == {"host": "web1", "nodes": [named]})
    db_store.DatabaseStore(world.engine).compute_node_update(
        before["id"], {"vcpus_used": 3}, None, writes_usage=True
    )
    one.stop()
    world.copy_state("web1", "web2")
    caplog.clear()
    world.write("web2", one_machine=True)
    world.agent("web2").start()
    (after,) = world.nodes()
    assert (after["id"], after["uuid"], after["vcpus_used"]) == (
        before["id"],
        before["uuid"],
        3,
    )
    assert (after["host"], after["hypervisor_hostname"]) == ("web2", "web2")
    (line,) = [m for m in caplog.messages if m.startswith("Host renamed")]
    for word in ("web1", "web2", before["uuid"], "service of web1 stays"):
        assert word in line
    assert len(db_store.DatabaseStore(world.engine).services()) == 2
    named = {"name": "web2", "uuid": before["uuid"]}
    util.wait_until(lambda: saved(world, "web2") == {"host": "web2", "nodes": [named]})


def test_an_interval_that_is_shortened_is_said_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.serve()
    world.write("web1")
    one = world.agent("web1", update_resources_interval=60.0)
    one.start()
    one.reset()
    (line,) = [m for m in caplog.messages if "update_resources_interval" in m]
    for word in ("60 s", "12.5 s", "stalled_after"):
        assert word in line


def was_web1(world: World) -> list[Any]:
    """Let web1 be renamed to web2, which hasn't started yet; return the nodes."""
    world.serve()
    world.write("web1")
    one = world.agent("web1")
    one.start()
    util.wait_until(lambda: saved(world, "web1"))
    one.stop()
    world.copy_state("web1", "web2")
    world.write("web2", {"web1": NODE})
    return world.nodes()


def test_a_renamed_host_waits_for_a_conductor_that_can_be_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The conductors are pinned: none hears of the former name."""
    before = was_web1(world)
    one = world.agent("web2", **{"upgrade_levels/conductor": "1.0"})
    start = threading.Thread(target=one.start)
    start.start()
    try:
        util.wait_until(lambda: "told that host web2 was web1" in caplog.text)
    finally:
        one.stop()
        start.join()
    assert world.nodes() == before
    assert world.incarnation("web2") is None
    assert saved(world, "web2")["host"] == "web1"
    world.agent("web2").start()
    (after,) = world.nodes()
    assert (after["id"], after["host"]) == (before[0]["id"], "web2")


def test_an_answer_that_tells_nothing_of_the_nodes_is_no_grant(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_web1(world)
    one = world.agent("web2")
    one._saved = one._identity.read()
    answer = {"host": "web2", "incarnation": 1}
    monkeypatch.setattr(one._conductor, "hello", lambda *_, **__: answer)
    with pytest.raises(errors.UnsupportedObject) as caught:
        one._say_hello()
    assert "host web2 was web1" in caught.value.message


def test_more_nodes_than_a_hello_can_tell_of_are_not_dropped(world: World) -> None:
    uuids = [str(uuid.uuid4()) for _ in range(conductor_rpcapi.MOST_NODES + 1)]
    (world.folder / "web2.state").mkdir()
    nodes = [{"name": f"n{i}", "uuid": one} for i, one in enumerate(uuids)]
    path = world.folder / "web2.state" / "nodes.json"
    path.write_text(json.dumps({"host": "web1", "nodes": nodes}))
    world.serve()
    with pytest.raises(errors.InvalidInput) as caught:
        world.agent("web2").start()
    for word in ("web1", str(len(uuids)), str(conductor_rpcapi.MOST_NODES)):
        assert word in caught.value.message
    assert world.incarnation("web2") is None
    assert saved(world, "web2")["host"] == "web1"


def test_a_copied_state_directory_is_refused(world: World) -> None:
    """A-LIV-3, first step; the first agent isn't disturbed."""
    world.serve()
    world.write("web1")
    world.agent("web1").start()
    before = world.nodes()
    util.wait_until(lambda: saved(world, "web1"))
    world.copy_state("web1", "web2")
    world.write("web2")
    with pytest.raises(errors.NodeTaken) as caught:
        world.agent("web2").start()
    assert (caught.value.host, caught.value.uuid) == ("web1", before[0]["uuid"])
    for word in ("web1", before[0]["uuid"]):
        assert word in caught.value.message
    assert world.incarnation("web2") is None
    assert world.nodes() == before
    assert world.seen == ["join web1#1"]
    assert world.failures == {}


def test_a_state_directory_brought_to_a_host_with_nodes_moves_none(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.serve()
    for host in ("web1", "web2"):
        world.write(host)
        one = world.agent(host)
        one.start()
        util.wait_until(lambda host=host: saved(world, host))  # type: ignore[misc]
        one.stop()
    before = world.nodes()
    shutil.rmtree(world.folder / "web2.state")
    world.copy_state("web1", "web2")
    world.agent("web2").start()
    assert world.nodes() == before
    (line,) = [m for m in caplog.messages if m.startswith("Host renamed")]
    assert "not taken over" in line
    util.wait_until(lambda: saved(world, "web2")["host"] == "web2")


def test_a_lost_state_directory_loses_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.serve()
    world.write("web1")
    one = world.agent("web1")
    one.start()
    before = world.nodes()
    one.stop()
    shutil.rmtree(world.folder / "web1.state")
    (world.folder / "web1.state").write_text("no directory")
    world.agent("web1").start()
    assert world.nodes() == before
    assert "goes on without it" in caplog.text


def test_a_node_moves_to_another_agent_that_reports_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.serve()
    limits: list[float] = []
    adopt = conductor_rpcapi.ConductorAPI.adopt_node

    def limited(*which: Any, timeout: float) -> None:
        limits.append(timeout)
        adopt(*which)

    monkeypatch.setattr(conductor_rpcapi.ConductorAPI, "adopt_node", limited)
    roams = {**NODE, "uuid": "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001", "roams": True}
    for host in ("web1", "web2"):
        world.write(host, {"n1": roams, host: NODE})
        world.agent(host).start()
    for host in ("web1", "web2"):
        world.write(host, {host: NODE})
    assert sorted((n["host"], n["hypervisor_hostname"]) for n in world.nodes()) == [
        ("web1", "web1"),
        ("web2", "n1"),
        ("web2", "web2"),
    ]
    util.wait_until(
        lambda: saved(world, "web1") and len(saved(world, "web1")["nodes"]) == 1
    )
    assert len(world.nodes()) == 3
    # web1 asks whether Juno left it behind, web2 takes it over; each by
    # rpc_response_timeout, ten seconds at most.
    assert limits == [5.0, 5.0]
