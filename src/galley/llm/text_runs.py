"""Runs of prompts in an engine of this process: requests out, outputs to texts."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from galley.errors import EngineError, RequestError
from galley.llm.inputs import as_params
from galley.llm.local import LocalEngine
from galley.llm.outputs import RequestOutput, Result, output_of
from galley.service.requests import expand
from galley.text.stream import Delta, TextStream
from galley.text.tokenizer import Tokenizer
from galley.tools.formats import ChatFormat
from galley.tools.parser import Parser
from galley.types import EngineRequest, Grammar, SamplingParams


class TextRuns:
    """Runs prompts, given as token ids, in one engine.

    Args:
        local: the engine.
        tokenizer: that of the model; None: outputs have no text.
        format: the format of the model's chat answers.
    """

    def __init__(self, local: LocalEngine, tokenizer: Tokenizer | None, format: ChatFormat) -> None:
        self._local = local
        self._tokenizer = tokenizer
        self._format = format

    @cached_property
    def _check_grammar(self) -> Callable[[Grammar], Grammar]:
        """The check of grammars, imported and loaded when the first grammar needs it."""
        from galley.grammar.check import check
        from galley.grammar.vocabulary import load_vocabulary

        vocabulary = load_vocabulary(self._local.folder)
        return lambda grammar: check(grammar, vocabulary, "grammar")

    def _expand(self, ids: list[int], params: SamplingParams) -> list[EngineRequest]:
        grammar = params.grammar
        if grammar is not None and grammar.kind != "compiled":
            params = msgspec.structs.replace(params, grammar=self._check_grammar(grammar))
        return expand(ids, params, self._local.info, request_id=uuid.uuid4().hex)

    def _result(self, params: SamplingParams, parser: Parser | None = None) -> "Result":
        markers = (
            self._format.marker_tokens(self._tokenizer, parser)
            if parser and self._tokenizer
            else frozenset()
        )
        eos = self._local.info.require_text().eos_token_ids
        stream = TextStream.for_request(self._tokenizer, params, eos, markers=markers)
        return Result(stream, parser)

    def stream(
        self, ids: list[int], params: SamplingParams | None, parser: Parser | None = None
    ) -> tuple[Iterator[Delta], Result]:
        """Stream the answer to one prompt; also return the result that it makes.

        Raises:
            RequestError: a parameter is wrong, or n is not 1.
            EngineError: the engine failed; raised during iteration.
        """
        [params] = as_params(params, 1)
        if params.n != 1:
            raise RequestError("a stream has one choice; n must be 1", param="n")
        request = self._expand(ids, params)[0]
        result = self._result(params, parser)
        return _or_raise(self._deltas([request], {request.id: result}), result), result

    def run(
        self,
        prompts: list[list[int]],
        params: list[SamplingParams],
        progress: bool,
        parsers: Sequence[Callable[[], Parser | None]] = (),
    ) -> list[RequestOutput]:
        """Run all prompts in one batch; ``parsers`` create those of chats, in the prompts' order.

        Raises:
            RequestError: a prompt or parameter is wrong; nothing has been run.
        """
        groups = [self._expand(ids, p) for ids, p in zip(prompts, params, strict=True)]
        results = {
            request.id: self._result(p, parsers[index]() if parsers else None)
            for index, (group, p) in enumerate(zip(groups, params, strict=True))
            for request in group
        }
        requests = [request for group in groups for request in group]
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        with tqdm(total=len(requests), disable=not progress, unit="answer") as bar:
            for delta in self._deltas(requests, results):
                bar.update(delta.finish_reason is not None)
        return [
            output_of(ids, [results[request.id] for request in group])
            for ids, group in zip(prompts, groups, strict=True)
        ]

    def _deltas(
        self, requests: list[EngineRequest], results: Mapping[str, "Result"]
    ) -> Iterator[Delta]:
        """Run the engine until these requests are done, passing outputs to their results.

        If the loop ends early for any reason, the requests that are left are aborted.
        """
        run = self._local.run(requests)
        try:
            for output in run:
                delta = results[output.request_id].feed(output)
                if delta.finish_reason is not None and output.finish_reason is None:
                    run.cancel([output.request_id])  # a stop string, or a last call
                yield delta
        finally:
            run.close()


def _or_raise(deltas: Iterator[Delta], result: Result) -> Iterator[Delta]:
    for delta in deltas:
        if result.error is not None:
            raise EngineError(result.error)
        yield delta
