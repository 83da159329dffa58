"""A checkpoint's small files, apart from its weights: who wants no tensors needs no numpy."""

import json
from pathlib import Path
from typing import Any

from galley.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; CheckpointError if it is anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", file=str(path)) from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"is not JSON: {error}", file=str(path)) from error
    if not isinstance(content, dict):
        raise CheckpointError("is not a JSON object", file=str(path))
    return content
