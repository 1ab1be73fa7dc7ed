"""The parts of RPC that decide: what is told of an outage, pauses, backlog, pages."""

import collections
import logging
import random
from typing import Any

import pytest

from conductor import paging
from musterbook import conf as conf_module
from musterbook import errors
from musterbook import rpc
from musterbook.rpc import backlog
from musterbook.rpc import outage
from tests import rpc_lab


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TestOutage:
    def test_begin_new_reasons_and_end_are_told_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = Clock()
        found = outage.Outage(clock)
        found.lost("listener", "h:5672", "Connection refused")
        for _ in range(3):
            found.lost("listener", "h:5672", "doesn't answer")
            found.lost("pool", "h:5672", "doesn't answer")
            found.lost("listener", "h:5672", "Connection refused")
        found.back("listener")
        clock.now += 12
        assert len(caplog.records) == 2
        found.back("pool")
        found.back("pool")
        begin, change, end = (record.getMessage() for record in caplog.records)
        assert "is lost: h:5672: Connection refused" in begin
        assert "is still lost: h:5672: doesn't answer" in change
        assert "after 12 s" in end

    def test_each_outage_has_its_own_reasons(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        found = outage.Outage()
        for _ in range(2):
            found.lost("pool", "h:5672", "Connection refused")
            found.lost("pool", "h:5672", "refuses the user or the password")
            found.back("pool")
        texts = [record.getMessage() for record in caplog.records]
        assert [" is lost" in t for t in texts] == [True, False, False] * 2
        assert [" still lost" in t for t in texts] == [False, True, False] * 2

    def test_a_party_that_ends_is_no_end(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        found = outage.Outage()
        found.lost("pool", "h:5672", "Connection refused")
        found.forget("pool")
        found.back("pool")
        assert [r.levelno for r in caplog.records] == [logging.ERROR]


class TestPauses:
    def make(self, seed: int) -> outage.Pauses:
        conf = conf_module.load(
            [], "test", prepare=[rpc.register_options], config_files=[]
        )
        options = conf.oslo_messaging_rabbit
        return outage.Pauses(
            options.rabbit_retry_interval,
            options.rabbit_retry_backoff,
            options.rabbit_interval_max,
            options.kombu_reconnect_splay,
            random.Random(seed),
        )

    @pytest.mark.parametrize("down", [0.0, 5.0, 60.0])
    def test_a_fleet_comes_back_spread_and_in_time(self, down: float) -> None:
        """10,000 agents lose the broker at once; it is back after so many seconds."""
        pauses = self.make(0)
        arrivals: collections.Counter[int] = collections.Counter()
        latest = 0.0
        for _ in range(10_000):
            pauses.reset()
            now = pauses.next()
            while now < down:
                now += pauses.next()
            arrivals[int(now - down)] += 1
            latest = max(latest, now - down)
        assert latest < 10  # leaves 5 s of the 15 s to be well again
        assert max(arrivals.values()) < 3_500  # unspread: all of them

    def test_they_grow_to_a_limit(self) -> None:
        pauses = outage.Pauses(1, 2, 4, 0)
        assert [pauses.next() for _ in range(5)] == [0, 1, 3, 4, 4]
        pauses.reset()
        assert pauses.next() == 0


class TestBacklog:
    def test_what_nobody_waits_for_is_dropped_and_told_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = Clock()
        calls = backlog.Backlog("conductor.c1", clock)
        assert calls.take(0.1, 5)
        assert not calls.take(5.0, 5)
        clock.now += 7
        assert not calls.take(6.0, 5)
        assert calls.take(3.0, 5)  # in time, but not yet prompt
        assert len(caplog.records) == 1
        assert calls.take(0.1, 5)
        assert calls.take(0.1, 5)
        begin, end = (record.getMessage() for record in caplog.records)
        assert "conductor.c1" in begin
        assert "2 calls were dropped in 7 s" in end

    @pytest.mark.parametrize("patience", [None, 0, -1, "5", [], {}])
    def test_a_peer_that_does_not_say_is_served(self, patience: Any) -> None:
        assert backlog.Backlog("s").take(1000.0, patience)


class Node:
    def __init__(self, number: int) -> None:
        self.id = number


class NodeList:
    def __init__(self, nodes: list[Node]) -> None:
        self.objects = nodes
        self.changed = True

    def __iter__(self) -> Any:
        return iter(self.objects)

    def __len__(self) -> int:
        return len(self.objects)

    def obj_reset_changes(self) -> None:
        self.changed = False


class TestPaging:
    def fetcher(self, ids: list[int], most: int, delete: int = 0) -> Any:
        """Return a fetch_page of a table whose pages hold so many at most.

        :param delete: a node that is deleted once it has been told of
        """

        def fetch(limit: int, marker: int | None) -> NodeList:
            if limit > most:
                raise errors.MessageTooLarge(what="x", size=limit, limit=most)
            if marker is not None and marker not in ids:
                raise errors.MarkerNotFound(marker=marker)
            page = [n for n in ids if marker is None or n > marker][:limit]
            if delete in page:
                ids.remove(delete)
            return NodeList([Node(number) for number in page])

        return fetch

    @pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000, 1001])
    def test_each_node_comes_once(self, count: int) -> None:
        found = paging.fetch_all(self.fetcher(list(range(1, count + 1)), most=8))
        assert [node.id for node in found] == list(range(1, count + 1))
        assert not found.changed

    def test_a_deleted_marker_is_no_end(self) -> None:
        ids = list(range(1, 30))
        found = paging.fetch_all(self.fetcher(ids, most=8, delete=7))
        assert [node.id for node in found] == list(range(1, 30))

    def test_a_node_that_fits_nowhere(self) -> None:
        with pytest.raises(errors.MessageTooLarge):
            paging.fetch_all(self.fetcher([1], most=0))


def test_the_limit_is_an_option_of_a_private_conf() -> None:
    assert rpc_lab.make_conf(None).rpc_message_limit == 16 * 2**20
