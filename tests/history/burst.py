"""A scheduler's process that fires claims of one node at once.

``python -m tests.history.burst URL NODE COUNT GO MEMORY_MB`` writes ``ready``, waits
for the file GO, and then writes one line of JSON for each claim: its uuid, what the
answer was, and after how many seconds it came.
"""

from concurrent import futures
import json
import pathlib
import sys
import time
import uuid as uuidlib

from conductor import rpcapi
from musterbook import context
from musterbook import errors
from musterbook import rpc
from tests import rpc_lab


def main(url: str, node: str, count: str, go: str, memory_mb: str) -> None:
    """Fire."""
    transport = rpc.make_transport(rpc_lab.make_conf(url))
    conductor = rpcapi.ConductorAPI(transport, 60.0)
    me = context.service_context()
    conductor.ping(me)  # which connects

    def one(_: int) -> tuple[str, str, float]:
        uuid = str(uuidlib.uuid4())
        wanted = {"memory_mb": int(memory_mb)}
        request = {"uuid": uuid, "resources": wanted, "candidates": [node]}
        began = time.monotonic()
        try:
            conductor.claim(me, {**request, "owner": "tests"})
            answer = "claimed"
        except errors.ClaimRefused as exc:
            answer = " ".join(str(reason["reason"]) for reason in exc.reasons)
        return uuid, answer, time.monotonic() - began

    print("ready", flush=True)
    while not pathlib.Path(go).exists():
        time.sleep(0.005)
    with futures.ThreadPoolExecutor(int(count)) as pool:
        for found in pool.map(one, range(int(count))):
            print(json.dumps(found), flush=True)
    transport.cleanup()


if __name__ == "__main__":
    main(*sys.argv[1:])
