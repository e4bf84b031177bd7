"""Adds API keys, shared headers, and the errors that any route may return to the OpenAPI
description."""

from typing import Any

from fastapi import FastAPI

from streamd.server.engine.conditions import AFTER, LAG, MAX_LAG, POSITION
from streamd.server.http.problems import MEDIA_TYPE
from streamd.server.v1.schemas import Problem

# Status -> description. All routes have these errors, since the middleware may refuse any request.
ERRORS = {
    "400": "invalid request",
    "401": "an API key is required",
    "403": "not allowed",
    "404": "not found",
    "405": "the path has other methods",
    "408": "the body did not arrive in time",
    "409": "not possible now",
    "411": "content-length is required",
    "413": "the body is too large",
    "422": "invalid field or value",
    "429": "too many requests wait; retry later",
    "503": "not ready, not answered in time, or too old; retry later",
    "504": "the log did not reach the position in streamd-after; retry later",
}
# Request headers of the operations that the engine answers: conditions on the answer.
REQUEST_HEADERS = [
    {
        "name": AFTER,
        "in": "header",
        "required": False,
        "description": "positions that the answer must include: TERM.SEQ of another answer, or "
        "TOPIC:PARTITION:OFFSET of a record; several are separated by commas",
        "schema": {"type": "string"},
    },
    {
        "name": MAX_LAG,
        "in": "header",
        "required": False,
        "description": "maximum age of the answer in seconds",
        "schema": {"type": "number", "minimum": 0},
    },
]
# Response headers of these operations.
RESPONSE_HEADERS = {
    POSITION: {
        "description": "TERM.SEQ of the newest commit that the answer includes",
        "schema": {"type": "string"},
    },
    LAG: {
        "description": "seconds since the answer included all records of Kafka; absent if unknown",
        "schema": {"type": "number"},
    },
}
# Routes with an ordinary answer instead of a problem document at status 503.
PLAIN = ("/livez", "/readyz", "/v2/health/live", "/v2/health/ready")
OPEN = (*PLAIN, "/v2")
"""Paths without a check of the API key."""
KEYS = {
    "HTTPBearer": {"type": "http", "scheme": "bearer"},
    "APIKeyHeader": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def describe(app: FastAPI) -> None:
    """Make `app.openapi()` describe keys, shared headers and shared errors, which FastAPI does not
    know."""
    default = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema

        # Add the schemas of errors and keys.
        schema = default()
        schema["components"]["schemas"]["Problem"] = Problem.model_json_schema()
        schema["components"]["schemas"]["InferenceError"] = {
            "type": "object",
            "required": ["error"],
            "properties": {"error": {"type": "string"}},
        }
        schema["components"]["securitySchemes"] = KEYS

        # Add the errors to each operation, in the form of its protocol.
        for path, routes in schema["paths"].items():
            kind, form = (
                ("application/json", "InferenceError")
                if path.startswith("/v2")
                else (MEDIA_TYPE, "Problem")
            )
            for operation in routes.values():
                if "answers" in operation["tags"] or path.endswith("/infer"):
                    operation["parameters"] = [*operation.get("parameters", ()), *REQUEST_HEADERS]
                    operation["responses"]["200"]["headers"] = RESPONSE_HEADERS
                if path not in OPEN:
                    operation["security"] = [{name: []} for name in KEYS]
                for status, description in ERRORS.items():
                    if path in PLAIN and status == "503":
                        continue
                    operation["responses"][status] = {
                        "description": description,
                        "content": {kind: {"schema": {"$ref": f"#/components/schemas/{form}"}}},
                    }

        # Remove FastAPI's own form of a validation error, which no route returns.
        for unused in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(unused, None)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
