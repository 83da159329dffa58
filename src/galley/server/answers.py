"""Answers in JSON."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response


class Json(Response):
    """A plain object, as JSON in UTF-8."""

    media_type = "application/json"

    def __init__(self, value: Mapping[str, Any], status_code: int = 200) -> None:
        super().__init__(msgspec.json.encode(value), status_code)
