"""The HTTP protocol of the server's connections, with bounds on their number, on the sizes of heads
and bodies, and on the time to wait for a client.

uvicorn's own protocol accepts heads of any size at any pace, from any number of connections.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httptools
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from streamd.processes import file_limit
from streamd.settings.loading import ServerSettings
from streamd.telemetry import metrics

logger = structlog.get_logger()
MAX_HEAD_BYTES = 65_536
"""Maximum size of a request's head: far more than browsers and proxies send."""
MAX_BODY_BYTES = 1_048_576
"""Maximum size of a body: it is read whole, and a parsed body takes several times its bytes."""
MAX_WIRE_BYTES = 2 * MAX_BODY_BYTES
"""Maximum number of bytes after a head: the body with its chunk frames and trailers."""
MAX_PIPELINED = 16
"""Maximum number of pipelined requests of a connection that wait for their turn, in memory."""
HEAD_SECONDS = 10.0
"""Deadline for a complete head, against clients that send it byte by byte."""
LINGER_SECONDS = 5.0
"""Time to read the remaining body of a refused request. If the server closed the connection at
once, the client could lose the response."""
UNREAD_SECONDS = 30.0
"""Time after which a client that reads nothing of its response is disconnected."""
WARN_SECONDS = 60.0
"""Minimum interval of warnings: there may be thousands of refusals a second."""
SPARE_FILES = 128
"""File descriptors that connections leave free for the log, the models and Kafka."""
# The response to a refused connection. It is sent before any request is read.
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-type: text/plain\r\ncontent-length: 21\r\n\r\ntoo many connections\n"
)


class Connections:
    """Counts open connections and decides which ones to admit. Owner: the server's event loop."""

    def __init__(self, server: ServerSettings) -> None:
        self._limit = server.max_connections
        self._limit_of_address = server.max_connections_per_address
        self._num_open: Counter[str] = Counter()
        self._idle: dict[BoundedProtocol, None] = {}
        """Connections without a request in progress, the longest idle first."""
        self._warned_at = -WARN_SECONDS

    def admit(self, address: str, number: int) -> bool:
        """Decide about a new connection. At a limit, the connection that has been idle for longest
        is closed for it; without an idle one it is refused.

        number: file descriptor of its socket. The kernel assigns the lowest free number, so it is
        also the number of open files. Returns: whether the connection is admitted.
        """
        reason = self._full(address, number)
        if reason is not None:
            # Count each refusal, and log one a minute.
            metrics.connections_refused.labels(reason).inc()
            if time.monotonic() - self._warned_at > WARN_SECONDS:
                self._warned_at = time.monotonic()
                logger.warning(
                    "connections_refused",
                    reason=reason,
                    address=address,
                    open=self._num_open.total(),
                )
            return False

        # Admitted.
        self._num_open[address] += 1
        metrics.connections.set(self._num_open.total())
        return True

    def _full(self, address: str, number: int) -> str | None:
        """The limit that is reached ("files", "address" or "all"), None if there is room."""
        if number >= file_limit() - SPARE_FILES:
            self._close_idle(None)  # for the next connection: this one has its descriptor already
            return "files"
        if self._num_open[address] >= self._limit_of_address and not self._close_idle(address):
            return "address"
        if self._num_open.total() >= self._limit and not self._close_idle(None):
            return "all"
        return None

    def _close_idle(self, address: str | None) -> bool:
        """Close the connection that has been idle for longest. address: of its client, None for
        any. Returns: whether there was one."""
        idle = next((c for c in self._idle if address in (None, c.address)), None)
        if idle is not None:
            self.remove(idle)
            idle.close()
        return idle is not None

    def mark_idle(self, connection: "BoundedProtocol") -> None:
        """Mark a connection as idle."""
        self._idle[connection] = None

    def mark_busy(self, connection: "BoundedProtocol") -> None:
        """Mark a connection as not idle."""
        self._idle.pop(connection, None)

    def remove(self, connection: "BoundedProtocol") -> None:
        """Stop counting a connection, which is closed or will be. A second call changes
        nothing."""
        self.mark_busy(connection)
        if connection.address is not None:
            self._num_open[connection.address] -= 1
            if not self._num_open[connection.address]:
                del self._num_open[connection.address]
            connection.address = None
            metrics.connections.set(self._num_open.total())


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which also closes a connection in these cases:

    - there are too many connections, in total or from its address;
    - the head of a request is larger than MAX_HEAD_BYTES (and one read of the socket);
    - the head is not complete HEAD_SECONDS after its first byte, or after the connection was made;
    - the bytes after the head are more than MAX_WIRE_BYTES, or continue for LINGER_SECONDS after
      the response;
    - the client reads nothing of its response for UNREAD_SECONDS.

    It also responds to a request that `refusal` refuses, before the body is read. uvicorn itself
    closes an idle connection after its `timeout_keep_alive`.
    """

    def __init__(
        self,
        *args: Any,
        connections: Connections,
        refusal: Callable[[str], bytes | None],
        **more: Any,
    ) -> None:
        """refusal: path of a request -> the whole response if it is refused now, None if it may
        pass."""
        super().__init__(*args, **more)
        self._connections = connections
        self._refusal = refusal
        self.address: str | None = None
        """The client's address under which the connection is counted; None if it is not counted."""
        self._head_bytes = self._wire_bytes = self._unread_bytes = 0
        self._in_head = True
        self._in_body = False
        self._is_refused = False
        """Whether the present request was refused. Then it has its response, and the rest of its
        body is ignored."""
        self._deaf = False
        self._timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        number = transport.get_extra_info("socket").fileno()
        address = str(peer[0]) if peer else ""
        if not self._connections.admit(address, number):
            self._deaf = True
            self.transport = transport
            transport.write(REFUSAL)
            transport.close()
            return
        self.address = address
        super().connection_made(transport)
        self._close_after(HEAD_SECONDS)
        self._connections.mark_idle(self)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        # A head must be complete in time, and small.
        if self._in_head:
            self._connections.mark_busy(self)
            if self._timer is None:
                self._close_after(HEAD_SECONDS)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The head of the request is too large.")
                return
            self._head_bytes += len(data)
        elif self._in_body:
            # Too many bytes after a head: ignore all further ones, and close soon.
            self._wire_bytes += len(data)
            if self._wire_bytes > MAX_WIRE_BYTES:
                self._deaf = True
                self._close_after(LINGER_SECONDS)
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many pipelined requests")
        super().on_message_begin()
        self._head_bytes = 0
        self._close_after(HEAD_SECONDS)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._in_head = False
        self._in_body = True
        self._wire_bytes = 0
        # A pipelined request gets its response from the application, in order.
        is_first = self.cycle is None or self.cycle.response_complete
        if is_first and not self.flow.write_paused:
            path = httptools.parse_url(self.url).path.decode("ascii", "replace")
            answer = self._refusal(path)
            if answer is not None:
                self._is_refused = True
                if self.parser.get_method() == b"HEAD":
                    answer = answer[: answer.index(b"\r\n\r\n") + 4]
                self.transport.write(answer)
                self._close_after(LINGER_SECONDS)
                return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            super().on_message_complete()
        self._stop_timer()
        self._in_head = True
        self._in_body = False
        self._head_bytes = 0
        if self._is_refused and not self.parser.should_keep_alive():
            self.close()
        elif self._is_refused or self.cycle.response_complete:  # a body may end after its response
            self._connections.mark_idle(self)
            self._close_after(self.timeout_keep_alive)
        self._is_refused = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._expect_reading()
        if self.transport.is_closing() or not self.cycle.response_complete:
            return  # or the next pipelined request is answered now
        if self._in_body:
            self._close_after(LINGER_SECONDS)
        elif self._timer is None:
            self._connections.mark_idle(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        self._connections.remove(self)
        if self.flow is not None:  # None if the connection was refused
            super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def timeout_keep_alive_handler(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, even if its client does not read the response."""
        self.transport.close()
        self._expect_reading()

    def _close_after(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expect_reading(self) -> None:
        """Abort the connection if the client reads nothing of the unsent bytes for
        UNREAD_SECONDS."""
        if self._unread_timer is None:
            self._unread_bytes = self.transport.get_write_buffer_size()
            self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self._cut_unless_read)

    def _cut_unless_read(self) -> None:
        self._unread_timer = None
        left = self.transport.get_write_buffer_size()
        if left and left >= self._unread_bytes:
            self.transport.abort()
        elif left:
            self._expect_reading()
