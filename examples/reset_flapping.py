"""End the hold of a host that came and went; see docs/operators.md.

python examples/reset_flapping.py node-17 --config-file compute.conf
"""

import sys

from conductor import rpcapi
from musterbook import conf
from musterbook import context
from musterbook import errors
from musterbook import rpc


def main() -> None:
    """Ask a conductor to reset the host that the first argument names."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("which host? python examples/reset_flapping.py HOST ...")
    host = sys.argv[1]
    settings = conf.load(
        sys.argv[2:], "musterbook-compute", prepare=[rpc.register_options]
    )
    transport = rpc.make_transport(settings, to_others=True)
    try:
        rpcapi.ConductorAPI(transport, timeout=5.0).reset_flapping(
            context.service_context(), host
        )
    finally:
        transport.cleanup()


if __name__ == "__main__":
    try:
        main()
    except errors.MusterbookError as exc:
        sys.exit(exc.message)
