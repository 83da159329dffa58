"""Responses that another server had begun to answer when it ended, fetched by their ids."""

import asyncio
import logging
import time
from typing import Any, Final

import msgspec

from galley.errors import GalleyError
from galley.gateway.caller import Caller
from galley.gateway.registry import Registry
from galley.protocols.common.errors import ApiError
from galley.protocols.openai.responses.answers import ResponseAnswer
from galley.protocols.openai.responses.shared import Begun, SharedResponses
from galley.protocols.openai.responses.store import OwnResponses, Responses, StoredResponse

log = logging.getLogger("galley.server")

_POLL_SECONDS: Final = 0.2


class Resuming:
    """Finds stored responses, and answers those whose server gives no sign of life.

    Attributes:
        store: the stored responses.
    """

    def __init__(self, models: Registry) -> None:
        """Open the store that the settings name.

        Raises:
            SettingsError: its URL, or the package for it, cannot be used.
        """
        settings = models.settings
        self._models = models
        self._shared = SharedResponses(settings) if settings.stored_responses_at else None
        self._tasks: set[asyncio.Task[None]] = set()
        self.store: Responses = self._shared or OwnResponses(settings)

    async def complete(self, caller: Caller, name: str) -> StoredResponse:
        """Return a response, once it is complete.

        Raises:
            ApiError: there is none.
        """
        # Another server may be the one that completes it.
        while isinstance(found := await self.found(caller, name), dict):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        return found

    async def found(self, caller: Caller, name: str) -> StoredResponse | dict[str, Any]:
        """Return a response, or the response object of one that is in progress.

        Raises:
            ApiError: there is none.
        """
        tenant = caller.tenant.name
        if (found := await self.store.find(tenant, name)) is not None:
            return found
        begun = None if self._shared is None else await self._shared.begun(tenant, name)
        if self._shared is None or begun is None:
            # It may have been completed between the two.
            if (found := await self.store.find(tenant, name)) is not None:
                return found
            raise not_found(name)
        if await self._shared.take_over(tenant, name):
            # Its server may have stored it, and withdrawn its claim, in the meantime.
            if (found := await self.store.find(tenant, name)) is not None:
                await self._shared.ended(tenant, name)
                return found
            log.info("answering %s, whose server has ended", name)
            task = asyncio.create_task(self._answer(self._shared, caller, name, begun))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return begun.shown

    async def _answer(
        self, shared: SharedResponses, caller: Caller, name: str, begun: Begun
    ) -> None:
        """Answer a response from its beginning, and store it; its text is what it would have been."""
        again = Caller(
            name.removeprefix("resp_"),
            caller.account,
            deadline=time.monotonic() + self._models.settings.request_timeout,
        )
        request = msgspec.structs.replace(begun.request, stream=False)
        try:
            served = await self._models.find(request.model, "generate", again)
            answer = await ResponseAnswer.start(served, request, again, self.store, begun)
            try:
                await answer.whole()
            finally:
                answer.close()
        except GalleyError as error:
            log.warning("%s cannot be answered: %s", name, error)
        finally:
            await shared.ended(caller.tenant.name, name)


def not_found(name: str) -> ApiError:
    """Return the error for a response that is not stored."""
    return ApiError(404, f"Response with id {name[:100]!r} not found", param="response_id")
