"""The tests. Importing ours first settles the threading model for the run."""

import musterbook  # noqa: F401  # imported for what it does
