"""The versioned objects that travel over RPC, and the port to their store."""

# Settles the threading model before anything here loads oslo.messaging.
import musterbook  # noqa: F401  # imported first, for what it does

# Registered with the package: who receives one object must know those in it.
from objects import compute_node  # noqa: F401  # imported to be registered
from objects import service  # noqa: F401  # imported to be registered
