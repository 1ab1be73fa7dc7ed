"""The conductor: owns the database, runs remotable methods, decides verdicts."""

# Settles the threading model before anything here loads oslo.messaging.
import musterbook  # noqa: F401
