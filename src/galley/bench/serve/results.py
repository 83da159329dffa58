"""The figures of runs, as they are written to the JSON file and read back."""

from pathlib import Path

import msgspec

from galley.bench.serve.fidelity import Fidelity
from galley.errors import SettingsError

VERSION = 1
METRICS = ("ttft_s", "tpot_s", "inter_token_s", "latency_s")
"""Fields of :class:`Point` with quantiles of user-visible latencies."""


class Quantiles(msgspec.Struct, frozen=True):
    """Quantiles of one figure over requests, interpolated linearly between the two nearest, as in numpy.

    ``count`` is the number of values; 0 in reports written before the field existed.
    """

    mean: float
    p50: float
    p95: float
    p99: float
    max: float
    count: int = 0

    def shown(self, part: str) -> float | None:
        """Return ``p50``, ``p95``, ``p99`` or ``max``; None for a quantile of too few values.

        The 99th percentile of ten values is effectively their maximum: a quantile is shown only where at
        least one value is expected beyond it.
        """
        beyond = {"p95": 20, "p99": 100}.get(part, 1)
        return None if 0 < self.count < beyond else float(getattr(self, part))


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A run in slices of equal length.

    Attributes:
        slice_s: seconds of a slice.
        running: mean number of requests in flight in each slice.
        output_tokens_per_s: tokens that arrived in each slice.
        ttft_s: mean over the requests whose first token arrived in the slice; None where there was none.
    """

    slice_s: float
    running: list[float]
    output_tokens_per_s: list[float]
    ttft_s: list[float | None]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One run at one load. Names that end in ``_s`` are in seconds.

    Attributes:
        kind: "rate", "concurrency" or "trace".
        load: requests a second, or requests at a time; for a trace, its mean rate.
        requests: sent in the run, without warm-up.
        completed: the number of these that were answered in full.
        errors: number of each kind of error.
        details: the server's message with the first error of each kind.
        duration_s: from the first request sent to the last answer.
        counted: every completed answer came with the server's usage; else pieces of text were counted as
            output tokens, and prompts are not counted.
        prompt_tokens, output_tokens: means over completed requests.
        cached_share: share of prompt tokens that came from the server's prefix cache.
        ttft_s: to the first piece of text, for streamed answers.
        tpot_s: mean over each answer's tokens after the first.
        inter_token_s: between two pieces of text, over all answers.
        latency_s: to the end of the answer.
        goodput_per_s, goodput_share: requests that met the objective, a second, and as a share of all.
        audio_seconds_per_s: transcribed, when the server reports how long recordings are.
        cost_per_million_output, cost_per_million: US dollars, by output tokens and by all tokens.
        lag_s: by how much requests were sent late.
        loop_delay_s: by how much the client's event loop was late for its timers.
        cdfs: metric -> its quantiles at 0, 1, ... 100 %.
    """

    kind: str
    load: float
    requests: int
    completed: int
    errors: dict[str, int]
    details: dict[str, str]
    duration_s: float
    counted: bool
    prompt_tokens: float
    output_tokens: float
    cached_share: float
    ttft_s: Quantiles | None
    tpot_s: Quantiles | None
    inter_token_s: Quantiles | None
    latency_s: Quantiles | None
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    audio_seconds_per_s: float | None
    goodput_per_s: float | None
    goodput_share: float | None
    cost_per_million_output: float | None
    cost_per_million: float | None
    lag_s: Quantiles
    loop_delay_s: Quantiles
    cdfs: dict[str, list[float]]
    timeline: Timeline

    @property
    def name(self) -> str:
        """The load in words."""
        match self.kind:
            case "concurrency":
                return f"{self.load:g} at once"
            case "trace":
                return f"trace, {self.load:.3g}/s"
        return f"{self.load:g}/s"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of one command.

    Attributes:
        version: version of this format.
        galley: version of the client.
        started: start time, ISO 8601 in UTC.
        target: URL, or model of the server that was started for it.
        model: the served name.
        workload: options that describe the requests.
        objective: metric -> seconds; what counts as goodput.
        price_per_hour: price of the machine, US dollars.
        client: CPU and cores of the machine that sent the load.
        fidelity: of the server to another one that it was compared with, on recorded texts.
    """

    version: int = VERSION
    galley: str
    started: str
    target: str
    model: str
    workload: dict[str, str]
    objective: dict[str, float]
    price_per_hour: float | None
    client: str
    points: list[Point]
    fidelity: Fidelity | None = None


def read_report(file: Path) -> Report:
    """Read a report of ``galley bench serve --json``.

    Raises:
        SettingsError: the file cannot be read, is not a report, or is of another version.
    """
    try:
        report = msgspec.json.decode(file.read_bytes(), type=Report)
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise SettingsError(f"{file} is not a report of galley bench serve: {error}") from error
    if report.version != VERSION:
        raise SettingsError(
            f"{file} has report version {report.version}, expected {VERSION}; measure again"
        )
    return report
