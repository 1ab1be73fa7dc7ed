"""python -m tests.bench [NAME]: runs a bench, or lists them.

Exit code 0: all bounds hold; 1: one doesn't; 2: wrong usage; 3: it could not be run.
"""

import argparse
from collections.abc import Sequence
import pathlib
import signal
import sys

from musterbook import errors
from musterbook.servicegroup import url as group_url
from tests import process
from tests.bench import catalogue
from tests.bench import options


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.name is None:
        for name, listed in catalogue.BENCHES.items():
            print(f"{name:12} {(listed.__doc__ or '').splitlines()[0]}")
        return 0
    bench = catalogue.BENCHES.get(arguments.name)
    if bench is None:
        known = ", ".join(catalogue.BENCHES)
        return _refuse(f"there is no bench {arguments.name!r}; there are {known}")
    try:
        chosen = _options(arguments)
    except ValueError as exc:
        return _refuse(str(exc))
    return _run(bench, chosen, arguments.json)


def _refuse(reason: str) -> int:
    print(reason, file=sys.stderr)
    return 2


def _run(
    bench: catalogue.Bench, chosen: options.Options, path: pathlib.Path | None
) -> int:
    # As Ctrl-C: what was started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    process.raise_file_limit()
    try:
        report = bench.run(chosen)
    except (options.BenchFailed, process.ServerMissing, process.ServerFailed) as exc:
        print(exc, file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    report.show()
    if path is not None:
        report.write(path)
    return 0 if report.holds else 1


def _parser() -> argparse.ArgumentParser:
    default = options.Options()
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Run a bench on servers of its own; without a name, list them.",
    )
    parser.add_argument("name", nargs="?", help="of the bench")
    parser.add_argument("--json", type=pathlib.Path, help="file for the figures")
    parser.add_argument(
        "--seconds", type=float, default=default.seconds, help="of one window"
    )
    parser.add_argument(
        "--windows", type=int, default=default.windows, help="of each cell"
    )
    parser.add_argument(
        "--callers",
        default=",".join(map(str, default.callers)),
        help="numbers of caller threads, as 1,8,32",
    )
    parser.add_argument("--nodes", type=int, default=default.nodes, help="in the table")
    parser.add_argument(
        "--calls-for-memory",
        type=int,
        default=default.calls_for_memory,
        help="after which memory is read",
    )
    parser.add_argument(
        "--backend", help="liveness: URL of a group backend, for a Redis of its own"
    )
    parser.add_argument(
        "--hosts",
        type=int,
        default=default.hosts,
        help="liveness: in the largest group",
    )
    for name, what in (
        ("schedulers", "numbers of threads that claim"),
        ("fleets", "numbers of nodes that they claim from"),
    ):
        parser.add_argument(
            f"--{name}",
            default=",".join(map(str, getattr(default, name))),
            help=f"claims: {what}",
        )
    return parser


def _options(arguments: argparse.Namespace) -> options.Options:
    """Return the options; ValueError with a line that says what is wrong."""
    callers, schedulers, fleets = (
        _numbers(arguments, name) for name in ("callers", "schedulers", "fleets")
    )
    if min(callers) < 1 or arguments.windows < 1 or arguments.seconds <= 0:
        raise ValueError("--callers, --windows and --seconds must be above 0")
    if arguments.nodes < max(callers):
        raise ValueError("--nodes must be at least the largest number of callers")
    if arguments.hosts < 1:
        raise ValueError("--hosts must be above 0")
    if arguments.backend is not None:
        try:
            group_url.parse(arguments.backend, "--backend")
        except errors.ConfigurationError as exc:
            raise ValueError(exc.message) from None
    return options.Options(
        seconds=arguments.seconds,
        windows=arguments.windows,
        callers=callers,
        nodes=arguments.nodes,
        calls_for_memory=arguments.calls_for_memory,
        backend=arguments.backend,
        hosts=arguments.hosts,
        schedulers=schedulers,
        fleets=fleets,
    )


def _numbers(arguments: argparse.Namespace, name: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in getattr(arguments, name).split(","))
    except ValueError:
        raise ValueError(f"--{name} takes numbers with commas between") from None
    if min(found) < 1:
        raise ValueError(f"--{name} must be above 0")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
