"""Headers by which a Kubernetes inference gateway says how a request is to be scheduled.

The names are those of the Gateway API Inference Extension and of llm-d.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from galley.errors import RequestError, SettingsError
from galley.gateway.key_file import check_name
from galley.protocols.http.header_times import time_in
from galley.settings.config import MOST_TIMEOUT

OBJECTIVE: Final = "x-gateway-inference-objective"
FAIRNESS_ID: Final = "x-gateway-inference-fairness-id"
TTFT: Final = "x-slo-ttft-ms"


@dataclass(frozen=True)
class Scheduling:
    """How a gateway wants a request to be scheduled.

    Attributes:
        flow: requests of different flows share the model like tenants; empty: none is given.
        priority: added to the request's and the tenant's; lower is sooner.
        first_token_seconds: time within which the first token is of use.
    """

    flow: str = ""
    priority: int = 0
    first_token_seconds: float = math.inf


def scheduling_of(headers: Mapping[str, str], objectives: Mapping[str, int] | None) -> Scheduling:
    """Read the headers.

    Args:
        headers: those of the request, by lower-case name.
        objectives: name of an objective -> priority; an unknown one counts as 0, as at a gateway. None: the
            headers are not trusted, and ignored.

    Raises:
        RequestError: a header's value is not valid.
    """
    if objectives is None:
        return Scheduling()
    flow = headers.get(FAIRNESS_ID, "")
    if flow:
        try:
            check_name(flow)
        except SettingsError:
            raise RequestError(
                f"The header {FAIRNESS_ID} is {flow[:100]!r}; use up to 64 letters, digits and . _ -",
                param=FAIRNESS_ID,
            ) from None
    return Scheduling(flow, objectives.get(headers.get(OBJECTIVE, ""), 0), _first_token(headers))


def _first_token(headers: Mapping[str, str]) -> float:
    most = MOST_TIMEOUT * 1000
    return time_in(headers, TTFT, math.inf, unit="milliseconds", most=most) / 1000
