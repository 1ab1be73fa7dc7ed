"""tooz's redis driver with redis-py's own repeats made settable.

Apart from clients.py because it needs redis-py, which is an extra.
"""

from tooz.drivers import redis as redis_driver


class QuickRedisDriver(redis_driver.RedisDriver):
    """Takes ``retry`` (a redis.retry.Retry) among its options; else tooz's."""

    CLIENT_ARGS = redis_driver.RedisDriver.CLIENT_ARGS | {"retry"}
