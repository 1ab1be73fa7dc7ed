"""A fleet of real and hollow agents under faults, and a reader that never rests."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import pathlib
import re
import threading
import time

import sqlalchemy as sa

from musterbook import context
from musterbook import errors
from musterbook.servicegroup import factory
from tests import bad_network
from tests import process
from tests import util
from tests.functional import group_load
from tests.functional import lab as labs
from tests.functional import outages

AGENTS = tuple(f"node-{letter}" for letter in "abcde")
#: Those of production; see labs for what each is.
PRODUCTION = {
    "REPORT_INTERVAL": 3,
    "MEMBER_TIMEOUT": 10,
    "SERVICE_DOWN_TIME": 40,
    "POLL_INTERVAL": 1,
    "UPDATE_RESOURCES_INTERVAL": 60,
}
#: Seconds between two questions of the reader.
_STEP = 0.1


@dataclasses.dataclass(frozen=True)
class Sample:
    """One answer to the reader.

    :ivar began: when it was asked for, on the monotonic clock
    :ivar states: state and cause of each node
    """

    began: float
    states: Mapping[str, tuple[str, str]]

    def all_up(self, hosts: Collection[str]) -> bool:
        """Return whether these are all there is, and up."""
        return self.states.keys() == set(hosts) and all(
            state == "up" for state, _ in self.states.values()
        )


class Reader:
    """Asks how everybody is, over and over, in a thread of its own."""

    def __init__(self, lab: labs.Lab) -> None:
        self._lab = lab
        self._lock = threading.Lock()
        self._samples: list[Sample] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader")

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._thread.join(60)

    def samples(self, since: float = 0.0) -> list[Sample]:
        """Return what was answered to questions from an instant on."""
        with self._lock:
            return [s for s in self._samples if s.began >= since]

    def _run(self) -> None:
        asking = ["hypervisor_hostname", "state", "state_cause"]
        while not self._stopping.wait(_STEP):
            began = time.monotonic()
            try:
                answer = self._lab.conductor.get_fleet(
                    context.service_context(), asking
                )["columns"]
            except errors.MusterbookError:
                continue
            told = zip(answer["state"], answer["state_cause"], strict=True)
            states = dict(zip(answer["hypervisor_hostname"], told, strict=True))
            with self._lock:
                self._samples.append(Sample(began, states))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a fleet came through a fault.

    :ivar back: seconds from the end of the fault until all were up to stay
    :ivar load: the most that the backend was asked in a beat's interval meanwhile, as
        a multiple of what it is asked while nothing happens; None: it doesn't count
    """

    back: float
    load: float | None


class Fleet:
    """Two conductors, five agents and as many hollow ones as wanted.

    :param backend: the group's server; None: it has none
    :param network: what lies between it and all of them
    :ivar beat: seconds between two beats
    :ivar allowed: seconds within which all have to be back after a fault
    """

    def __init__(
        self,
        lab: labs.Lab,
        hollow: int,
        backend: process.Server | None = None,
        network: bad_network.BadNetwork | None = None,
    ) -> None:
        self.lab = lab
        self.backend = backend
        self.network = network
        self.links: list[bad_network.BadNetwork] = []
        self._hollow = hollow
        self.beat = factory.beat_interval(labs.REPORT_INTERVAL, labs.MEMBER_TIMEOUT)
        self.allowed = labs.MEMBER_TIMEOUT + 2 * self.beat
        self.hosts = {*AGENTS, *(f"hollow-{n + 1}" for n in range(hollow))}
        self.reader = Reader(lab)
        self._meter: group_load.Meter | None = None
        self.steady = group_load.Load(0.0, {})
        self._lost: set[str] = set()

    def start(self) -> None:
        """Start all; the first conductor leads."""
        self.lab.sync()
        self.start_leader()
        self.lab.start_conductor("c2")
        self.start_agents()

    def start_leader(self) -> None:
        """Start the first conductor and see it lead."""
        first = self.lab.start_conductor("c1")
        util.wait_until(
            lambda: "Leading with term 1" in first.errors(), outages.BUSY, "a leader"
        )

    def term(self, name: str) -> int:
        """Return the last term that a conductor has begun to lead with, 0 for none."""
        found = re.findall(r"Leading with term (\d+)", self.lab.process(name).errors())
        return int(found[-1]) if found else 0

    def lose(self, name: str) -> None:
        """Kill a conductor."""
        self.lab.process(name).kill()
        self._lost.add(name)

    def start_agents(self) -> None:
        """Start all agents at once."""
        for host in AGENTS:
            self.lab.start_agent(host)
        if self._hollow:
            self.lab.start_hollow(self._hollow)

    def agents(self) -> list[labs.Process]:
        """Return the processes of all agents."""
        names = [*AGENTS, *(["hollow"] if self._hollow else [])]
        return [self.lab.process(name) for name in names]

    def settle(self, since: float, limit: float) -> float:
        """Wait until all are up, and were for a member timeout; return from when.

        :param since: when waiting began
        :param limit: seconds from then to that moment
        :returns: seconds
        """
        stay = labs.MEMBER_TIMEOUT

        def settled() -> float | None:
            samples = self.reader.samples(since)
            bad = [s.began for s in samples if not s.all_up(self.hosts)]
            if not samples or (bad and bad[-1] == samples[-1].began):
                assert time.monotonic() - since < limit + stay, self.not_up(samples)
                return None
            good = [s.began for s in samples if not bad or s.began > bad[-1]]
            assert good[0] - since <= limit, self.not_up(samples)
            return good[0] if good[-1] - good[0] >= stay else None

        found = util.wait_until(settled, limit + 2 * stay + 60, "all up")
        assert found is not None
        return found - since

    def not_up(self, samples: list[Sample]) -> str:
        """Describe who was how when not all were up last."""
        for sample in reversed(samples):
            if not sample.all_up(self.hosts):
                others = {h: s for h, s in sample.states.items() if s[0] != "up"}
                lacking = self.hosts - sample.states.keys()
                return f"lacking {sorted(lacking)}, {others}"
        return "no answer"

    def measure(self, beats: int) -> None:
        """Learn what the backend is asked while nothing happens."""
        if self._meter is None:
            return
        began = time.monotonic()
        time.sleep(beats * self.beat)  # this long is what is measured
        self.steady = self._meter.rate(began, time.monotonic())

    @contextlib.contextmanager
    def running(self) -> Iterator["Fleet"]:
        """Run all, and end the reader and the meter afterwards."""
        with contextlib.ExitStack() as stack:
            self.start()
            stack.enter_context(self.reader)
            if self.backend is not None and self.backend.kind in group_load.COUNTERS:
                self._meter = group_load.Meter(self.backend)
                stack.enter_context(self._meter)
            self.settle(time.monotonic(), outages.BUSY)
            yield self

    def go(
        self,
        name: str,
        begin: Callable[[], object],
        end: Callable[[], object] = lambda: None,
        seconds: float = 0.0,
        limit: float = outages.BUSY,
    ) -> Outcome:
        """Let one fault happen for some seconds; nobody may be called down for it.

        :param limit: seconds until all are up again
        """
        started = time.monotonic()
        begin()
        # A fault is as long as it is: this is its length, not a wait for it.
        time.sleep(max(0.0, started + seconds - time.monotonic()))
        ending = time.monotonic()
        end()
        ended = time.monotonic()
        back = self.settle(ended, limit)
        load = None
        if self._meter is not None and self.steady.all:
            until = ended + back + 2 * self.beat
            most = self._meter.most(ending, until, self.beat)
            load = most.all / self.steady.all
            print(f"{name}: a second {most}, steady {self.steady}")
        outcome = Outcome(back, load)
        print(f"{name}: {outcome}, load {labs_load()}")
        self.check(started)
        return outcome

    def check(self, since: float, but: Collection[str] = ()) -> None:
        """Check that nobody was ever down, and that no process minds.

        :param but: of whom it is true
        """
        for sample in self.reader.samples(since):
            down = {h for h, (s, _) in sample.states.items() if s == "down"}
            assert down <= set(but), f"{down} at {sample.began - since:.1f} s"
        assert self.downs() <= set(but)
        conductors = {"c1", "c2"} - self._lost
        outages.check_alive([self.lab.process(name) for name in conductors])
        outages.check_alive(self.agents())

    def downs(self) -> set[str]:
        """Return the hosts that are stored to have been down at any time."""
        engine = sa.create_engine(self.lab.database)
        query = sa.text("SELECT host FROM transitions WHERE state = 'down'")
        with engine.connect() as connection:
            found = {str(host) for host in connection.execute(query).scalars()}
        engine.dispose()
        return found

    def kill_one(self, host: str) -> tuple[float, float]:
        """Kill an agent with signal 9; return when it was suspect and when down."""
        began = time.monotonic()
        self.lab.process(host).kill()

        def first(state: str) -> float | None:
            for sample in self.reader.samples(began):
                if sample.states.get(host, ("",))[0] == state:
                    return sample.began - began
            return None

        limit = labs.SERVICE_DOWN_TIME + outages.BUSY
        util.wait_until(lambda: first("down"), limit, f"{host} down")
        suspect, down = first("suspect"), first("down")
        assert suspect is not None
        assert down is not None
        # Nobody else was.
        for sample in self.reader.samples(began):
            assert sample.states.keys() == self.hosts
            others = {s for h, (s, _) in sample.states.items() if h != host}
            assert others <= {"up", "suspect"}
        assert self.downs() == {host}
        return suspect, down


def labs_load() -> str:
    """Return the machine's load, which belongs to each figure."""
    return pathlib.Path("/proc/loadavg").read_text(encoding="ascii").split()[0]
