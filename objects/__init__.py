"""The versioned objects that travel over RPC, and the port to their store."""

# Settles the threading model before anything here loads oslo.messaging.
import musterbook  # noqa: F401
