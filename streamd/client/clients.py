"""The two clients: the same calls over a blocking and over an asyncio transport."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Self, TypeVar

try:
    import httpx2
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "streamd.client needs the package httpx2. Operator action: "
        "pip install 'streamd-gnn[client]', or in a clone pip install '.[client]'.",
        name="httpx2",
    ) from None

from streamd.client import calls
from streamd.client.calls import Call
from streamd.client.exchange import Again, Done, Exchange, Retries
from streamd.client.positions import Positions

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", httpx2.Client, httpx2.AsyncClient)
UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
"""Errors before the first byte of a request."""
TIMEOUT_SECONDS = 10.0
"""Twice `server.deadline_seconds`, so that the server's own word on a slow answer arrives."""


def _blocking(
    build: Callable[P, Call[T]],
) -> "Callable[Concatenate[Client, P], T]":
    """The method of `Client` for a call."""

    @functools.wraps(build)
    def method(self: "Client", /, *args: P.args, **more: P.kwargs) -> T:
        return self.send(build(*args, **more))

    return method


def _awaited(
    build: Callable[P, Call[T]],
) -> "Callable[Concatenate[AsyncClient, P], Awaitable[T]]":
    """The method of `AsyncClient` for a call."""

    @functools.wraps(build)
    async def method(self: "AsyncClient", /, *args: P.args, **more: P.kwargs) -> T:
        return await self.send(build(*args, **more))

    return method


class _Core(Generic[H]):
    """The state that both clients share. http: the kind of transport."""

    def __init__(
        self,
        url: str = "http://localhost:8000",
        *,
        api_key: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        retries: Retries = Retries(),
        read_own_writes: bool = True,
        headers: Mapping[str, str] | None = None,
        http: H | None = None,
    ) -> None:
        """Args: url: of the server, or of a proxy before several.

        api_key: one of `server.api_keys`, or of `server.admin_keys` to move the champion. timeout:
        seconds for a call, with all its tries and waits. read_own_writes: whether answers must have
        seen the events that this client sent. headers: of every request, such as `traceparent`.
        http: the transport's client, with its own proxies and certificates; it stays open when this
        client closes.
        """
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._retries = retries
        self._positions = Positions() if read_own_writes else None
        self._headers = {"accept": "application/json", **(headers or {})}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._http: H = http if http is not None else self._open()
        self._owns_http = http is None

    def _open(self) -> H:
        raise NotImplementedError

    def forget_writes(self) -> None:
        """Stop waiting for this client's earlier writes: required after the server got another
        log."""
        if self._positions is not None:
            self._positions.forget()

    def _begin(self, call: Call[T]) -> Exchange[T]:
        return Exchange(
            call,
            headers=self._headers,
            positions=self._positions,
            timeout=self._timeout,
            retries=self._retries,
        )


class Client(_Core[httpx2.Client]):
    """A client that blocks until the server answers. Threads may share it.

    It sends calls that read again if a server is unreachable, overloaded or not ready (`retries`),
    within `timeout` seconds in all. Raises: the errors of `streamd.client.errors`.
    """

    def _open(self) -> httpx2.Client:
        return httpx2.Client()

    def send(self, call: Call[T]) -> T:
        """Send a call and wait for its answer."""
        exchange = self._begin(call)
        while True:
            step = self._try(exchange)
            if not isinstance(step, Again):
                return step.answer
            time.sleep(step.seconds)

    def _try(self, exchange: Exchange[T]) -> Done[T] | Again:
        call = exchange.call
        try:
            with self._http.stream(
                call.method,
                self._url + call.path,
                content=call.content,
                headers=exchange.headers,
                timeout=exchange.seconds_left,
            ) as answer:
                # Check the deadline after each part of the body: a timeout bounds only one wait.
                parts = []
                for part in answer.iter_bytes():
                    parts.append(part)
                    _ = exchange.seconds_left
                return exchange.came(answer.status_code, answer.headers, b"".join(parts))
        except UNSENT as error:
            return exchange.broke(error, sent=False)
        except httpx2.TimeoutException as error:
            raise exchange.too_late(sent=True) from error
        except httpx2.HTTPError as error:
            return exchange.broke(error, sent=True)

    def close(self) -> None:
        """Close the connections."""
        if self._owns_http:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    score = _blocking(calls.score)
    score_batch = _blocking(calls.score_batch)
    recommend = _blocking(calls.recommend)
    recommend_batch = _blocking(calls.recommend_batch)
    similar = _blocking(calls.similar)
    explain = _blocking(calls.explain)
    embedding = _blocking(calls.embedding)
    embeddings = _blocking(calls.embeddings)
    labels = _blocking(calls.labels)
    labels_of = _blocking(calls.labels_of)
    nodes = _blocking(calls.nodes)
    events = _blocking(calls.events)
    records = _blocking(calls.records)
    schema = _blocking(calls.schema)
    models = _blocking(calls.models)
    trials = _blocking(calls.trials)
    promote = _blocking(calls.promote)
    rollback = _blocking(calls.rollback)
    move_outcome = _blocking(calls.move_outcome)
    erase = _blocking(calls.erase)
    erasure = _blocking(calls.erasure)


class AsyncClient(_Core[httpx2.AsyncClient]):
    """The same for asyncio. Tasks of one event loop may share it."""

    def _open(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient()

    async def send(self, call: Call[T]) -> T:
        """Send a call and wait for its answer."""
        exchange = self._begin(call)
        while True:
            step = await self._try(exchange)
            if not isinstance(step, Again):
                return step.answer
            await asyncio.sleep(step.seconds)

    async def _try(self, exchange: Exchange[T]) -> Done[T] | Again:
        call = exchange.call
        left = exchange.seconds_left
        try:
            async with asyncio.timeout(left):
                answer = await self._http.request(
                    call.method,
                    self._url + call.path,
                    content=call.content,
                    headers=exchange.headers,
                    timeout=left,
                )
            return exchange.came(answer.status_code, answer.headers, answer.content)
        except UNSENT as error:
            return exchange.broke(error, sent=False)
        except (httpx2.TimeoutException, TimeoutError) as error:
            raise exchange.too_late(sent=True) from error
        except httpx2.HTTPError as error:
            return exchange.broke(error, sent=True)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._owns_http:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    score = _awaited(calls.score)
    score_batch = _awaited(calls.score_batch)
    recommend = _awaited(calls.recommend)
    recommend_batch = _awaited(calls.recommend_batch)
    similar = _awaited(calls.similar)
    explain = _awaited(calls.explain)
    embedding = _awaited(calls.embedding)
    embeddings = _awaited(calls.embeddings)
    labels = _awaited(calls.labels)
    labels_of = _awaited(calls.labels_of)
    nodes = _awaited(calls.nodes)
    events = _awaited(calls.events)
    records = _awaited(calls.records)
    schema = _awaited(calls.schema)
    models = _awaited(calls.models)
    trials = _awaited(calls.trials)
    promote = _awaited(calls.promote)
    rollback = _awaited(calls.rollback)
    move_outcome = _awaited(calls.move_outcome)
    erase = _awaited(calls.erase)
    erasure = _awaited(calls.erasure)
