"""A route of one JSON body whose function is called directly: FastAPI's general way took as long as most answers."""

from collections.abc import Callable, Coroutine
from typing import Any, get_type_hints

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from streamd.server.state import require_key, state_of


class DirectRoute(APIRoute):
    """For `async def route(body: SomeModel, state: State) -> Response`, behind `require_key` and no other dependency; in the
    API's description, and in what it refuses, as any other route."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        route, model = self.endpoint, get_type_hints(self.endpoint)["body"]
        assert [d.dependency for d in self.dependencies] == [require_key], "no other is asked"

        async def handle(request: Request) -> Response:
            await require_key(request)
            response: Response = await route(await _body(request, model), await state_of(request))
            return response

        return handle


async def _body(request: Request, model: type[BaseModel]) -> BaseModel:
    """The request's body as a model. Raises: RequestValidationError, HTTPException."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise HTTPException(422, "body: not sent as JSON; set content-type: application/json")
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        raise RequestValidationError([{**e, "loc": ("body", *e["loc"])} for e in error.errors()]) from None
    except ClientDisconnect:
        raise HTTPException(400, "the body did not arrive whole") from None
