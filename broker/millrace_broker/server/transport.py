"""The transport between a client's connection and its socket: bytes received and sent, plain or by TLS.

Only transports use a client's socket. They do not depend on requests, answers or the client's identity.

TLS runs in memory (`ssl.MemoryBIO`): ciphertext is received and sent like plain bytes, in pieces of any size.
Records are read from their file, encrypted and sent a piece at a time. Only `PlainTransport` sends a file to
a socket directly.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import ssl
import termios
from typing import Protocol

from millrace.records.file_slice import FileSlice
from millrace.security.principals import Subject

SEAL_BYTES = 256 << 10
"""Number of bytes that are encrypted at once. The next piece is encrypted when the last
ciphertext was sent."""
MAX_OWN_BYTES = 64 << 10
"""Most unsent bytes of TLS itself. A client may request many such bytes (KeyUpdate) and receive none."""
_NOTHING = memoryview(b"")
_REASONS = {
    "HTTP_REQUEST": "it speaks HTTP",
    "WRONG_VERSION_NUMBER": "it does not use TLS, which this listener requires (protocol SSL)",
    "UNSUPPORTED_PROTOCOL": "it supports no version of TLS that is new enough (tls.min_version)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, which this listener requires",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of this broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept this broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this broker's certificate has expired for it",
}


class TlsFailed(Exception):
    """TLS with a client cannot continue; the text has the reason."""


class Transport(Protocol):
    """A client's bytes in both directions."""

    @property
    def secure(self) -> bool:
        """False until the bytes are protected, if the listener requires TLS."""

    @property
    def unread(self) -> bool:
        """True while the transport holds received, unread bytes. The socket does not report these bytes."""

    @property
    def unsent(self) -> bool:
        """True while accepted bytes wait for the socket."""

    @property
    def held(self) -> int:
        """Bytes of memory that the transport holds, without the connection's own bytes."""

    def fileno(self) -> int: ...

    def receive_into(self, target: memoryview, /) -> int:
        """Receive into a buffer; return the number of bytes, 0 at the end.

        Raise BlockingIOError without data.
        """

    def send(self, data: bytes | memoryview, *, more: bool) -> int:
        """Send bytes; return the number that was accepted. Raise BlockingIOError when the socket accepts
        none.

        With `more` the kernel waits for further bytes instead of sending a short packet.
        """

    def send_file(self, part: FileSlice, count: int) -> int:
        """Send at most `count` bytes of a slice; return the number sent, 0 if the file has been cut."""

    def flush(self) -> None:
        """Send the `unsent` bytes. Raise BlockingIOError when the socket does not accept all of them."""

    def has_more(self) -> bool:
        """Return True if received bytes were not read yet."""

    def close(self) -> None: ...


class PlainTransport:
    """Plain calls of the socket. Nothing is copied: records go from file to socket in the kernel."""

    __slots__ = ("_socket", "receive_into")
    secure = True
    unread = unsent = False
    held = 0

    def __init__(self, client: socket.socket) -> None:
        self._socket = client
        self.receive_into = client.recv_into

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes | memoryview, *, more: bool) -> int:
        return self._socket.send(data, socket.MSG_MORE if more else 0)

    def send_file(self, part: FileSlice, count: int) -> int:
        return os.sendfile(self._socket.fileno(), part.file.fileno(), part.position, count)

    def flush(self) -> None:
        """Do nothing: no bytes are ever unsent."""

    def has_more(self) -> bool:
        return _waiting(self._socket)

    def close(self) -> None:
        self._socket.close()


class TlsTransport:
    """TLS as a server over the socket's calls. Errors of TLS raise `TlsFailed`."""

    __slots__ = (
        *("_incoming", "_outgoing", "_own_bytes", "_sealed", "_socket", "_space", "_tls"),
        *("secure", "unread"),
    )

    def __init__(self, client: socket.socket, context: ssl.SSLContext, space: memoryview) -> None:
        """Begin TLS. All connections of a loop share the buffer `space`.

        Its content is not used after a call.
        """
        self._socket, self._space = client, space
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._sealed = _NOTHING  # ciphertext on its way
        self._own_bytes = 0  # TLS's own bytes since the socket last took everything
        self.secure = self.unread = False

    @property
    def unsent(self) -> bool:
        return bool(self._sealed)

    @property
    def held(self) -> int:
        return len(self._sealed) + self._incoming.pending

    @property
    def subject(self) -> Subject | None:
        """Subject of the client's verified certificate; None when the client sent no certificate."""
        certificate = self._tls.getpeercert()
        return certificate["subject"] if certificate else None  # type: ignore[return-value]  # never a text

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive_into(self, target: memoryview, /) -> int:
        if not self.unread:
            # Read no more than fits: the socket would not report the remaining bytes.
            count = self._socket.recv_into(self._space, min(len(self._space), len(target)))
            if count == 0:
                return 0
            self._incoming.write(self._space[:count])
        try:
            if not self.secure:
                self._tls.do_handshake()
                self.secure = True
            return self._decrypt(target)
        except ssl.SSLWantReadError:
            self.unread = False
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise TlsFailed(_reason(error)) from None
        finally:
            self._send_own()

    def _decrypt(self, target: memoryview) -> int:
        """Fill the buffer from the whole records received."""
        filled = 0
        try:
            while filled < len(target):
                count = self._tls.read(len(target) - filled, target[filled:])
                if not count:  # the client has ended TLS
                    self.unread = filled > 0
                    return filled
                filled += int(count)
        except ssl.SSLWantReadError:
            if not filled:
                raise
            self.unread = False
            return filled
        self.unread = self._tls.pending() > 0 or self._incoming.pending > 0
        return filled

    def _send_own(self) -> None:
        """Send the bytes of TLS itself: handshakes and alerts."""
        if self._outgoing.pending:
            self._own_bytes = self._outgoing.pending + (self._own_bytes if self._sealed else 0)
            if self._own_bytes > MAX_OWN_BYTES:
                raise TlsFailed("it does not receive the bytes of TLS itself")
            self._sealed = memoryview(bytes(self._sealed) + self._outgoing.read())
            with contextlib.suppress(OSError):  # the next read notices a disconnected client
                self.flush()

    def send(self, data: bytes | memoryview, *, more: bool) -> int:
        self.flush()
        piece = memoryview(data)[:SEAL_BYTES]
        self._seal(piece, more=more or len(piece) < len(data))
        return len(piece)

    def send_file(self, part: FileSlice, count: int) -> int:
        self.flush()
        piece = self._space[: min(count, SEAL_BYTES)]
        count = os.preadv(part.file.fileno(), [piece], part.position)
        if count:
            self._seal(piece[:count], more=False)
        return count

    def _seal(self, piece: memoryview, *, more: bool) -> None:
        self._tls.write(piece)
        self._sealed = memoryview(self._outgoing.read())
        with contextlib.suppress(BlockingIOError):
            self._flush(socket.MSG_MORE if more else 0)

    def flush(self) -> None:
        if self._sealed:
            self._flush(0)

    def _flush(self, flags: int) -> None:
        sent = self._socket.send(self._sealed, flags)
        self._sealed = self._sealed[sent:] if sent < len(self._sealed) else _NOTHING
        if self._sealed:
            raise BlockingIOError

    def has_more(self) -> bool:
        return self.unread or _waiting(self._socket)

    def close(self) -> None:
        """Close the socket; end TLS first if that can be sent at once."""
        if self.secure and not self._sealed:
            with contextlib.suppress(OSError):
                self._tls.unwrap()
            with contextlib.suppress(OSError):
                self._socket.send(self._outgoing.read())
        self._socket.close()


def _waiting(client: socket.socket) -> bool:
    count = bytearray(4)
    fcntl.ioctl(client, termios.FIONREAD, count)
    return any(count)


def _reason(error: ssl.SSLError) -> str:
    """Return the reason for which TLS with a client failed, in words for the operator."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return _REASONS.get(error.reason, f"TLS with it failed: {error.reason or error}")
