"""[DEFAULT]: who this process is and where it keeps its files."""

import socket

from oslo_config import cfg

OPTS = [
    cfg.StrOpt(
        "host",
        default=socket.gethostname(),
        sample_default="<this machine's host name>",
        help="Name under which this process serves: the host of its compute nodes, "
        "its RPC server and its group member. 1 to 245 of A-Z a-z 0-9 . _ -; two "
        "names that differ in case only are the same. Must be unique in the fleet: "
        "a second process with the name of a living one is refused.",
    ),
    cfg.StrOpt(
        "state_path",
        default="/var/lib/musterbook",
        help="Directory for the files a process keeps between starts. Must be "
        "writable by the user it runs as.",
    ),
]
GROUPS = [(None, OPTS)]
