"""[DEFAULT]: calls between processes, besides oslo.messaging's own options."""

from oslo_config import cfg

OPTS = [
    cfg.IntOpt(
        "rpc_message_limit",
        default=16 * 2**20,
        min=2**16,
        max=512 * 2**20,
        help="Bytes that a message over RabbitMQ may have; a larger one is refused "
        "before it is sent, with an error that says so. RabbitMQ 4 takes 16 MiB and "
        "3.x 128 MiB, unless its max_message_size says otherwise: set this to the "
        "same or less. A larger value costs the broker, and both sides, several times "
        "as much memory for each such message.",
    ),
]
GROUPS = [(None, OPTS)]
