"""An address that clients connect to, by its name: where it is bound, what they are told, what they speak."""

from __future__ import annotations

import socket

from millrace.config import ListenerConfig, parse_address
from millrace.errors import MillraceError
from millrace.security.rights import ANONYMOUS, Access
from millrace.server.transport import PlainTransport

BACKLOG = 4096


class Listener:
    """One bound address. Clients are refused until `listen`, and ask another broker."""

    def __init__(self, name: str, config: ListenerConfig) -> None:
        self.name = name
        host, port = parse_address(config.listen, f"listen of {name}")
        self.socket = _bind(host, port)
        self.host, self.port = host, self.socket.getsockname()[1]
        told_host, told_port = parse_address(config.advertised or config.listen, f"advertised of {name}")
        self.advertised = (told_host, told_port or self.port)
        """Where clients are told to connect."""

    def listen(self) -> None:
        try:
            self.socket.listen(BACKLOG)
        except OSError as error:
            raise _taken(self.host, self.port, error) from error

    def transport(self, client: socket.socket) -> PlainTransport:
        """What a new client's bytes go through."""
        return PlainTransport(client)

    def access(self, host: str) -> Access:
        """What a new client may do."""
        return Access(None, ANONYMOUS, host)


def _bind(host: str, port: int) -> socket.socket:
    """A socket that has the address, and does not listen yet."""
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
