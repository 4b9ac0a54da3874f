"""The broker's sockets: one thread, one epoll loop. Only this package touches them on the server side.

A turn reads every ready connection into one shared buffer, passes the frames to the handlers, lets the broker
write the staged appends, and sends the due answers. The loop does not interpret frames and answers. No
function that is called here may wait: see the docstring of `handlers/table.py`.

No connection can delay another. Reading stops when answers pile up, sending stops after a share of a file per
turn, and a waiting request delays only its own connection. If a client has more ready requests than one turn
serves, the rest is served in the next turn. `admission` decides which clients may connect and counts the
memory that all clients hold.

A bug (any Exception, MemoryError included) while a client is served closes that client's connection, not the
process, and is logged with its traceback. A bug that belongs to no client is only logged, and the next turn
continues with the state that the failed turn left.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Container, Hashable, Sequence

from millrace.config import ClientLimits
from millrace.wire.framing import FrameBuffers, FrameRefused, RequestFramer
from millrace_broker.mailbox import Mailbox
from millrace_broker.security.login import MAX_FRAME_BYTES
from millrace_broker.security.quotas import Kind
from millrace_broker.security.rights import UNAUTHENTICATED
from millrace_broker.server.admission import SPARE, Admission
from millrace_broker.server.connection import ClientConnection
from millrace_broker.server.listener import Listener
from millrace_broker.server.request import (
    LANE_BYTES,
    MAX_MUTE_S,
    REQUEST_BYTES,
    Arrived,
    Request,
    throttle_ms,
)
from millrace_broker.server.statistics import Statistics
from millrace_broker.server.transport import TlsFailed

logger = logging.getLogger("millrace.server")

RECEIVE_BYTES = 1 << 20
"""Size of the shared buffer. It holds all bytes that are read in one turn, unless they must be written in
between."""
MIN_ROOM_BYTES = 128 << 10
"""Smallest free part of the buffer to read into. With less, the requests in the buffer are written first."""
EARLY_SEND_BYTES = 64 << 10
"""Size above which the answers to one read are sent at once. A turn may read every connection first."""
FEW_REQUESTS = 8
"""Number of unanswered requests above which a connection's memory is counted at once, not at the end of the
turn."""
ACCEPTS_PER_TURN = 64
"""Most connections accepted in a turn: a client that connects all the time must not keep other clients
waiting."""
TURN_BYTES = 16 << 20
"""Most bytes read from all connections in a turn, in even shares of at least MIN_READ_BYTES."""
MIN_READ_BYTES = 16 << 10
TURN_S = 0.05
"""Time of a turn, in even shares of at least MIN_SHARE_S. The remaining clients are served in
the next turn."""
MIN_SHARE_S = 0.0005
IDLE_CHECKS = 4
"""Checks for idle connections in each idle time."""
STALLED_S = 10.0
"""Longest time that a client may stall while all clients together hold too much."""
STALL_CHECK_S = 1.0
"""Seconds between checks. If the oldest unfinished request made no progress since the last check, the next
oldest request is read."""

ServeNext = Callable[[ClientConnection, RequestFramer], Request | None]
"""Serves the next request in a client's bytes. Returns None when no frame is whole."""
Lane = Sequence[Arrived[ClientConnection]]
"""The bytes that a turn has read from clients that have the same lane."""
ServeLane = Callable[[Lane, memoryview], tuple[Request | None, Lane]]
"""Serves the requests of a lane as one. Returns it, and what must be served by itself."""


class Server:
    """Accepts Kafka clients and runs the loop; `run` returns after `stop`."""

    def __init__(self, listeners: Sequence[Listener], mailbox: Mailbox, limits: ClientLimits) -> None:
        self._mailbox = mailbox
        self._limits = limits
        self.admission = Admission(limits)
        self.statistics = Statistics()
        self.errors: Counter[tuple[int, int]] = Counter()
        self.now = time.monotonic()
        """Time at which this turn began."""
        self.listeners = listeners
        self._listening = {listener.socket.fileno(): listener for listener in listeners}
        self._epoll = select.epoll()
        self._epoll.register(mailbox.wake_fd, select.EPOLLIN)
        self.connections: dict[int, ClientConnection] = {}
        self._touched: dict[ClientConnection, None] = {}
        self._unserved: dict[ClientConnection, None] = {}
        self._unknown: dict[ClientConnection, None] = {}
        """Clients that are not authenticated yet, oldest first."""
        self.spare: dict[ClientConnection, str] = {}
        """Connections over a limit, kept only because they may be brokers, oldest first. Maps each to its
        limit."""
        self._ending: dict[ClientConnection, float] = {}
        """Connections whose login has a limited lifetime. Maps each to the end of its login."""
        self._frame_buffers = FrameBuffers()
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._used = 0
        self._lanes: dict[Hashable, list[Arrived[ClientConnection]]] = {}
        self._gathering_s, self._is_gathering = 0.0, False
        """Time that reading the clients in `_lanes` took."""
        self._looked_at = self.now
        self._late = False
        self._running = False

    def listen(self) -> None:
        """Open the ports. Until then clients are refused and try another broker. `run` must follow."""
        for listener in self.listeners:
            listener.listen()

    def stop(self) -> None:
        """Leave `run` after the current turn. Must be called on the loop."""
        self._running = False

    def run(self, serve_next: ServeNext, serve_lane: ServeLane, end_of_turn: Callable[[], None]) -> None:
        """Serve until `stop`. `serve_next` and `serve_lane` take the frames, and `end_of_turn` writes the
        staged appends.
        """
        self._serve_next, self._serve_lane, self._end_of_turn = serve_next, serve_lane, end_of_turn
        for fd in self._listening:
            self._epoll.register(fd, select.EPOLLIN)
        self._mailbox.every(self._limits.max_idle_ms / 1000 / IDLE_CHECKS, self._close_idle)
        self._mailbox.every(STALL_CHECK_S, self._close_stalled)
        self._mailbox.every(1.0, self._halve_time_used)
        self._running = True
        while self._running:
            timeout = 0 if self._unserved else self._mailbox.seconds_to_next()
            most = len(self.connections) + len(self.listeners) + 1
            ready = self._epoll.poll(-1 if timeout is None else timeout, most)
            try:
                self._turn(ready)
            except Exception:
                logger.exception("a bug in a turn of the loop; the next turn continues")

    def _turn(self, ready: list[tuple[int, int]]) -> None:
        self.now = time.monotonic()
        if self._late:
            ready.sort(key=self._time_used)
        busy = len(ready) + len(self._unserved) + 1
        self._share_s = max(MIN_SHARE_S, TURN_S / busy)
        self._read_bytes = max(MIN_READ_BYTES, TURN_BYTES // busy)
        accepting: list[Listener] = []
        is_alone = len(ready) == 1
        is_idle = not self._unserved
        self._looked_at = self.now
        for fd, events in ready:
            connection = self.connections.get(fd)
            if connection is not None:
                is_idle = False
                may_share = connection.lane is not None and events == select.EPOLLIN and not is_alone
                if may_share and self._gather(connection):
                    continue
                self._end_gathering()
                self._ready(connection, events)
                if self._account(connection) > TURN_S:
                    break  # the other connections are still ready in the next turn
            elif fd == self._mailbox.wake_fd:
                self._mailbox.drain()
            elif (listener := self._listening.get(fd)) is not None:
                accepting.append(listener)
        self._serve_lanes()
        for listener in accepting:  # last: a new connection may get the descriptor of one just closed
            self._accept(listener)
        self._serve_the_rest()
        self._late = self._looked_at - self.now > TURN_S / 2 or bool(self._unserved)
        self._mailbox.run(is_idle=is_idle)
        self._finish_turn()

    def _account(self, connection: ClientConnection) -> float:
        """Note the time that serving a client took. Return the time that the whole turn has taken so far."""
        now = time.monotonic()
        if not connection.is_broker:
            connection.used_s += now - self._looked_at
        if connection.access.meter is not None:
            throttle_ms(connection, Kind.LOOP, now - self._looked_at)
        self._looked_at = now
        return now - self.now

    def _time_used(self, ready: tuple[int, int]) -> float:
        """Return the loop's time that a client has used recently.

        Brokers and light clients are served first.
        """
        connection = self.connections.get(ready[0])
        return -1.0 if connection is None else connection.used_s

    def _halve_time_used(self) -> None:
        for connection in self.connections.values():
            connection.used_s /= 2

    @property
    def waiting_requests(self) -> int:
        """Requests without an answer; from any thread."""
        return sum(connection.unanswered for connection in list(self.connections.values()))

    def close(self) -> None:
        """Close every socket. Due answers are sent as far as the sockets accept them at once."""
        for connection in list(self.connections.values()):
            with contextlib.suppress(OSError):
                connection.send()
            self.drop(connection)
        for listener in self.listeners:
            listener.socket.close()
        self._epoll.close()

    def touch(self, connection: ClientConnection) -> None:
        self._touched[connection] = None

    def drop(self, connection: ClientConnection) -> None:
        """Close a connection, and forget everything that still waits for it."""
        if connection.closed:
            return
        connection.closed = True
        fd = connection.transport.fileno()
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)
        del self.connections[fd]
        connection.transport.close()
        self._unserved.pop(connection, None)
        self._unknown.pop(connection, None)
        self.spare.pop(connection, None)
        self._ending.pop(connection, None)
        try:
            if connection.spare:
                self.admission.refused += 1
            elif not connection.is_broker:
                self.admission.leave(connection.host)
            self.admission.note(connection, 0, unfinished=False, now=self.now)
        finally:
            connection.forget()

    def _fail(self, connection: ClientConnection) -> None:
        """Close the connection of a client after a bug in handling its bytes."""
        logger.exception("a bug while serving %s: its connection is closed", connection.address)
        try:
            self.drop(connection)
        except Exception:
            logger.exception("a bug while closing the connection of %s", connection.address)

    def _accept(self, listener: Listener) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                client, address = listener.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    continue  # that client has disconnected already
                logger.error("cannot accept clients for a second: %s; raise `ulimit -n`", error.strerror)
                self._epoll.unregister(listener.socket.fileno())
                self._mailbox.after(
                    1.0, lambda: self._epoll.register(listener.socket.fileno(), select.EPOLLIN)
                )
                return
            try:
                refusal = self.admission.refusal(address[0], client.fileno())
                if refusal is None:
                    self._admit(listener, client, address[0], address[1])
                elif listener.takes_brokers and self.admission.has_spare(client.fileno()):
                    self._admit(listener, client, address[0], address[1], refusal)
                else:
                    self.admission.refused += 1
                    client.close()
                    logger.warning("refused the connection of %s: %s", address[0], refusal)
            except Exception:
                client.close()
                logger.exception("a bug while admitting %s: its connection is closed", address[0])

    def _admit(
        self, listener: Listener, client: socket.socket, host: str, port: int, refusal: str = ""
    ) -> None:
        """Begin to serve a client. With a `refusal` it may stay only if it is a broker."""
        try:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            transport = listener.transport(client)
            access = listener.access(transport, host)
            unknown = access is UNAUTHENTICATED
            largest = (
                min(MAX_FRAME_BYTES, self._limits.max_frame_bytes)
                if unknown
                else self._limits.max_frame_bytes
            )
            framer = RequestFramer(largest, self._frame_buffers)
            connection = ClientConnection(
                self, transport, listener, host, f"{host}:{port}", access, framer, self.now
            )
            self._epoll.register(client.fileno(), connection.events)
            self.connections[client.fileno()] = connection
            if unknown:
                self._admit_unknown(connection)
            if refusal:
                self._admit_spare(connection, refusal)
        except Exception:
            if not refusal:
                self.admission.leave(host)
            raise

    def _admit_spare(self, connection: ClientConnection, refusal: str) -> None:
        connection.spare = True
        self.spare[connection] = refusal
        if len(self.spare) > SPARE:  # a broker identifies itself at once
            self._close_spare(next(iter(self.spare)))

    def _close_spare(self, connection: ClientConnection) -> None:
        connection.abort(self.spare[connection])

    def exempt(self, connection: ClientConnection) -> None:
        """Serve a broker's connection before clients' connections, and do not count it as a client."""
        self.admission.exempt(connection, self.now)
        if self.spare.pop(connection, None) is None:
            self.admission.leave(connection.host)
        connection.spare, connection.is_broker = False, True
        connection.used_s = -1.0
        connection.access.meter = None

    def _admit_unknown(self, connection: ClientConnection) -> None:
        """Count a client that is not authenticated yet.

        If there are too many, close the oldest: an honest client is quick.
        """
        self._unknown[connection] = None
        if len(self._unknown) > self._limits.max_unauthenticated:
            self._close_unknown([next(iter(self._unknown))], "max_unauthenticated")

    def _close_unknown(self, connections: Sequence[ClientConnection], limit: str) -> None:
        self._close(connections, f"they were not authenticated ({limit})")
        self.admission.closed_unauthenticated += len(connections)

    def _identify(self, connection: ClientConnection) -> bool:
        """Find out if the client is authenticated by now. Return False if the client is refused."""
        try:
            connection.access = connection.listener.access(connection.transport, connection.host)
        except TlsFailed as error:
            self._fail_tls(connection, error)
            return False
        if connection.access is not UNAUTHENTICATED:
            self.identified(connection)
        return True

    def _fail_tls(self, connection: ClientConnection, error: TlsFailed) -> None:
        self.admission.failed_tls += 1
        connection.abort(str(error))

    def identified(self, connection: ClientConnection) -> None:
        """Note that the client is authenticated: it may send requests of any size, and take its time."""
        self._unknown.pop(connection, None)
        connection.framer.max_frame_bytes = self._limits.max_frame_bytes

    def ends_in(self, connection: ClientConnection, seconds: float | None) -> None:
        """Close a connection after `seconds`, unless its client logs in again; None: never."""
        self._ending.pop(connection, None)
        if seconds is not None:
            self._ending[connection] = self.now + seconds

    def mute(self, connection: ClientConnection, seconds: float) -> None:
        """Read nothing of a connection for a while. Its answers are still sent."""
        if not (connection.muted or connection.closed):
            connection.muted = True
            self._mailbox.after(seconds, lambda: self._unmute(connection))
            self.touch(connection)

    def _unmute(self, connection: ClientConnection) -> None:
        if connection.closed:
            return
        connection.muted = False
        meter = connection.access.meter
        left = 0.0 if meter is None else meter.wait_s()
        if left > 0:
            self.mute(connection, min(left, MAX_MUTE_S))
        self.touch(connection)

    def _close_ended(self) -> None:
        for connection in [client for client, end in self._ending.items() if end <= self.now]:
            connection.abort("its login has expired, and it has not logged in again")
            self.admission.closed_login_ended += 1

    def close_deleted(self, users: Container[str]) -> None:
        """Close the connections of users that no longer exist. On the loop."""
        for connection in list(self.connections.values()):
            user = connection.login.user if connection.login is not None else None
            if user is not None and user not in users:
                connection.abort("its user was deleted")

    def _close_idle(self) -> None:
        """Close connections that have sent no whole request and received nothing for `max_idle_ms`."""
        since = self.now - self._limits.max_idle_ms / 1000
        idle = [
            connection
            for connection in self.connections.values()
            if connection.idle_since(since) and connection not in self.admission.paused
        ]
        for connection in idle:
            self.drop(connection)
        self.admission.closed_idle += len(idle)
        if idle:
            logger.info("closed %d connections that were idle, such as %s", len(idle), idle[0].address)

    def _close_stalled(self) -> None:
        """Close connections that stall while all clients hold too much, and connections that are not
        authenticated in time.
        """
        since = self.now - STALLED_S
        if self.admission.over_limit and self.admission.over_since <= since:
            share = self.admission.share
            stalled = [client for client in self.connections.values() if client.stalled_since(since, share)]
            self._close_over_limit(stalled, f"they stalled for {STALLED_S:.0f} s")
        self.admission.pass_over_oldest(self.now - STALL_CHECK_S)
        late = self.now - self._limits.authentication_ms / 1000
        self._close_unknown(
            [client for client in self._unknown if client.opened_at <= late], "authentication_ms"
        )
        for connection in [client for client in self.spare if client.opened_at <= late]:
            self._close_spare(connection)
        self._close_ended()

    def _measure(self, connection: ClientConnection) -> None:
        """Count a connection's memory. Close the connection if nothing else keeps the sum bounded."""
        if connection.is_broker:
            return
        framer, admission = connection.framer, self.admission
        held = framer.held + connection.queued_bytes + REQUEST_BYTES * connection.unanswered
        held += connection.kept_bytes + connection.transport.held
        if held or connection.held:
            admission.note(connection, held, unfinished=framer.unfinished, now=self.now)
            if admission.is_too_much(connection):
                self._close_over_limit(
                    [connection], "it sent too many requests or left too many answers unread"
                )

    def _close_over_limit(self, connections: Sequence[ClientConnection], why: str) -> None:
        self._close(connections, f"{why} while all clients together held more than max_buffered_bytes")
        self.admission.closed_over_limit += len(connections)

    def _close(self, connections: Sequence[ClientConnection], why: str) -> None:
        if connections:
            address = connections[0].address
            logger.warning("closed %d connections, such as %s: %s", len(connections), address, why)
        for connection in connections:
            self.drop(connection)

    def _ready(self, connection: ClientConnection, events: int) -> None:
        try:
            if events & select.EPOLLOUT:
                self.touch(connection)
            if events & select.EPOLLIN:
                self._read(connection)
            elif events & (select.EPOLLHUP | select.EPOLLERR):
                self.drop(connection)
            elif events & select.EPOLLRDHUP:
                if not self._may_serve(connection) or connection in self.admission.paused:
                    self.drop(connection)  # the client has hung up, and may not be read to its end
                else:
                    self.touch(connection)
        except Exception:
            self._fail(connection)

    def _read(self, connection: ClientConnection) -> None:
        framer, room = connection.framer, connection.framer.room
        if room is None and RECEIVE_BYTES - self._used < MIN_ROOM_BYTES:
            self._write_staged()
        target = self._buffer[self._used : self._used + self._read_bytes] if room is None else room
        self._frame_buffers.over_limit = over_limit = self.admission.over_limit
        if over_limit:
            target = target[: max(MIN_READ_BYTES, self.admission.share - connection.held)]
        try:
            count = connection.transport.receive_into(target)
        except BlockingIOError:
            count = -1
        except TlsFailed as error:
            self._fail_tls(connection, error)
            return
        except OSError:
            count = 0
        if connection.access is UNAUTHENTICATED and not self._identify(connection):
            return
        if count == 0:
            self.drop(connection)
            return
        if count < 0:
            self.touch(connection)
            return
        if room is None:
            framer.receive_data(target[:count])
            self._used += count
        else:
            framer.received(count)
        self._serve_received(connection, count)

    def _gather(self, connection: ClientConnection) -> bool:
        """Read a client's bytes into its lane. Return False if they must be read and served alone."""
        start = self._used
        if self.admission.over_limit or RECEIVE_BYTES - start < MIN_ROOM_BYTES or not connection.is_free:
            return False
        try:
            count = connection.transport.receive_into(self._buffer[start : start + LANE_BYTES])
            if count == 0:
                self.drop(connection)
            else:
                self._used += count
                self._lanes.setdefault(connection.lane, []).append(Arrived(connection, start, count))
                self._is_gathering = True
        except BlockingIOError:
            return False
        except OSError:
            self.drop(connection)
        except Exception:
            self._fail(connection)
        return True

    def _end_gathering(self) -> None:
        """Count the time since the last client was served as that of the clients which were gathered."""
        if self._is_gathering:
            now, self._is_gathering = time.monotonic(), False
            self._gathering_s += now - self._looked_at
            self._looked_at = now

    def _serve_lanes(self) -> None:
        """Serve what was gathered: the requests of each lane as one, other requests by themselves."""
        if not self._lanes:
            return
        self._end_gathering()
        lanes, self._lanes = self._lanes, {}
        read_s, self._gathering_s = self._gathering_s / sum(map(len, lanes.values())), 0.0
        for lane in lanes.values():
            try:
                request, rest = self._serve_lane(lane, self._buffer)
                if request is not None:
                    self.statistics.served(request, self.now)
            except Exception:
                for connection, _, _ in lane:
                    self._fail(connection)
                continue
            now = time.monotonic()
            for connection, _, _ in lane:
                if not connection.is_broker:
                    connection.used_s += read_s + (now - self._looked_at) / len(lane)
                if connection.unanswered > FEW_REQUESTS:
                    self.touch(connection)  # to be measured
            self._looked_at = now
            for connection, start, size in rest:
                connection.lane = connection.last_target = None
                try:
                    connection.framer.receive_data(self._buffer[start : start + size])
                    self._serve_received(connection, size)
                except Exception:
                    self._fail(connection)
                self._account(connection)

    def _serve_received(self, connection: ClientConnection, count: int) -> None:
        """Serve the frames of the bytes that a read has brought."""
        self._serve(connection)
        if connection.served_at != self.now:  # a whole request resets the time, too
            connection.note_received(count)

    def _serve(self, connection: ClientConnection) -> None:
        """Serve the received frames, until answers pile up or the connection's time is over."""
        served, framer, request = False, connection.framer, None
        if (meter := connection.access.meter) is not None and meter.wait_s() > MAX_MUTE_S:
            # The user's debt may come from other connections, too: otherwise the user could continue over new
            # connections.
            self.mute(connection, MAX_MUTE_S)
        try:
            while self._may_serve(connection):
                request = self._serve_next(connection, framer)
                if request is None:
                    break
                self.statistics.served(request, self.now)
                if request.client.closed:
                    break  # keep neither: a reference cycle would wait for the garbage collector
                if request.is_only:
                    connection.note_served()
                else:
                    connection.keep_place(request)
                late = served and time.monotonic() - self._looked_at > self._share_s
                served = True
                if late or not framer.waiting:
                    break
        except FrameRefused as error:
            connection.abort(f"principal {connection.access.principal!r}: {error}")
        framer.release()
        if connection.closed:
            return
        if connection.queued_bytes > EARLY_SEND_BYTES:
            self._send(connection)
        else:
            # A few small requests hold so little that noting it at the end of the turn is enough.
            if framer.held or connection.held or connection.unanswered > FEW_REQUESTS:
                self._measure(connection)
            if request is None or not request.is_only:
                self._touched[connection] = None

    def _may_serve(self, connection: ClientConnection) -> bool:
        if connection.closed or connection.ending or connection.muted:
            return False
        return not (self.admission.is_full(connection) or connection.must_wait)

    def _serve_the_rest(self) -> None:
        """Continue with the clients that had more requests in their bytes than one turn serves."""
        if self._unserved:
            unserved, self._unserved = self._unserved, {}
            for connection in sorted(unserved, key=lambda connection: connection.used_s):
                if self._looked_at - self.now > 2 * TURN_S:
                    self._unserved[connection] = None
                elif not (connection.closed or connection.muted):
                    try:
                        if connection.framer.waiting:
                            self._serve(connection)
                        else:
                            self._read(connection)
                    except Exception:
                        self._fail(connection)
                    self._account(connection)

    def _write_staged(self) -> None:
        """Serve what was gathered and write the staged records. Afterwards the shared buffer is free."""
        self._serve_lanes()
        self._end_of_turn()
        self._used = 0
        self._frame_buffers.end_of_turn()

    def _finish_turn(self) -> None:
        self._write_staged()
        for connection in self.admission.resumed() if self.admission.paused else ():
            self.touch(connection)
        touched, self._touched = self._touched, {}
        for connection in touched:
            if not connection.closed:
                self._send(connection)
        self.statistics.end_turn()

    def _send(self, connection: ClientConnection) -> None:
        try:
            more_to_send = connection.send()
            if connection.ending and not more_to_send and not connection.requests:
                self.drop(connection)
                return
            self._measure(connection)
            if not connection.closed:
                self._watch(connection, more_to_send)
        except (OSError, ValueError):
            self.drop(connection)
        except Exception:
            self._fail(connection)

    def _watch(self, connection: ClientConnection, more_to_send: bool) -> None:
        """Wait for the connection's next event; serve it in the next turn if requests of it are left."""
        events = select.EPOLLOUT | select.EPOLLRDHUP if more_to_send else select.EPOLLRDHUP
        if self._may_serve(connection):
            if connection.framer.waiting:
                self._unserved[connection] = None
            elif connection not in self.admission.paused:
                if connection.transport.unread:
                    self._unserved[connection] = None
                else:
                    events |= select.EPOLLIN
        if events != connection.events:
            connection.events = events
            self._epoll.modify(connection.transport.fileno(), events)
