"""The JSON Schema of the settings file, for editors and for checks before a release."""

from typing import Any

from streamd.settings.tree import Settings

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def settings_schema() -> dict[str, Any]:
    """The schema: what each setting may be, its default and its meaning.

    It knows one setting at a time; what only several together show is left to `load_settings`.
    """
    schema = Settings.model_json_schema(mode="validation")
    return {"$schema": DIALECT} | schema | {"title": "Settings of streamd"}
