"""The in-process transport: oslo.messaging without a broker, for ``inproc://``.

For everything in one process and for fast tests. It behaves as RabbitMQ does under
oslo.messaging 18.3: a topic's queue is shared in turn by its servers, each server
has a queue of its own and a copy of every fanout, messages and answers cross as
JSON text, and failures cross in oslo.messaging's own form. So what works here works
over a broker, and what a broker would refuse fails here as well.

What happens to messages nobody takes:

* To a queue that does not exist (no server has listened there): dropped, so that a
  call ends in MessagingTimeout; with ``TransportOptions(at_least_once=True)``
  MessageUndeliverable at once. Both are what a broker does.
* In a topic's queue without a server left: kept, until the caller's timeout for a
  call and as long as the exchange lives for a cast.
* In a server's own queue when it stops: still handled by it, and new ones are
  undeliverable. (RabbitMQ keeps such a queue; here it goes with its last listener.)

Nothing polls: an idle listener sleeps on a condition. The exchange of a name,
``inproc:///name``, lives as long as some transport uses it. Any thread may use a
transport; nothing here survives a fork.
"""

from musterbook.inproc.driver import InProcessDriver

__all__ = ["InProcessDriver"]
