"""A watch that isn't asked while its answer can't be another one.

A step of a Watch goes through the whole fleet, once a second; nearly always nothing has
changed since the last one. What such a step would say is known: nothing new.
"""

from collections.abc import Iterable
from collections.abc import Mapping

from musterbook import errors
from musterbook.servicegroup import ping
from musterbook.servicegroup import roster
from musterbook.servicegroup import verdict

#: What a step decides by which nothing changes.
NOTHING_NEW = roster.Decision({}, {}, ())


class Steady:
    """A Watch with the same steps, and less to do in them. For one thread.

    A decision leaves out the verdicts that are as they were, all of them or none;
    freezes and pings are never left out.

    :param policy: when silence means what
    """

    def __init__(self, policy: verdict.Policy) -> None:
        self._policy = policy
        self._watch = roster.Watch(policy)
        # What the last step was told, and until when it may be said again.
        self._poll: frozenset[str] | None = None
        self._granted: Mapping[str, verdict.Granted] = {}
        self._replies = ping.Replies({}, {}, {})
        self._looked = 0.0
        self._until = 0.0

    def set_policy(self, policy: verdict.Policy) -> None:
        """Judge by other times from the next step on."""
        if policy != self._policy:
            self._policy = policy
            self._watch.set_policy(policy)
            self._poll = None

    def recall(self, past: Iterable[roster.Past]) -> None:
        """As Watch.recall()."""
        self._poll = None
        self._watch.recall(past)

    def release(self, scope: str) -> bool:
        """As Watch.release()."""
        self._poll = None
        return self._watch.release(scope)

    def step(
        self,
        poll: frozenset[str] | errors.GroupError,
        granted: Mapping[str, verdict.Granted],
        replies: ping.Replies,
        now: float,
        canary: bool | None = None,
    ) -> roster.Decision:
        """Take in one poll and decide; parameters as those of Watch.step().

        :param granted: the same object as in the last step only if nothing in it has
            changed
        """
        if self._is_steady(poll, granted, replies, now):
            self._watch.look_again(now)
            self._looked = now
            return NOTHING_NEW
        decision = self._watch.step(poll, granted, replies, now, canary)
        until = self._watch.quiet_until(granted, replies.asked)
        if until is None or not isinstance(poll, frozenset):
            self._poll = None
            return decision
        self._poll, self._granted, self._replies = poll, granted, replies
        self._looked, self._until = now, until
        return decision

    def _is_steady(
        self,
        poll: frozenset[str] | errors.GroupError,
        granted: Mapping[str, verdict.Granted],
        replies: ping.Replies,
        now: float,
    ) -> bool:
        return (
            self._poll is not None
            and granted is self._granted
            and now < self._until
            and now - self._looked <= self._policy.member_timeout
            and replies == self._replies
            and (poll is self._poll or poll == self._poll)
        )
