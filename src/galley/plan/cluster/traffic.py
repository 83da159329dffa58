"""The requests of a simulation: from a trace, or drawn from distributions."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from galley.errors import SettingsError
from galley.traffic.trace import TraceLine, Turn
from galley.types import EngineRequest, Generate, SamplingParams

MOST_REQUESTS: Final = 1_000_000
"""Most requests of a simulation, which keeps a few figures of each."""


class Traffic:
    """Requests in the order in which they are due; prompts are made when they are needed.

    Args:
        turns: from 1 to :data:`MOST_REQUESTS`.

    Raises:
        SettingsError: there are more, or none.
    """

    def __init__(self, turns: Sequence[Turn]) -> None:
        if not 0 < len(turns) <= MOST_REQUESTS:
            raise SettingsError(
                f"the traffic has {len(turns):,} requests; a simulation takes 1 to {MOST_REQUESTS:,}"
            )
        self.turns = turns
        self.mean_output = sum(map(self.output, range(len(turns)))) / len(turns)
        self.mean_prompt = sum(turn.line.input_length for turn in turns) / len(turns)
        self.next_turn = {
            turn.after: index for index, turn in enumerate(turns) if turn.after is not None
        }
        # Numbers of a trace's blocks have any size; tokens are small.
        self._tokens: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.turns)

    def output(self, index: int) -> int:
        """Return the tokens that a request generates: at least one."""
        return max(1, self.turns[index].line.output_length)

    def request(self, index: int, delivered: int = 0) -> EngineRequest:
        """Return a request as the router gets it; prompts share the prefixes that the trace says.

        Args:
            index: of the request.
            delivered: output tokens that another replica has delivered already.
        """
        line = self.turns[index].line
        # No other request has this token.
        own = -1 - index
        payload = Generate(
            prompt=[*self._prompt(line, own)],
            sampling=SamplingParams(max_tokens=self.output(index)),
            output=[own] * delivered,
        )
        return EngineRequest(
            id=str(index), payload=payload, cache_salt=line.tenant, tenant=line.tenant
        )

    def _prompt(self, line: TraceLine, own: int) -> Iterator[int]:
        left = line.input_length
        for block in line.hash_ids or ():
            if not left:
                return
            size = min(left, line.block_size)
            token = self._tokens.setdefault(block, len(self._tokens))
            yield from [token] * size
            left -= size
        yield from [own] * left


def synthetic(
    times: Sequence[float],
    prompt: Callable[[], int],
    output: Callable[[], int],
    *,
    prefix: Callable[[], int] | None = None,
    prefix_tokens: int = 0,
) -> Traffic:
    """Return independent requests.

    Args:
        times: seconds at which they are due, ascending.
        prompt, output: draw the tokens of a request.
        prefix: draws the number of the prefix that is in front of a prompt; None: nothing is shared.
        prefix_tokens: tokens of each prefix.
    """
    shared = prefix_tokens if prefix is not None else 0
    return Traffic(
        [
            Turn(
                due=time,
                after=None,
                pause=0.0,
                line=TraceLine(
                    timestamp=1000 * time,
                    input_length=shared + prompt(),
                    output_length=output(),
                    hash_ids=[prefix()] if prefix is not None and shared else None,
                    block_size=shared or 1,
                ),
            )
            for time in times
        ]
    )
