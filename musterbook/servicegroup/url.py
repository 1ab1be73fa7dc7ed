"""The group URL: what an operator may write, and what tooz is given for it.

tooz takes a URL apart without decoding it and without checking it (9.1): a
percent-encoded password arrives encoded, ``redis://h/2`` is database 0, and a
misspelt port fails minutes later. So it is read once, here.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import ipaddress
import math
import os
import re
import types
import urllib.parse

from musterbook import errors

DEFAULT_MEMBER_TIMEOUT = 10.0
# Seconds one network operation of a client may take. Below the time limit of a
# driver's call (3 s), so that a silent server ends the call and not the thread.
SOCKET_TIMEOUT = 2

_HOST = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_NO_GROUPS = frozenset({"mysql", "postgresql"})


@dataclasses.dataclass(frozen=True)
class _Scheme:
    """What a scheme allows.

    :ivar tooz: name of tooz's driver
    :ivar login: the driver can use a user and a password
    :ivar member_option: tooz's name of the member timeout
    :ivar whole: the driver takes whole seconds only
    :ivar fixed: options that are set unless the URL has them
    :ivar many: several hosts, separated by commas
    """

    tooz: str
    login: bool = False
    member_option: str = "membership_timeout"
    whole: bool = True
    fixed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    many: bool = False


# For redis, memcached and etcd, 'timeout' alone would set the member timeout and
# the socket's: a long one would then let a silent server block each call as long.
_REDIS = {
    "socket_timeout": str(SOCKET_TIMEOUT),
    "socket_connect_timeout": str(SOCKET_TIMEOUT),
}
_SOCKET = {"timeout": str(SOCKET_TIMEOUT)}
_KAZOO = _Scheme("zookeeper", login=True, member_option="timeout", many=True)
_SCHEMES = {
    "etcd3+http": _Scheme("etcd3+http", fixed=_SOCKET),
    "etcd3+https": _Scheme("etcd3+https", fixed=_SOCKET),
    "file": _Scheme("file", member_option="timeout"),
    "kazoo": _KAZOO,
    "memcached": _Scheme("memcached", fixed=_SOCKET),
    "redis": _Scheme("redis", login=True, whole=False, fixed=_REDIS),
    "rediss": _Scheme("redis", login=True, whole=False, fixed={**_REDIS, "ssl": "1"}),
    "zookeeper": _KAZOO,
}


@dataclasses.dataclass(frozen=True)
class Target:
    """The parts of a URL as tooz's drivers look at them, decoded.

    Stands in for the SplitResult that tooz makes itself; has what its drivers
    use. ``netloc`` holds hosts and ports only (ZooKeeper's driver hands it on).
    """

    scheme: str
    netloc: str
    hostname: str | None
    port: int | None
    path: str
    username: str | None
    password: str | None = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class GroupURL:
    """A group URL that was read and found usable.

    :ivar scheme: as written, for instance ``kazoo``
    :ivar url: normalised, with every timeout spelled out; holds the password
    :ivar member_timeout: seconds of silence after which a member is dropped
    :ivar label: the backend's name for logs and errors, without the password
    :ivar target: the URL taken apart and decoded
    :ivar options: tooz's options, each with its values
    """

    scheme: str
    url: str = dataclasses.field(repr=False)
    member_timeout: float
    label: str
    target: Target = dataclasses.field(repr=False)
    options: Mapping[str, Sequence[str]] = dataclasses.field(repr=False)

    def scrub(self, text: str) -> str:
        """Return the text as one line without the password."""
        line = errors.one_line(text)
        password = self.target.password
        if password:
            for form in (password, urllib.parse.quote(password, safe="")):
                line = line.replace(form, "***")
        return line


class _Refused(Exception):
    """Why a URL can't be used; never holds a part of it that may be secret."""


def parse(url: str | None, option: str = "servicegroup_tooz_url") -> GroupURL:
    """Read a group URL.

    :param url: what the operator wrote
    :param option: the option that it stands in, named in the error
    :raises ConfigurationError: in one line, without the URL's password
    """
    try:
        return _parse(url)
    except _Refused as exc:
        raise errors.ConfigurationError(option=option, reason=str(exc)) from None


def file_url(
    directory: str | os.PathLike[str], member_timeout: float = DEFAULT_MEMBER_TIMEOUT
) -> str:
    """Return the URL of a file group in an absolute directory, whatever its name."""
    path = urllib.parse.quote(os.fspath(directory))
    return f"file://{path}?timeout={member_timeout:g}"


def _parse(url: str | None) -> GroupURL:
    text = (url or "").strip()
    if not text:
        raise _Refused("is empty; for instance redis://127.0.0.1:6379?timeout=10")
    if any(c.isspace() or not c.isprintable() for c in text):
        raise _Refused("has a space or control character inside (write %20)")
    name = _scheme_name(text)
    scheme = _SCHEMES[name]
    parts = _split(text)
    options = urllib.parse.parse_qs(parts.query, keep_blank_values=True)
    timeout = _member_timeout(options, scheme)
    target = _target(parts, scheme)
    settled = _options(options, scheme, timeout)
    return GroupURL(
        scheme=name,
        url=_unparse(target, settled),
        member_timeout=timeout,
        label=f"{name}://{target.netloc}{target.path}",
        target=target,
        options=settled,
    )


def _target(parts: urllib.parse.SplitResult, scheme: _Scheme) -> Target:
    user, password, location = _login(parts, scheme)
    if scheme.tooz == "file":
        return _directory(parts)
    if scheme.tooz == "redis" and not location and parts.path not in {"", "/"}:
        return Target("redis", "", None, None, _path(parts), user, password)
    return _network(parts, scheme, location, user, password)


def _options(
    given: Mapping[str, Sequence[str]], scheme: _Scheme, timeout: float
) -> Mapping[str, Sequence[str]]:
    if scheme.tooz == "redis" and not all(v.isdigit() for v in given.get("db", ())):
        raise _Refused("db must be the number of a redis database")
    options: dict[str, Sequence[str]] = {k: [v] for k, v in scheme.fixed.items()}
    options.update(given)
    if scheme.member_option == "membership_timeout":
        options["timeout"] = [str(SOCKET_TIMEOUT)]
    options.pop("membership_timeout", None)
    options[scheme.member_option] = [f"{timeout:g}"]
    return types.MappingProxyType(options)


def _scheme_name(text: str) -> str:
    name, mark, _ = text.partition("://")
    if not mark or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", name):
        raise _Refused("is not a URL: it has to begin with a scheme and ://")
    name = name.lower()
    if name.partition("+")[0] in _NO_GROUPS:
        raise _Refused(
            f"tooz has no groups on {name}, so it can't show who lives; use one of "
            f"{', '.join(sorted(_SCHEMES))}"
        )
    if name not in _SCHEMES:
        raise _Refused(
            f"unknown scheme {name}; known are {', '.join(sorted(_SCHEMES))}"
        )
    return name


def _split(text: str) -> urllib.parse.SplitResult:
    try:
        parts = urllib.parse.urlsplit(text)
    except ValueError:
        raise _Refused(
            "can't be taken apart; special characters of a password have to be "
            "percent-encoded"
        ) from None
    if parts.fragment or text.endswith("#"):
        raise _Refused("has a '#' (write %23)")
    return parts


def _member_timeout(options: Mapping[str, Sequence[str]], scheme: _Scheme) -> float:
    for name in ("membership_timeout", "timeout"):
        if name in options:
            text = options[name][-1]
            break
    else:
        return DEFAULT_MEMBER_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds <= 0:
        raise _Refused(f"{name} must be a number of seconds above 0")
    if scheme.whole and seconds != int(seconds):
        raise _Refused(f"{name} must be a whole number of seconds with {scheme.tooz}")
    return seconds


def _login(
    parts: urllib.parse.SplitResult, scheme: _Scheme
) -> tuple[str | None, str | None, str]:
    """Return user and password, decoded, and what follows them."""
    login, mark, location = parts.netloc.rpartition("@")
    if not mark:
        return None, None, location
    if not scheme.login:
        raise _Refused(f"tooz's driver for {scheme.tooz} can't log in: leave out user@")
    user, colon, password = login.partition(":")
    return (
        urllib.parse.unquote(user) or None,
        urllib.parse.unquote(password) if colon else None,
        location,
    )


def _directory(parts: urllib.parse.SplitResult) -> Target:
    path = _path(parts)
    if parts.netloc or not path.strip("/"):
        raise _Refused(
            "needs the absolute path of a directory: file:///var/lib/musterbook/groups"
        )
    return Target("file", "", None, None, path, None, None)


def _path(parts: urllib.parse.SplitResult) -> str:
    path = urllib.parse.unquote(parts.path)
    if "\0" in path:
        raise _Refused("has a path with a zero byte")
    return path


def _network(
    parts: urllib.parse.SplitResult,
    scheme: _Scheme,
    location: str,
    user: str | None,
    password: str | None,
) -> Target:
    if parts.path not in {"", "/"}:
        # The path isn't shown: it may be the rest of an unencoded password.
        raise _Refused(
            "has a path after the host; a redis database is given as ?db=2, a "
            "namespace as ?namespace=name, and a '/' in a password as %2F"
        )
    addresses = location.split(",") if scheme.many else [location]
    pairs = [_address(address) for address in addresses]
    if len(pairs) == 1 and not pairs[0][0]:
        pairs = [("localhost", pairs[0][1])]
    if not all(host for host, _ in pairs):
        raise _Refused("has an empty host between commas")
    host, port = pairs[0]
    netloc = ",".join(_join(h, p) for h, p in pairs)
    return Target(scheme.tooz, netloc, host, port, "", user, password)


def _address(text: str) -> tuple[str, int | None]:
    """Return host (without brackets, may be empty) and port of one address."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise _Refused("has no IPv6 address between [ and ]") from None
        if rest and not rest.startswith(":"):
            raise _Refused("has something other than :port after the ]")
        return host, _port(rest[1:])
    host, _, port = text.partition(":")
    if host and not _HOST.fullmatch(host):
        raise _Refused(
            "has a host name that can't be one; special characters of a password "
            "have to be percent-encoded"
        )
    return host, _port(port)


def _port(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise _Refused("has a port that is not a number from 1 to 65535")
    return int(text)


def _join(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def _unparse(target: Target, options: Mapping[str, Sequence[str]]) -> str:
    login = ""
    if target.username is not None or target.password is not None:
        login = urllib.parse.quote(target.username or "", safe="")
        if target.password is not None:
            login += ":" + urllib.parse.quote(target.password, safe="")
        login += "@"
    path = urllib.parse.quote(target.path)
    query = urllib.parse.urlencode(options, doseq=True)
    return f"{target.scheme}://{login}{target.netloc}{path}?{query}"
