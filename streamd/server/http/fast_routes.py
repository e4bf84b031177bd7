"""Direct routes: they read one JSON body and call their function without FastAPI's dependency
injection, which would take as long as most answers."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, get_type_hints

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from streamd.server.state import conditions_of, require_key, state_of

Model = TypeVar("Model", bound=BaseModel)


class DirectRoute(APIRoute):
    """A route of the form `async def route(body: SomeModel, state: State, conditions:
    AnswerConditions, ...) -> Response`.

    Further arguments are text parameters of the path. Its only dependency is `require_key`. Its
    OpenAPI description and its errors are the same as those of other routes.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        route = self.endpoint
        model = get_type_hints(self.endpoint)["body"]
        assert [d.dependency for d in self.dependencies] == [require_key], (
            "a direct route has no other dependency"
        )

        # The steps of FastAPI in the same order: check the key, read the body, call the function.
        async def handle(request: Request) -> Response:
            await require_key(request)
            state = await state_of(request)
            body = await self.read(request, model)
            conditions = await conditions_of(request)
            response: Response = await route(body, state, conditions, **request.path_params)
            return response

        return handle

    async def read(self, request: Request, model: type[Model]) -> Model:
        """Read the request's body as a model. Raises: RequestValidationError, HTTPException."""
        if not is_json(media_type(request)):
            raise HTTPException(422, "body: not sent as JSON; set content-type: application/json")
        return parse_body(model, await whole(request))


def media_type(request: Request) -> str:
    """The media type of the request's content-type, empty if there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Whether a media type is JSON or based on JSON, such as `application/problem+json`."""
    is_form = kind.startswith("application/") and kind.endswith("+json")
    return kind == "application/json" or is_form


async def whole(request: Request) -> bytes:
    """Read the whole body. Raises: HTTPException if the client disconnected."""
    try:
        return await request.body()
    except ClientDisconnect:
        raise HTTPException(400, "the body is incomplete") from None


def parse_body(model: type[Model], body: bytes) -> Model:
    """Parse a body as a model. Raises: RequestValidationError."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        # Prefix the location with "body", as FastAPI does.
        details = [{**e, "loc": ("body", *e["loc"])} for e in error.errors()]
        raise RequestValidationError(details) from None
