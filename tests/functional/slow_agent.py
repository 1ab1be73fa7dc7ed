"""musterbook-compute with one more RPC method, which takes as long as one says.

Nothing of what an agent does by itself takes seconds; claims will.
"""

import sys
import time

from oslo_log import log as logging

from compute_agent import main
from compute_agent import manager
from musterbook import rpc
from musterbook.context import RequestContext

LOG = logging.getLogger("musterbook.slow_agent")


class SlowManager(manager.ComputeManager):
    """What an agent answers, and hold."""

    @rpc.exposed
    def hold(self, context: RequestContext, seconds: float) -> str:
        """Answer after so many seconds."""
        LOG.info("Holding a call")
        time.sleep(seconds)
        return "held"


if __name__ == "__main__":
    manager.ComputeManager = SlowManager  # type: ignore[misc]  # stands in for it
    sys.exit(main.main())
