"""The models of a conversation: one transcribes, one answers, and one speaks."""

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from galley.gateway.registry import Registry
from galley.protocols.openai.realtime.response import Models
from galley.types.model_info import ModelInfo

QUERY: Final = frozenset({"model", "intent", "transcription_model", "voice_model"})
"""Query parameters of ``/v1/realtime``."""


SPOKEN: Final = (
    "You talk with a person by voice. Answer in one or two short sentences, as people speak, without lists "
    "or formatting."
)
"""Instructions of a spoken conversation whose client and language model have none.

Without a system message, small models are less sure where a caller's turn ends.
"""


class Party(NamedTuple):
    """The models of a conversation, apart from the one that transcribes.

    Attributes:
        name: name of the language model.
        instructions: the conversation's, unless the client gives others.
        voice: describes the model that speaks, if there is one.
    """

    name: str
    instructions: str
    models: Models
    voice: ModelInfo | None


def talks(models: Registry, query: Mapping[str, str]) -> bool:
    """Return whether the connection is a conversation: its model generates text.

    Raises:
        UnknownModel: there is no such model.
    """
    name = query.get("model")
    if name is None or "intent" in query:
        return False
    return "generate" in (models.served(name).tasks or ())


async def find_party(models: Registry, query: Mapping[str, str]) -> Party:
    """Return the models of a conversation. Raises the errors of :meth:`Registry.find`."""
    name = query["model"]
    find_language = partial(models.find, name, "generate")
    served = await find_language()
    language = served.name
    voices = [model.name for model in models if "speak" in (model.tasks or ())]
    wanted = query.get("voice_model") or (voices[0] if voices else None)
    if wanted is None:
        return Party(language, "", Models(language=find_language, voice=None), None)
    speaker = (await models.find(wanted, "speak")).name
    info = models.named(speaker).backend().engine.info
    find_voice = partial(models.find, speaker, "speak")
    instructions = "" if served.settings.system_prompt else SPOKEN
    return Party(language, instructions, Models(language=find_language, voice=find_voice), info)
