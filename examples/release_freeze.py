"""End the freeze of verdicts, of a zone or all; see docs/operators.md.

python examples/release_freeze.py [ZONE] --config-file compute.conf
"""

import sys

from conductor import rpcapi
from musterbook import conf
from musterbook import context
from musterbook import errors
from musterbook import rpc


def main() -> None:
    """Ask a conductor to end what is frozen, and print what does."""
    options = sys.argv[1:]
    zone = options.pop(0) if options and not options[0].startswith("-") else None
    settings = conf.load(options, "musterbook-compute", prepare=[rpc.register_options])
    transport = rpc.make_transport(settings, to_others=True)
    try:
        told = rpcapi.ConductorAPI(transport, timeout=5.0).release_freeze(
            context.service_context(), zone
        )
    finally:
        transport.cleanup()
    for scope in told["ended"]:
        print(f"{scope or 'the whole fleet'}: ends at the leader's next look")
    for scope in told["kept"]:
        name = scope or "the whole fleet"
        print(f"{name}: stays frozen, the group backend doesn't answer the leader")
    if not any(told.values()):
        print("nothing is frozen")


if __name__ == "__main__":
    try:
        main()
    except errors.MusterbookError as exc:
        sys.exit(exc.message)
