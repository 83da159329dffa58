"""Flags of vLLM and llama-server, and their counterparts in Galley.

Flags with the same meaning are accepted by ``galley serve``. The others are refused with an error that
names the alternative. docs/from-other-servers.md shows the same table.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import click

Server = Literal["vLLM", "llama-server"]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of another server.

    Attributes:
        server: the server that has it.
        names: all of its spellings.
        becomes: the flag of Galley with the same meaning; empty: there is none.
        note: why there is none, or how it differs; for people.
        values: value there -> value here, where they differ; others are passed on as they are.
        takes_value: whether a value follows it.
        always: Galley always does this, so the flag is dropped.
        positional: its value is an argument of ``galley serve``.
    """

    server: Server
    names: tuple[str, ...]
    becomes: str = ""
    note: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    takes_value: bool = True
    always: bool = False
    positional: bool = False

    @property
    def accepted(self) -> bool:
        """Whether ``galley serve`` accepts it."""
        return bool(self.becomes) or self.always or self.positional


def _same(server: Server, names: str, becomes: str, note: str = "", **values: str) -> Flag:
    return Flag(server, tuple(names.split()), becomes, note, values)


def _switch(server: Server, names: str, becomes: str, note: str = "") -> Flag:
    return Flag(server, tuple(names.split()), becomes, note, takes_value=False)


def _always(server: Server, names: str, note: str, *, takes_value: bool = False) -> Flag:
    return Flag(server, tuple(names.split()), note=note, takes_value=takes_value, always=True)


def _refused(server: Server, names: str, note: str, *, takes_value: bool = True) -> Flag:
    return Flag(server, tuple(names.split()), note=note, takes_value=takes_value)


_FROM_CHECKPOINT: Final = "read from the checkpoint; leave it out"

FLAGS: Final = (
    Flag("vLLM", ("--model",), note="the model is an argument", positional=True),
    _same("vLLM", "--max-num-seqs", "--max-running"),
    _same("vLLM", "--max-num-batched-tokens", "--max-batch-tokens"),
    _same("vLLM", "--kv-cache-dtype", "--kv-dtype", "int8 or int4 instead of fp8"),
    _switch("vLLM", "--enable-prefix-caching", "--prefix-cache", "on by default"),
    _switch("vLLM", "--no-enable-prefix-caching", "--no-prefix-cache"),
    _same(
        "vLLM",
        "--tool-call-parser",
        "--tool-parser",
        "detected from the chat template by default",
        llama3_json="llama",
        llama4_pythonic="pythonic",
        qwen3_coder="qwen_xml",
        qwen3_xml="qwen_xml",
        deepseek_v3="deepseek",
        deepseek_v31="deepseek",
        phi4_mini_json="phi",
        openai="harmony",
    ),
    _same(
        "vLLM",
        "--reasoning-parser",
        "--reasoning-parser",
        "detected from the chat template by default",
        deepseek_r1="think",
        qwen3="think",
    ),
    _same("vLLM", "--data-parallel-size -dp", "--replicas"),
    _always("vLLM", "--enable-chunked-prefill", "always on"),
    _always("vLLM", "--enable-auto-tool-choice", "always on"),
    _always("vLLM", "--async-scheduling --enforce-eager", "nothing to configure"),
    _always("vLLM", "--disable-log-requests", "prompts are not logged without --log-prompts"),
    _switch("vLLM", "--enable-log-requests", "--log-prompts"),
    _same("vLLM", "--max-loras", "--max-adapters"),
    _same("vLLM", "--max-lora-rank", "--adapter-rank"),
    _same("vLLM", "--lora-modules", "--adapter", "NAME=FOLDER; repeat for several"),
    _always("vLLM", "--enable-lora", "on if --adapter or --max-adapters is given"),
    _same("vLLM", "--allowed-origins", "--cors-origin", "one origin; repeat for several"),
    _same("vLLM", "--ssl-certfile", "--tls-cert"),
    _same("vLLM", "--ssl-keyfile", "--tls-key"),
    _same("vLLM", "--uvicorn-log-level", "--log-level"),
    _same("vLLM", "--otlp-traces-endpoint", "--otlp-endpoint"),
    _refused(
        "vLLM",
        "--gpu-memory-utilization",
        "use --kv-memory-fraction (of the memory that the weights leave) or --kv-cache-tokens",
    ),
    _refused(
        "vLLM",
        "--quantization -q",
        f"{_FROM_CHECKPOINT}, or quantize while loading with --weight-dtype",
    ),
    _refused("vLLM", "--load-format", _FROM_CHECKPOINT),
    _refused("vLLM", "--tokenizer --hf-config-path", "the checkpoint's own is used"),
    _refused("vLLM", "--tokenizer-mode", _FROM_CHECKPOINT),
    _refused("vLLM", "--trust-remote-code", "code in a checkpoint is never run", takes_value=False),
    _refused("vLLM", "--block-size", "blocks have 16 tokens; leave it out"),
    _refused(
        "vLLM", "--swap-space --cpu-offload-gb", "preempted sequences are recomputed; leave it out"
    ),
    _refused("vLLM", "--download-dir", "set HF_HOME, or give a folder as the model"),
    _refused("vLLM", "--seed", "set the seed in each request; greedy decoding needs none"),
    _refused("vLLM", "--chat-template", "put chat_template.jinja into the checkpoint's folder"),
    _same("vLLM", "--tensor-parallel-size -tp", "--tensor-parallel"),
    _refused(
        "vLLM", "--pipeline-parallel-size -pp", "use --tensor-parallel; every rank has all layers"
    ),
    _refused("vLLM", "--speculative-config", "use --draft-model and --speculation"),
    _refused("vLLM", "--num-speculative-tokens", "the number adapts to the acceptance rate"),
    _refused("vLLM", "--structured-outputs-config", "llguidance is built in; leave it out"),
    _refused("vLLM", "--scheduling-policy", "requests have a priority; see --priority-steps"),
    _refused("vLLM", "--max-logprobs", "fixed at 20, as in OpenAI's API; leave it out"),
    _refused("vLLM", "--hf-token", "set HF_TOKEN"),
    _refused("vLLM", "--root-path --middleware", "put a reverse proxy in front"),
    _refused("vLLM", "--task --runner", "determined by the checkpoint; leave it out"),
    _refused("vLLM", "--limit-mm-per-prompt", "models accept text and audio, not images"),
    Flag("llama-server", ("-m",), note="the model is an argument", positional=True),
    _same(
        "llama-server",
        "-c --ctx-size",
        "--max-model-len",
        "per request, not for all slots together",
    ),
    _same("llama-server", "-t", "--threads"),
    _same("llama-server", "-np --parallel", "--max-running"),
    _same("llama-server", "-a --alias", "--served-model-name"),
    _same("llama-server", "-md --model-draft", "--draft-model"),
    _same("llama-server", "--ssl-cert-file", "--tls-cert"),
    _same("llama-server", "--ssl-key-file", "--tls-key"),
    _always("llama-server", "-cb --cont-batching --jinja --metrics -fa", "always on"),
    _refused(
        "llama-server",
        "-ctk --cache-type-k -ctv --cache-type-v",
        "use --kv-dtype; keys and values have the same type",
    ),
    _refused(
        "llama-server",
        "-ngl --gpu-layers --n-gpu-layers",
        "use --device to choose where the model runs",
    ),
    _refused("llama-server", "-b --batch-size -ub --ubatch-size", "use --max-batch-tokens"),
    _refused("llama-server", "--lora --lora-scaled", "use --adapter NAME=FOLDER (PEFT's layout)"),
    _refused(
        "llama-server",
        "--mlock --no-mmap",
        "weights are mapped and read once; leave it out",
        takes_value=False,
    ),
    _refused(
        "llama-server",
        "--embedding --embeddings --reranking --rerank",
        "determined by the checkpoint; leave it out",
        takes_value=False,
    ),
    _refused(
        "llama-server", "-hf --hf-repo", "give the hub id as the model: galley serve org/name"
    ),
)

_BY_NAME: Final = {name: flag for flag in FLAGS for name in flag.names}

_OWN_VALUES: Final = {
    "--dtype": {
        "half": ("--weight-dtype", "f16"),
        "float16": ("--weight-dtype", "f16"),
        "float": ("--dtype", "float32"),
    },
}
"""Flags of the same name whose values differ: value -> replacement of the flag and its value."""


def translated(arguments: Sequence[str], known: frozenset[str]) -> list[str]:
    """Return the command line with flags of other servers replaced by Galley's.

    Args:
        arguments: of ``galley serve``.
        known: flags of ``galley serve``, which take precedence.

    Raises:
        click.UsageError: a flag has no counterpart; the message names its server and the alternative.
    """
    return list(_translate(list(arguments), known))


def _translate(arguments: list[str], known: frozenset[str]) -> Iterator[str]:
    while arguments:
        argument = arguments.pop(0)
        name, sign, value = argument.partition("=")
        flag = _BY_NAME.get(name) if argument.startswith("-") else None
        if name in _OWN_VALUES or (flag is not None and flag.becomes == name):
            wanted = value if sign else next(iter(arguments), "")
            new = _value_of(name, wanted)
            if new is not None:
                if not sign:
                    del arguments[:1]
                yield from new
                continue
        if flag is None or name in known:
            yield argument
            continue
        if not flag.accepted:
            raise click.UsageError(f"{name} is a flag of {flag.server}: {flag.note}")
        given = [value] if sign else arguments[:1] if flag.takes_value else []
        if flag.takes_value and not sign:
            del arguments[:1]
        if flag.takes_value and not given:
            raise click.UsageError(f"{name} needs a value")
        if flag.becomes:
            yield flag.becomes
        if flag.takes_value and not flag.always:
            yield from (flag.values.get(given[0], given[0]),)


def _value_of(name: str, value: str) -> tuple[str, ...] | None:
    if name in _OWN_VALUES:
        return _OWN_VALUES[name].get(value)
    flag = _BY_NAME[name]
    return (flag.becomes, flag.values[value]) if value in flag.values else None


def markdown(server: Server) -> str:
    """Return the table of docs/from-other-servers.md for one server."""
    rows = ["| there | here | |", "|---|---|---|"]
    for flag in FLAGS:
        if flag.server == server:
            there = ", ".join(f"`{name}`" for name in flag.names)
            here = f"`{flag.becomes}`" if flag.becomes else "MODEL" if flag.positional else ""
            rows.append(
                f"| {there} | {here or ('accepted' if flag.always else '-')} | {_note(flag)} |"
            )
    return "\n".join(rows)


def _note(flag: Flag) -> str:
    pairs = ", ".join(f"`{there}` is `{here}`" for there, here in flag.values.items())
    return "; ".join(part for part in (flag.note, pairs) if part)
