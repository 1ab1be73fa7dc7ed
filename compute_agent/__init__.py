"""The compute agent: one host's inventory, reported over RPC."""

# Settles the threading model before anything here loads oslo.messaging.
import musterbook  # noqa: F401
