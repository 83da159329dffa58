"""What a sequence wants of the rows that are computed for it: one file for each kind of task."""

from collections.abc import Collection

from galley.engine.tasks.align import AlignTask
from galley.engine.tasks.base import Task
from galley.engine.tasks.beam import BeamTask
from galley.engine.tasks.sample import SampleTask
from galley.engine.tasks.score import ScoreTask
from galley.grammar.matcher import GrammarMatcher
from galley.types import EngineRequest

__all__ = ["AlignTask", "BeamTask", "SampleTask", "ScoreTask", "Task", "task_of"]


def task_of(
    request: EngineRequest, stop_ids: Collection[int], grammar: GrammarMatcher | None = None
) -> Task:
    """The task that a request asks for. ``stop_ids`` end its text; ``grammar`` says how it goes on."""
    params = request.sampling
    if params.alignment:
        return AlignTask()
    task: Task = (
        BeamTask(request, stop_ids)
        if params.num_beams > 1
        else SampleTask(request, stop_ids, grammar)
    )
    if params.prompt_logprobs is not None or params.no_speech is not None:
        return ScoreTask(request, task)
    return task
