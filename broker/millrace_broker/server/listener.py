"""A listener: one bound address, its advertised address, and its clients' transport, login and rights."""

from __future__ import annotations

import socket
from collections import Counter

from millrace.config import DEFAULT_LISTENER, ListenerConfig, parse_address
from millrace.errors import MillraceError
from millrace.security.certificates import ServerCertificates
from millrace.security.principals import distinguished_name
from millrace_broker.security.login import Login, Mechanisms
from millrace_broker.security.rights import ANONYMOUS, UNAUTHENTICATED, Access, Guard
from millrace_broker.server.transport import SEAL_BYTES, PlainTransport, TlsFailed, TlsTransport, Transport

BACKLOG = 4096


class Listener:
    """One bound address. Until `listen` is called, clients are refused and try another broker."""

    def __init__(
        self, name: str, config: ListenerConfig, certificates: ServerCertificates | None = None
    ) -> None:
        self.name = name
        self.mechanisms: Mechanisms = {}
        """Mechanisms by which clients log in, if the listener requires a login. If empty, no client can log
        in."""
        self.login_lifetime_s: float | None = None
        """Lifetime of a login in seconds; None: as long as its connection."""
        self.guard: Guard | None = None
        """The guard, which decides the rights of each client; None: every client may do everything."""
        self.takes_brokers = False
        """True if other brokers connect to this listener to copy."""
        self.failed_logins: Counter[str] = Counter()
        """Failed logins by mechanism."""
        self._config, self.certificates = config, certificates
        self._space = memoryview(bytearray(SEAL_BYTES if config.uses_tls else 0))
        place = "" if name == DEFAULT_LISTENER else f"listeners.{name}."
        host, port = parse_address(config.listen, f"{place}listen")
        self.socket = _bind(host, port)
        self.host, self.port = host, self.socket.getsockname()[1]
        advertised_host, advertised_port = parse_address(
            config.advertised or config.listen, f"{place}advertised"
        )
        self.advertised = (advertised_host, advertised_port or self.port)
        """Advertised address, to which clients connect."""

    @property
    def is_open(self) -> bool:
        """True when other machines reach the listener without TLS and without a login."""
        here = self.host.startswith("127.") or self.host in ("::1", "localhost")
        return not (here or self._config.uses_tls or self._config.uses_sasl)

    @property
    def certificate_expires(self) -> float | None:
        """Expiry of the certificate that new clients see, in seconds since 1970; None without TLS."""
        with_tls = self.certificates is not None and self._config.uses_tls
        return self.certificates.expires if with_tls and self.certificates is not None else None

    def listen(self) -> None:
        try:
            self.socket.listen(BACKLOG)
        except OSError as error:
            raise _taken(self.host, self.port, error) from error

    def transport(self, client: socket.socket) -> Transport:
        """Return the transport of a new client's bytes."""
        if not self._config.uses_tls:
            return PlainTransport(client)
        assert self.certificates is not None, "a listener with TLS is made with certificates"
        context = self.certificates.context(self._config.client_certificates)
        return TlsTransport(client, context, self._space)

    def access(self, transport: Transport, host: str) -> Access:
        """Return a client's access: UNAUTHENTICATED until the client has logged in.

        Raise TlsFailed when no principal rule matches its certificate.
        """
        if not transport.secure or self._config.uses_sasl:
            return UNAUTHENTICATED
        subject = transport.subject if isinstance(transport, TlsTransport) else None
        if subject is None or self.certificates is None:
            return self.access_of(ANONYMOUS, host)
        name = self.certificates.principal(subject)
        if name is None or name == ANONYMOUS:  # the name of clients without a certificate
            raise TlsFailed(
                f"no principal rule matches its certificate, {distinguished_name(subject)[:200]!r}"
            )
        return self.access_of(name, host)

    def access_of(self, principal: str, host: str) -> Access:
        return Access(None, principal, host) if self.guard is None else self.guard.access(principal, host)

    def login(self) -> Login | None:
        """Return the login of a new client; None if the client need not log in."""
        if not self._config.uses_sasl:
            return None
        return Login(self.mechanisms, self.login_lifetime_s, failures=self.failed_logins)


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the address and does not listen yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _taken(host, port, error) from error
    bound.setblocking(False)
    return bound


def _taken(host: str, port: int, error: OSError) -> MillraceError:
    return MillraceError(
        f"cannot listen on {host}:{port}: {error.strerror}; stop what uses it or set another `listen`"
    )
