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
from streamd.client.exchange import Done, Exchange, Retries, Retry
from streamd.client.positions import Positions

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", httpx2.Client, httpx2.AsyncClient)
UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
"""Errors before the first byte of a request."""
TIMEOUT_SECONDS = 10.0
"""Twice the default of `server.deadline_seconds`, so that the server's own error about a slow
answer arrives first."""


def _blocking_method(
    build: Callable[P, Call[T]],
) -> "Callable[Concatenate[Client, P], T]":
    """Make the method of `Client` that builds a call and sends it."""

    @functools.wraps(build)
    def method(self: "Client", /, *args: P.args, **more: P.kwargs) -> T:
        return self.send(build(*args, **more))

    return method


def _async_method(
    build: Callable[P, Call[T]],
) -> "Callable[Concatenate[AsyncClient, P], Awaitable[T]]":
    """Make the method of `AsyncClient` that builds a call and sends it."""

    @functools.wraps(build)
    async def method(self: "AsyncClient", /, *args: P.args, **more: P.kwargs) -> T:
        return await self.send(build(*args, **more))

    return method


class _Core(Generic[H]):
    """The state that both clients share. H: the transport's client."""

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
        """Args:
        url: str, of the server, or of a proxy in front of several. Default
            "http://localhost:8000".
        api_key: str, one of `server.api_keys`, or of `server.admin_keys` to promote, roll back
            or erase. Default None.
        timeout: float, seconds for a call with all its tries and waits. Default 10.
        retries: Retries, number of tries and waits between them. Default `Retries()`.
        read_own_writes: bool, whether answers must include the events that this client sent.
            Default True.
        headers: Mapping, headers of every request, such as `traceparent`. Default None.
        http: httpx2.Client or httpx2.AsyncClient, with its own proxies and certificates; it
            stays open when this client closes. Default None: a new one.
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
        """Stop to require this client's earlier writes in answers: necessary after the server got
        another log."""
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
    """A client that blocks until the server answers. Threads may share it. Arguments as in
    `__init__`.

    Note: it repeats calls that only read while the server is unreachable, overloaded or not ready,
    as `retries` allows and within `timeout` seconds. A call that writes is repeated only if the
    server cannot have executed it.

    Raises:
        ClientError: a call failed; `streamd.client.errors` lists the classes.
    """

    def _open(self) -> httpx2.Client:
        return httpx2.Client()

    def send(self, call: Call[T]) -> T:
        """Send a call and wait for its answer."""
        exchange = self._begin(call)
        while True:
            step = self._try(exchange)
            if not isinstance(step, Retry):
                return step.answer
            time.sleep(step.seconds)

    def _try(self, exchange: Exchange[T]) -> Done[T] | Retry:
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
                return exchange.on_answer(answer.status_code, answer.headers, b"".join(parts))
        # Nothing was sent, no time is left, or the connection broke.
        except UNSENT as error:
            return exchange.on_failure(error, sent=False)
        except httpx2.TimeoutException as error:
            raise exchange.deadline_error(sent=True) from error
        except httpx2.HTTPError as error:
            return exchange.on_failure(error, sent=True)

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

    score = _blocking_method(calls.score)
    score_batch = _blocking_method(calls.score_batch)
    recommend = _blocking_method(calls.recommend)
    recommend_batch = _blocking_method(calls.recommend_batch)
    similar = _blocking_method(calls.similar)
    explain = _blocking_method(calls.explain)
    embedding = _blocking_method(calls.embedding)
    embeddings = _blocking_method(calls.embeddings)
    labels = _blocking_method(calls.labels)
    labels_of = _blocking_method(calls.labels_of)
    nodes = _blocking_method(calls.nodes)
    events = _blocking_method(calls.events)
    records = _blocking_method(calls.records)
    schema = _blocking_method(calls.schema)
    models = _blocking_method(calls.models)
    trials = _blocking_method(calls.trials)
    promote = _blocking_method(calls.promote)
    rollback = _blocking_method(calls.rollback)
    move_outcome = _blocking_method(calls.move_outcome)
    erase = _blocking_method(calls.erase)
    erasure = _blocking_method(calls.erasure)


class AsyncClient(_Core[httpx2.AsyncClient]):
    """`Client` for asyncio. Tasks of one event loop may share it."""

    def _open(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient()

    async def send(self, call: Call[T]) -> T:
        """Send a call and wait for its answer."""
        exchange = self._begin(call)
        while True:
            step = await self._try(exchange)
            if not isinstance(step, Retry):
                return step.answer
            await asyncio.sleep(step.seconds)

    async def _try(self, exchange: Exchange[T]) -> Done[T] | Retry:
        call = exchange.call
        left = exchange.seconds_left
        try:
            # httpx2's timeout bounds each wait, asyncio's the whole request.
            async with asyncio.timeout(left):
                answer = await self._http.request(
                    call.method,
                    self._url + call.path,
                    content=call.content,
                    headers=exchange.headers,
                    timeout=left,
                )
            return exchange.on_answer(answer.status_code, answer.headers, answer.content)
        # Nothing was sent, no time is left, or the connection broke.
        except UNSENT as error:
            return exchange.on_failure(error, sent=False)
        except (httpx2.TimeoutException, TimeoutError) as error:
            raise exchange.deadline_error(sent=True) from error
        except httpx2.HTTPError as error:
            return exchange.on_failure(error, sent=True)

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

    score = _async_method(calls.score)
    score_batch = _async_method(calls.score_batch)
    recommend = _async_method(calls.recommend)
    recommend_batch = _async_method(calls.recommend_batch)
    similar = _async_method(calls.similar)
    explain = _async_method(calls.explain)
    embedding = _async_method(calls.embedding)
    embeddings = _async_method(calls.embeddings)
    labels = _async_method(calls.labels)
    labels_of = _async_method(calls.labels_of)
    nodes = _async_method(calls.nodes)
    events = _async_method(calls.events)
    records = _async_method(calls.records)
    schema = _async_method(calls.schema)
    models = _async_method(calls.models)
    trials = _async_method(calls.trials)
    promote = _async_method(calls.promote)
    rollback = _async_method(calls.rollback)
    move_outcome = _async_method(calls.move_outcome)
    erase = _async_method(calls.erase)
    erasure = _async_method(calls.erasure)
