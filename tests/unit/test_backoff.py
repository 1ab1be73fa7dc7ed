import random

from musterbook import backoff


def test_pauses_double_to_the_limit_and_are_spread() -> None:
    made = [backoff.Backoff(0.5, 10.0, random.Random(seed)) for seed in range(200)]
    for longest in (0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        pauses = [one.pause() for one in made]
        assert longest / 2 <= min(pauses) < longest * 0.55
        assert longest * 0.95 < max(pauses) <= longest
