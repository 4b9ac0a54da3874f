"""What lies between a client's connection and its socket: how bytes are received and sent.

The only users of a client's socket. Know neither requests nor answers.
"""

from __future__ import annotations

import fcntl
import os
import socket
import termios

from millrace.records.file_slice import FileSlice


class PlainTransport:
    """The socket's own calls: nothing is copied, records go from file to socket in the kernel."""

    __slots__ = ("_socket", "receive_into")

    def __init__(self, client: socket.socket) -> None:
        self._socket = client
        self.receive_into = client.recv_into
        """Receives into a buffer and says how much; 0 at the end, BlockingIOError when nothing has come."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes | memoryview, *, more: bool) -> int:
        """Take bytes as far as the socket does; BlockingIOError when it takes none.

        With `more` to follow, the kernel waits for that rather than send a short packet.
        """
        return self._socket.send(data, socket.MSG_MORE if more else 0)

    def send_file(self, part: FileSlice, count: int) -> int:
        """Take so many bytes of a slice at most; 0 when its file is shorter than it was."""
        return os.sendfile(self._socket.fileno(), part.file.fileno(), part.position, count)

    def has_more(self) -> bool:
        """True when bytes have come that nobody has received yet."""
        waiting = bytearray(4)
        fcntl.ioctl(self._socket, termios.FIONREAD, waiting)
        return any(waiting)

    def close(self) -> None:
        self._socket.close()
