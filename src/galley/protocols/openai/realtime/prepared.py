"""An answer that begins before it is certain that the caller's turn is over."""

import asyncio
from typing import NamedTuple

from galley.errors import GalleyError
from galley.gateway.draft import Draft
from galley.protocols.openai.realtime.conversation_schemas import ConversationSettings
from galley.protocols.openai.realtime.items import Item, Items
from galley.protocols.openai.realtime.response import Response


class Prepared(NamedTuple):
    """The answer to what the caller has said when speech pauses.

    Attributes:
        text: the turn's transcript, if it is over.
        item_id: id of the turn's item.
        settings: those of the session when it began.
        items: the conversation with that item, and what the response adds.
        draft: what it uses, until it is certain.
    """

    text: str
    item_id: str
    settings: ConversationSettings
    items: Items
    draft: Draft
    response: Response
    task: asyncio.Task[None]

    def accepted(self, item: Item, settings: ConversationSettings) -> bool:
        """Return whether it answers the turn's item; if it does, the tenant is charged.

        One that failed does not: a response that begins now may succeed.
        """
        if (self.text, self.item_id, self.settings) != (item.text, item.id, settings):
            return False
        if self.response.failed:
            return False
        try:
            self.draft.accept()
        except GalleyError:  # a response that begins now says which limit is exceeded
            return False
        return True
