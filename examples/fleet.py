"""Show the fleet: ask a conductor over RPC, as a scheduler does.

python examples/fleet.py --config-file compute.conf
"""

import sys

from conductor import rpcapi
from musterbook import conf
from musterbook import context
from musterbook import errors
from musterbook import fleetview
from musterbook import rpc


def main() -> None:
    """Print a line per node of the fleet."""
    settings = conf.load(
        sys.argv[1:], "musterbook-compute", prepare=[rpc.register_options]
    )
    transport = rpc.make_transport(settings, to_others=True)
    try:
        answer = rpcapi.ConductorAPI(transport, timeout=5.0).get_fleet(
            context.service_context(), fleetview.COLUMNS
        )
    finally:
        transport.cleanup()
    for line in fleetview.nodes(answer):
        print(fleetview.plain(line))


if __name__ == "__main__":
    try:
        main()
    except errors.MusterbookError as exc:
        sys.exit(exc.message)
