"""Checks the server's answers against its OpenAPI document."""

import os
import time
from typing import Any, Final

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from galley.gateway.registry import Registry
from galley.gateway.tenants import Tenants
from galley.protocols.http.openapi import document
from galley.server.app import create_app
from galley.settings.config import Settings
from tests.server.serving import Server
from tests.thorough import THOROUGH

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
PAGE: dict[str, Any] = document(create_app(Registry(Settings()), tenants=Tenants({})).routes)
SCHEMA = schemathesis.openapi.from_dict(PAGE)
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]
EXAMPLES: Final = int(os.environ.get("SCHEMA_EXAMPLES", 25 if THOROUGH else 6))
"""Random requests for each operation. `make schema` sends many more, different in each run."""
SLOW_SECONDS: Final = 30.0
"""Most seconds of an answer to a random request, on a very busy machine; what takes longer hangs."""
SPOKEN = [operation for operation in OPERATIONS if "/audio/" in operation.path]
"""Operations that a text model refuses; test_server_audio.py and test_server_speech.py have others."""
SPEECH = [operation for operation in SPOKEN if operation.path.endswith("/speech")]
HEARD = [operation for operation in SPOKEN if operation not in SPEECH]
ADAPTERS = [operation for operation in OPERATIONS if operation.path.startswith("/v1/adapters")]
"""Operations that require adapters; test_adapters.py has a model with some."""
OF_VECTORS = [
    operation
    for operation in OPERATIONS
    if operation.path.endswith(("/embeddings", "/embed", "/rerank", "/score"))
]
"""Also refused here; test_embeddings.py tests embedding models."""
OF_TENSORS = [one for one in OPERATIONS if one.path.endswith(("/infer", ":predict", "/metadata"))]
"""Also refused here; test_open_inference.py tests tensor models."""
OF_REPOSITORY = [one for one in OPERATIONS if one.path.startswith("/v2/repository/models/")]
"""Also refused here, some for lack of an admin key; test_model_repository.py has a repository."""


def check_answers(server: Server, operation: Any) -> None:
    """Send random requests, valid and invalid, and check that the document describes the answers."""

    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        derandomize="SCHEMA_EXAMPLES" not in os.environ,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=st.one_of(
            operation.as_strategy(),
            operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE),
        )
    )
    def check(case: Any) -> None:
        _keep_short(case)
        began = time.monotonic()
        case.call_and_validate(base_url=server.url, checks=CHECKS)
        seconds = time.monotonic() - began
        assert seconds < SLOW_SECONDS, f"{case.as_curl_command()} took {seconds:.1f} s"

    check()


def _keep_short(case: Any) -> None:
    """Limit the work of a random request that this model would accept."""
    if isinstance(case.body, dict) and "completions" in case.operation.path:
        if case.body.get("model"):
            case.body["model"] = "tiny"
        if case.body.get("max_tokens") is None:
            case.body["max_tokens"] = 3
