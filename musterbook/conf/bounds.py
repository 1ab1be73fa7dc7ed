"""What makes sense of the libraries' numbers, which they take as they come.

Zero threads answer nothing, a heartbeat rate of zero is divided by, and a negative
timeout fails in the middle of a call. Options of our own have their bounds where they
are defined.
"""

from collections.abc import Mapping
import math

#: Lowest and highest value by group ('' is [DEFAULT]) and name.
_BOUNDS: Mapping[tuple[str, str], tuple[float, float]] = {
    ("", "executor_thread_pool_size"): (1, 10_000),
    # 0 would mean an endless stop to oslo.service; ours has an end.
    ("", "graceful_shutdown_timeout"): (1, 86_400),
    ("", "log_rotate_interval"): (1, math.inf),
    ("", "max_logfile_count"): (0, math.inf),
    ("", "max_logfile_size_mb"): (1, math.inf),
    ("", "rate_limit_burst"): (0, math.inf),
    ("", "rate_limit_interval"): (0, math.inf),
    ("", "rpc_response_timeout"): (1, 86_400),
    # -1 is "never" and "without limit" to SQLAlchemy.
    ("database", "connection_recycle_time"): (-1, math.inf),
    ("database", "max_overflow"): (-1, 10_000),
    ("database", "max_pool_size"): (1, 10_000),
    ("database", "mysql_wsrep_sync_wait"): (0, 15),
    ("database", "pool_timeout"): (1, 86_400),
    ("oslo_messaging_metrics", "metrics_buffer_size"): (1, math.inf),
    ("oslo_messaging_metrics", "metrics_thread_stop_timeout"): (0, 86_400),
    ("oslo_messaging_rabbit", "conn_pool_min_size"): (1, 10_000),
    ("oslo_messaging_rabbit", "conn_pool_ttl"): (1, math.inf),
    ("oslo_messaging_rabbit", "heartbeat_rate"): (1, 1_000),
    ("oslo_messaging_rabbit", "heartbeat_timeout_threshold"): (0, 65_535),
    ("oslo_messaging_rabbit", "kombu_missing_consumer_retry_timeout"): (1, 86_400),
    ("oslo_messaging_rabbit", "rabbit_qos_prefetch_count"): (0, 65_535),
    ("oslo_messaging_rabbit", "rabbit_quorum_delivery_limit"): (0, math.inf),
    ("oslo_messaging_rabbit", "rabbit_quorum_max_memory_bytes"): (0, math.inf),
    ("oslo_messaging_rabbit", "rabbit_quorum_max_memory_length"): (0, math.inf),
    ("oslo_messaging_rabbit", "rpc_conn_pool_size"): (1, 10_000),
}


def fault(group: str, name: str, value: object) -> str | None:
    """Return what is wrong with an option's value; None: nothing, or nobody knows.

    :param group: '' is [DEFAULT]
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        # No comparison with NaN is true: it passes oslo.config's own bounds.
        return "is not a finite number"
    lowest, highest = _BOUNDS.get((group, name), (-math.inf, math.inf))
    if lowest <= value <= highest:
        return None
    if highest == math.inf:
        return f"{value} is less than {lowest:g}"
    return f"{value} is not between {lowest:g} and {highest:g}"
