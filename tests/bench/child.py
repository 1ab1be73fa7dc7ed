"""Processes of a bench: questions and answers are lines of JSON on their pipes."""

from collections.abc import Callable
from collections.abc import Mapping
import json
import os
import pathlib
import select
import subprocess
import sys
import time
from typing import Any

from tests.bench.options import BenchFailed

ROOT = pathlib.Path(__file__).parents[2]
_START_SECONDS = 120.0
_STOP_SECONDS = 15.0
Handler = Callable[..., Any]


class Child:
    """A Python process of ours: a module with arguments. One thread uses it.

    It ends with the bench, however that ends (PR_SET_PDEATHSIG). Ctrl-C at the
    terminal reaches the bench alone, which then ends its processes in order.

    :param folder: for what it writes to stderr
    :param module: to run, and its arguments
    """

    def __init__(self, folder: pathlib.Path, name: str, *module: str) -> None:
        self.name = name
        self._errors = folder / f"{name}.err"
        self._rest = b""
        with self._errors.open("ab") as errors:
            self._popen = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", *module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                start_new_session=True,
            )
        self.pid = self._popen.pid

    def ask(self, do: str, limit: float = _START_SECONDS, **arguments: Any) -> Any:
        """Return the answer to a question that a handler of serve() answers.

        :param do: the handler's name
        :param limit: seconds the answer may take
        :raises BenchFailed: no answer, or the handler's error
        """
        assert self._popen.stdin is not None
        line = json.dumps({"do": do, **arguments})
        try:
            self._popen.stdin.write(line.encode() + b"\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            raise self._failed(f"ended before {do}") from None
        answer = json.loads(self._read_line(do, limit))
        if "error" in answer:
            raise self._failed(f"{do}: {answer['error']}")
        return answer["result"]

    def wait(self, seconds: float) -> None:
        """Return when it has ended well.

        :raises BenchFailed: it has not
        """
        try:
            code = self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self._failed(f"still runs after {seconds:g} s") from None
        if code:
            raise self._failed(f"ended with {code}")

    def check(self) -> None:
        """Return if it runs; BenchFailed."""
        if self._popen.poll() is not None:
            raise self._failed(f"ended with {self._popen.returncode}")

    def close(self) -> None:
        """End it: politely, then at once."""
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            pipe.close()
        if self._popen.poll() is None:
            self._popen.terminate()
        try:
            self._popen.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait(_STOP_SECONDS)

    def _read_line(self, do: str, seconds: float) -> bytes:
        assert self._popen.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._popen.stdout], [], [], left)[0]:
                raise self._failed(f"{do}: no answer in {seconds:g} s")
            read = os.read(self._popen.stdout.fileno(), 65_536)
            if not read:
                raise self._failed(f"ended during {do}")
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _failed(self, what: str) -> BenchFailed:
        said = self._errors.read_text(errors="replace").splitlines()[-8:]
        return BenchFailed("\n".join([f"{self.name} {what}", *said]))


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer the bench's questions until it closes the pipe (in the child)."""
    for line in sys.stdin:
        request = json.loads(line)
        handler = handlers[request.pop("do")]
        try:
            answer = {"result": handler(**request)}
        except Exception as exc:  # noqa: BLE001  # the bench ends with it
            answer = {"error": f"{type(exc).__name__}: {exc}"}
        print(json.dumps(answer), flush=True)
