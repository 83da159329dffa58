"""The tasks of sequences, which use their computed rows: one file for each type of task."""

from collections.abc import Collection

from galley.engine.tasks.align import AlignTask
from galley.engine.tasks.base import Task
from galley.engine.tasks.beam import BeamTask
from galley.engine.tasks.sample import SampleTask
from galley.engine.tasks.score import ScoreTask
from galley.grammar.matcher import GrammarMatcher
from galley.types import Align, Decoded

__all__ = ["AlignTask", "BeamTask", "SampleTask", "ScoreTask", "Task", "task_of"]


def task_of(
    payload: Decoded, stop_ids: Collection[int], grammar: GrammarMatcher | None = None
) -> Task:
    """Return the task that a payload requests.

    Args:
        payload: the request's payload.
        stop_ids: tokens that end its text.
        grammar: constrains the output that follows.
    """
    if isinstance(payload, Align):
        return AlignTask()
    params = payload.sampling
    task: Task = (
        BeamTask(payload, stop_ids)
        if params.num_beams > 1
        else SampleTask(payload, stop_ids, grammar)
    )
    if params.prompt_logprobs is not None or payload.rules.no_speech is not None:
        return ScoreTask(payload, task)
    return task
