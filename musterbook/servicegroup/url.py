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

# memcached takes a longer time for a date, which is long past.
_MAX_MEMCACHED_TIMEOUT = 30 * 24 * 3600

_HOST = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_NO_GROUPS = frozenset({"mysql", "postgresql"})
#: Schemes of tooz, now or once, that are something else here.
_OTHERS = {
    "consul": "tooz no longer has it",
    "etcd": "write etcd3+http:// (the interface of etcd 2 is gone)",
    "etcd3": "write etcd3+http:// (tooz no longer speaks gRPC with etcd)",
    "ipc": "tooz has no groups on it; on one machine use file://",
    "kubernetes": "tooz has no groups on it",
    "zake": "it is ZooKeeper's stand-in for tests; use kazoo:// or file://",
}
_TIMEOUTS = ("membership_timeout", "timeout")
#: Options that may come more than once: they are lists of hosts.
_LISTS = frozenset({"hosts", "sentinel_fallback"})
#: Options that are a number of seconds besides the member timeout.
_OTHER_SECONDS = frozenset(
    {"health_check_interval", "socket_connect_timeout", "socket_timeout"}
)
#: Options that name a file, which the client reads when it connects.
FILES = frozenset(
    {
        *("ca", "ca_cert", "cert_cert", "cert_key", "certfile", "keyfile"),
        *("ssl_ca_certs", "ssl_cert", "ssl_certfile", "ssl_key", "ssl_keyfile"),
    }
)
_SECRETS = ("keyfile_password", "sentinel_password", "ssl_key_password")


@dataclasses.dataclass(frozen=True)
class _Scheme:
    """What a scheme allows.

    :ivar tooz: name of tooz's driver
    :ivar login: the driver can use a user and a password
    :ivar member_option: tooz's name of the member timeout
    :ivar whole: the driver takes whole seconds only
    :ivar fixed: options that are set unless the URL has them
    :ivar many: several hosts, separated by commas
    :ivar known: options besides the timeouts; others would be ignored without a word
    :ivar several: how else several hosts are written
    """

    tooz: str
    login: bool = False
    member_option: str = "membership_timeout"
    whole: bool = True
    fixed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    many: bool = False
    known: frozenset[str] = frozenset()
    several: str = "leave it to a proxy or a name that leads to one of them"


# For redis, memcached and etcd, 'timeout' alone would set the member timeout and
# the socket's: a long one would then let a silent server block each call as long.
_REDIS = {
    "socket_timeout": str(SOCKET_TIMEOUT),
    "socket_connect_timeout": str(SOCKET_TIMEOUT),
}
_SOCKET = {"timeout": str(SOCKET_TIMEOUT)}
_REDIS_OPTIONS = frozenset(
    {
        *("db", "namespace", "health_check_interval", "socket_keepalive"),
        *("socket_connect_timeout", "socket_timeout"),
        *("ssl", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"),
        *("sentinel", "sentinel_fallback", "sentinel_password", "sentinel_ssl"),
        "sentinel_username",
    }
)
_KAZOO_OPTIONS = frozenset(
    {
        *("ca", "certfile", "hosts", "keyfile", "keyfile_password", "namespace"),
        *("randomize_hosts", "use_ssl", "verify_certs"),
    }
)
_MEMCACHED_OPTIONS = frozenset(
    {
        *("ca_cert", "ssl_cert", "ssl_check_hostname", "ssl_ciphers", "ssl_key"),
        *("ssl_key_password", "use_ssl"),
    }
)
_SENTINEL = "those of a Sentinel as ?sentinel=master&sentinel_fallback=host:port"
_REDIS_SCHEME = _Scheme(
    "redis",
    login=True,
    whole=False,
    fixed=_REDIS,
    known=_REDIS_OPTIONS,
    several=_SENTINEL,
)
_KAZOO = _Scheme(
    "zookeeper", login=True, member_option="timeout", many=True, known=_KAZOO_OPTIONS
)
_ETCD = _Scheme(
    "etcd3+http",
    fixed=_SOCKET,
    known=frozenset({"api_version", "ca_cert", "cert_cert", "cert_key"}),
)
_SCHEMES = {
    "etcd3+http": _ETCD,
    "etcd3+https": dataclasses.replace(_ETCD, tooz="etcd3+https"),
    "file": _Scheme("file", member_option="timeout"),
    "kazoo": _KAZOO,
    "memcached": _Scheme("memcached", fixed=_SOCKET, known=_MEMCACHED_OPTIONS),
    "redis": _REDIS_SCHEME,
    "rediss": dataclasses.replace(_REDIS_SCHEME, fixed={**_REDIS, "ssl": "1"}),
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
        """Return the text as one line without the passwords."""
        line = errors.one_line(text)
        secrets = [self.target.password or ""]
        for name in _SECRETS:
            secrets.extend(self.options.get(name, ()))
        for secret in filter(None, secrets):
            for form in (secret, urllib.parse.quote(secret, safe="")):
                line = line.replace(form, "***")
        return line


class _Refused(Exception):
    """Why a URL can't be used; never holds a part of it that may be secret."""


def parse(
    url: str | None,
    option: str = "servicegroup_tooz_url",
    member_timeout: float | None = None,
) -> GroupURL:
    """Read a group URL.

    :param url: what the operator wrote
    :param option: the option that it stands in, named in the error
    :param member_timeout: where the URL says nothing of it
    :raises ConfigurationError: in one line, without the URL's password
    """
    try:
        return _parse(url, member_timeout or DEFAULT_MEMBER_TIMEOUT)
    except _Refused as exc:
        raise errors.ConfigurationError(option=option, reason=str(exc)) from None


def file_url(
    directory: str | os.PathLike[str], member_timeout: float = DEFAULT_MEMBER_TIMEOUT
) -> str:
    """Return the URL of a file group in an absolute directory, whatever its name."""
    path = urllib.parse.quote(os.fspath(directory))
    return f"file://{path}?timeout={member_timeout:g}"


def _parse(url: str | None, member_timeout: float) -> GroupURL:
    text = (url or "").strip()
    if not text:
        raise _Refused("is empty; for instance redis://127.0.0.1:6379?timeout=10")
    if any(c.isspace() or not c.isprintable() for c in text):
        raise _Refused("has a space or control character inside (write %20)")
    name = _scheme_name(text)
    scheme = _SCHEMES[name]
    parts = _split(text)
    options = urllib.parse.parse_qs(parts.query, keep_blank_values=True)
    _check_options(options, name, scheme)
    timeout = _member_timeout(options, scheme, member_timeout)
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


def _check_options(
    given: Mapping[str, Sequence[str]], name: str, scheme: _Scheme
) -> None:
    """Refuse what tooz would ignore, which is what it does with a misspelt option."""
    known = sorted({*scheme.known, *_TIMEOUTS})
    for option, values in given.items():
        if option not in known:
            # What isn't like an option may be the rest of an unencoded password.
            shown = f" {option}" if re.fullmatch(r"[a-z_]{1,40}", option) else ""
            raise _Refused(
                f"has an unknown option{shown}; {name} has {', '.join(known)}"
            )
        if len(values) > 1 and option not in _LISTS:
            raise _Refused(f"has the option {option} twice")
        if not all(values) and option not in _TIMEOUTS:
            raise _Refused(f"has no value for {option}")
        if option in _OTHER_SECONDS:
            _seconds(option, values[0])
        if option == "sentinel_fallback":
            _check_sentinels(values)


def _check_sentinels(values: Sequence[str]) -> None:
    for value in values:
        host, port = _address(value)
        if not host or port is None:
            raise _Refused("sentinel_fallback must be host:port")


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
    if name in _OTHERS:
        raise _Refused(f"{name}:// can't be used: {_OTHERS[name]}")
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


def _member_timeout(
    options: Mapping[str, Sequence[str]], scheme: _Scheme, default: float
) -> float:
    name = next((name for name in _TIMEOUTS if name in options), None)
    if name is None:
        return default
    for given in _TIMEOUTS:  # also the one that doesn't count
        if given in options:
            _seconds(given, options[given][-1])
    seconds = _seconds(name, options[name][-1])
    if scheme.whole and seconds != int(seconds):
        raise _Refused(f"{name} must be a whole number of seconds with {scheme.tooz}")
    if scheme.tooz == "memcached" and seconds > _MAX_MEMCACHED_TIMEOUT:
        raise _Refused(
            f"{name} must be at most {_MAX_MEMCACHED_TIMEOUT} s (30 days): memcached "
            "takes more for a date"
        )
    return seconds


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds <= 0:
        raise _Refused(f"{name} must be a number of seconds above 0")
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
    addresses = location.split(",")
    if len(addresses) > 1 and not scheme.many:
        raise _Refused(f"has several hosts; {scheme.tooz} takes one: {scheme.several}")
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
