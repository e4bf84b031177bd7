"""A route of one JSON body whose function is called directly: FastAPI's general way took as long as
most answers."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, get_type_hints

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from streamd.server.state import require_key, state_of

Model = TypeVar("Model", bound=BaseModel)


class DirectRoute(APIRoute):
    """For `async def route(body: SomeModel, state: State, ...) -> Response`, its other arguments
    texts of the path, behind `require_key` and no other dependency; in the API's description, and
    in what it refuses, as any other route."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        route = self.endpoint
        model = get_type_hints(self.endpoint)["body"]
        assert [d.dependency for d in self.dependencies] == [require_key], "no other is asked"

        async def handle(request: Request) -> Response:
            await require_key(request)
            body = await self.read(request, model)
            response: Response = await route(body, await state_of(request), **request.path_params)
            return response

        return handle

    async def read(self, request: Request, model: type[Model]) -> Model:
        """The request's body as a model. Raises: RequestValidationError, HTTPException."""
        if not is_json(media_type(request)):
            raise HTTPException(422, "body: not sent as JSON; set content-type: application/json")
        return parsed(model, await whole(request))


def media_type(request: Request) -> str:
    """What the body is said to be, empty where nothing is said."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Whether a media type is JSON, or a form of it."""
    is_form = kind.startswith("application/") and kind.endswith("+json")
    return kind == "application/json" or is_form


async def whole(request: Request) -> bytes:
    """The body. Raises: HTTPException where its sender went away."""
    try:
        return await request.body()
    except ClientDisconnect:
        raise HTTPException(400, "the body did not arrive whole") from None


def parsed(model: type[Model], body: bytes) -> Model:
    """The body as a model. Raises: RequestValidationError."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        details = [{**e, "loc": ("body", *e["loc"])} for e in error.errors()]
        raise RequestValidationError(details) from None
