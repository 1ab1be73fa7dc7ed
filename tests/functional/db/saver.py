"""A process of agents that save: python -m tests.functional.db.saver URL ...

Arguments: the database's URL, saves a second, and the numbers of the first and the
last host (``host-N`` with the node ``node-N``). It saves through the store until its
input ends, then prints what it did as JSON: the latencies in ms, the names of the
failures, and the last value that each host's agent saved.
"""

from collections.abc import Sequence
import json
import random
import sys
import threading
import time

from conductor.db import engine as db_engine
from conductor.db import store as db_store

_THREADS = 4


class Agents:
    """The agents of every fourth host, in one thread.

    :param pause: seconds from one save to the next
    """

    def __init__(
        self, store: db_store.DatabaseStore, numbers: Sequence[int], pause: float
    ) -> None:
        self.latencies: list[float] = []
        self.failures: list[str] = []
        self.last: dict[int, int] = {}
        self._store = store
        self._numbers = numbers
        self._pause = pause
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"agents-{numbers[0]}")
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        rng = random.Random()
        due = time.monotonic()
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._pause, time.monotonic() - 1.0)
            began = time.monotonic()
            try:
                self._save(rng.choice(self._numbers), rng.randrange(1_000_000))
            except Exception as exc:  # noqa: BLE001  # what the test is about
                self.failures.append(f"{type(exc).__name__}: {exc}")
            self.latencies.append((time.monotonic() - began) * 1000)

    def _save(self, number: int, value: int) -> None:
        """As an agent's audit: read by identity, save on what was read."""
        node = self._store.compute_node_get_by_host_and_nodename(
            f"host-{number}", f"node-{number}"
        )
        change = {"running_vms": value, "disk_available_least": value}
        generation = node["inventory_generation"]
        self._store.compute_node_update(node["id"], change, generation)
        self.last[number] = value


def main(url: str, rate: float, first: int, last: int) -> None:
    engine = db_engine.make_engine(url)
    store = db_store.DatabaseStore(engine)
    numbers = range(first, last + 1)
    crew = [
        Agents(store, numbers[part::_THREADS], _THREADS / rate)
        for part in range(min(_THREADS, len(numbers)))
    ]
    print("saving", flush=True)
    sys.stdin.read()
    for agents in crew:
        agents.end()
    told = {
        "latencies": [ms for agents in crew for ms in agents.latencies],
        "failures": [text for agents in crew for text in agents.failures],
        "last": {n: v for agents in crew for n, v in agents.last.items()},
    }
    print(json.dumps(told))
    engine.dispose()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
