"""The 300 ms of a voice line."""

import statistics
from time import perf_counter
from typing import Final

from galley.bench.report import Spread
from galley.bench.serve.bars import Series
from galley.lab.bench import Lab
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding
from galley.lab.speech import greedy, recordings, transcriber
from galley.lab.speech_roofline import SpeechRoofline, work_of
from galley.llm.llm import LLM
from galley.speech.features import SAMPLE_RATE
from galley.text.tokenizer import Tokenizer
from galley.types import SamplingParams

_TAIL_SECONDS: Final = 2.0
"""Audio of a turn that is not transcribed yet when it ends, as in live transcription."""

_CLAUSE_TOKENS: Final = 8
_CLAUSE: Final = SamplingParams(temperature=0.0, max_tokens=_CLAUSE_TOKENS, ignore_eos=True)
_BUDGET_MS: Final = 300.0


def _run(lab: Lab) -> Finding:
    spoken = recordings(lab)[0]
    tail = spoken.samples[-round(_TAIL_SECONDS * SAMPLE_RATE) :]
    with transcriber(lab) as one, LLM.from_settings(lab.with_(prefix_cache=True)) as llm:
        parts: dict[str, list[float]] = {"transcript": [], "prompt": [], "first clause": []}
        for number in range(lab.repeats + 1):
            # Each time another prompt, so that the cache has only what was computed while the caller spoke.
            words = f"Call {number}. {spoken.text}"
            before = [{"role": "user", "content": words[: len(words) // 2]}]
            turn = [{"role": "user", "content": words}]
            began = perf_counter()
            one.transcribe(tail, greedy()).text()
            transcribed = perf_counter()
            llm.chat([before], SamplingParams(temperature=0.0, max_tokens=1))
            ready = perf_counter()
            times = [perf_counter() for _ in llm.chat_stream(turn, _CLAUSE)]
            parts["transcript"].append(1e3 * (transcribed - began))
            parts["prompt"].append(1e3 * (times[0] - ready))
            parts["first clause"].append(1e3 * (times[-1] - times[0]))
        work = work_of(one, lambda: one.transcribe(tail, greedy()).text())
        listening = SpeechRoofline(lab, one).seconds(work)
        weights = llm.info.require_program().weight_dtype
    totals = [sum(values) for values in zip(*(part[1:] for part in parts.values()), strict=True)]
    medians = {name: statistics.median(values[1:]) for name, values in parts.items()}
    rest = len(Tokenizer.load(lab.folder).encode(words)) // 2
    answer = lab.predict(lab.sizes(weights), prompt=rest, output=_CLAUSE_TOKENS, concurrency=1)
    saying = answer.ttft + (_CLAUSE_TOKENS - 1) * answer.tpot
    return Finding(
        figures=[Figure(measured=Spread.of(totals), predicted=1e3 * (listening + saying))],
        header=["part", "ms", "of the budget"],
        rows=[[name, f"{ms:.0f}", f"{ms / _BUDGET_MS:.0%}"] for name, ms in medians.items()],
        pictures=[
            Bars(
                title="Computed between the end of a turn and the first clause of the answer",
                unit="ms",
                names=[*medians],
                series=[Series("measured", [*medians.values()])],
            )
        ],
        notes=[
            "The work of one caller: the transcript of the last two seconds, the rest of a prompt whose "
            f"beginning was computed while the caller spoke, and {_CLAUSE_TOKENS} tokens. Not counted: "
            "the silence after which a turn is over (200 to 500 ms, or less with semantic_vad), and the "
            "voice's first audio. `galley bench voice` measures a whole line."
        ],
    )


EXPERIMENT: Final = Experiment(
    name="voice-budget",
    title="The 300 ms of a voice line",
    statement="A voice agent has to answer within 300 ms; transcript, prompt and first clause fit in that.",
    source="turn-taking across languages: 200 ms on average (Stivers et al., PNAS 2009)",
    prediction="Rooflines: of the encoder and the steps of the transcript, and of the second half of the "
    "prompt and the clause.",
    claims=(Claim(figure="work until the first clause", unit="ms", high=_BUDGET_MS),),
    run=_run,
    needs=("speech",),
)
