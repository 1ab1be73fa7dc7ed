"""Group drivers, the beat, the roster and the verdict."""
