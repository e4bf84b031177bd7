"""The JSON Schema of the settings file, for editors and for checks before a release."""

from typing import Any

from streamd.settings.tree import Settings

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def settings_schema() -> dict[str, Any]:
    """The schema: type, bounds, default and meaning of each setting.

    It checks each setting by itself; `load_settings` checks that settings agree.
    """
    schema = Settings.model_json_schema(mode="validation")
    return {"$schema": DIALECT} | schema | {"title": "Settings of streamd"}
