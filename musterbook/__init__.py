"""What the rooms of Musterbook share: configuration, RPC, errors, liveness.

Importing this package settles the process's threading model once: oslo.service
gets its native-thread backend before oslo.messaging (which asks for a backend at
import) is loaded anywhere. Eventlet is never used; futurist still imports it.
"""

import warnings

from oslo_service import backend


def _threading() -> backend.BackendType:
    return backend.BackendType.THREADING


backend.register_backend_default_hook(_threading)

# futurist 3.5 imports eventlet when it is installed, and eventlet then warns on
# stderr of every command about a monkey-patching that never happens here.
warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")
