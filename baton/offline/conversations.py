"""Conversations of a call, as prompts. The router makes those with images, whose tokens depend on the images' sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from baton.offline.errors import RequestFailed
from baton.offline.images import LocalImages, has_images, with_urls
from baton.offline.prompts import ImageChat, PromptReader, Tokens
from baton.offline.requests import Answer, Request, Requests

TOKENIZE_PATH = "/tokenize"
IMAGES_IN_FLIGHT = 32  # conversations with images that are sent at a time: each may have megabytes


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """The request for the tokens of a conversation with images."""

    chat: ImageChat

    def request(self) -> Request:
        """Return the request."""
        return Request(TOKENIZE_PATH, self.chat.body())

    def output(self, answer: Answer) -> list[int]:
        """Return the tokens in a response."""
        tokens: list[int] = answer["tokens"]
        return tokens


@dataclass(frozen=True, slots=True)
class Conversations:
    """The reader of conversations of one model."""

    reader: PromptReader
    images: LocalImages
    requests: Requests

    async def read(self, bodies: Sequence[Mapping[str, object]]) -> list[Tokens]:
        """Return the prompts of conversations; a body has the fields of a `/tokenize` request.

        Raises ValueError for the first conversation that is invalid or too long, and RequestFailed with the index of
        one whose images the router refuses.
        """
        chats: dict[int, ImageChat] = {}
        for index, body in enumerate(bodies):
            if (chat := self._image_chat(index, body)) is not None:
                chats[index] = chat
        shown = [chats[index].shown if index in chats else body for index, body in enumerate(bodies)]
        found = await self.reader.read_chats(shown)
        places = list(chats)
        try:
            prompts = await self.requests.run([ImagePrompt(chats[each]) for each in places], IMAGES_IN_FLIGHT, _ignore)
        except RequestFailed as error:
            raise RequestFailed(places[error.index], error.reason) from None
        for index, token_ids in zip(places, prompts, strict=True):
            prompt = replace(found[index], token_ids=token_ids, chat=chats[index])
            try:
                found[index] = self.reader.checked(prompt, room=1)
            except ValueError as error:
                raise ValueError(f"conversation {index}: {error}") from None
        return found

    def _image_chat(self, index: int, body: Mapping[str, object]) -> ImageChat | None:
        """Return a conversation if it has images. Raises ValueError if they must not be read."""
        messages = body["messages"]
        assert isinstance(messages, list)
        if not has_images(messages):
            return None
        try:
            if self.reader.model.vision is None:
                raise ValueError(f"the model {self.reader.model.name} takes no images")
            if body.get("tools"):
                raise ValueError("tools do not work with images here; send them to `baton serve`")
            self.images.check(messages)
        except ValueError as error:
            raise ValueError(f"conversation {index}: {error}") from None
        return ImageChat({**body, "messages": with_urls(messages)}, tuple(messages), self.images)


def _ignore() -> None:
    """Take no note of a prompt."""
