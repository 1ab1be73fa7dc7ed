"""Legacy agents as processes of their own; see legacy_peer.py."""

import json
import pathlib
import subprocess
import sys
from typing import Any

from tests.functional import lab as lab_module

_PEER = pathlib.Path(__file__).with_name("legacy_peer.py")


class LegacyPeer:
    """A running legacy agent.

    :ivar service: what it found or created
    :ivar node: likewise
    """

    def __init__(self, lab: lab_module.Lab, host: str, node: str = "") -> None:
        with (lab.folder / f"legacy-{host}.err").open("ab") as errors:
            self.popen = subprocess.Popen(
                # -P: nothing of this tree can be imported there.
                [
                    sys.executable, "-P", str(_PEER), "--url", lab.rabbit,
                    "--host", host, "--node", node or host,
                    "--interval", str(lab_module.REPORT_INTERVAL),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=lab.folder,
            )  # fmt: skip
        started = self._line()
        self.service: dict[str, Any] = started["service"]
        self.node: dict[str, Any] = started["node"]

    def ask(self, method: str, version: str = "1.0", **args: Any) -> dict[str, Any]:
        """Send a message; return ``answer``, or ``error`` and ``message``."""
        assert self.popen.stdin is not None
        print(json.dumps([method, version, args]), file=self.popen.stdin, flush=True)
        return self._line()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.communicate()

    def _line(self) -> dict[str, Any]:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, "the legacy peer ended"
        found: dict[str, Any] = json.loads(line)
        return found
