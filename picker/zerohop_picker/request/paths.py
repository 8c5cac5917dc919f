"""Which path asks for what, and how much of its body routing needs to see.

One table. A gateway may put a prefix before a path (`/team-a/v1/chat/completions`), so the longest known suffix counts.
Whatever is not listed is passed on by load alone.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from zerohop_picker.request.kinds import RequestKind


class BodyNeed(enum.IntEnum):
    """What routing wants to know of a body."""

    #: Nothing: the body need not be held.
    NOTHING = 0
    #: A JSON object with a string `model`; anything else is the client's fault (400).
    MODEL = 1
    #: A JSON object whose `model` may be absent.
    JSON = 2
    #: A multipart form (or JSON, by its content type); a malformed one is passed on, the model server judges it.
    FORM = 3


class Route(NamedTuple):
    """What one path asks for."""

    kind: RequestKind
    need: BodyNeed


OTHER = Route(RequestKind.OTHER, BodyNeed.NOTHING)
GRPC = Route(RequestKind.GRPC, BodyNeed.NOTHING)

ROUTES: dict[str, Route] = {
    "/v1/chat/completions": Route(RequestKind.CHAT, BodyNeed.MODEL),
    "/v1/chat/completions/render": Route(RequestKind.CHAT, BodyNeed.MODEL),
    "/v1/completions": Route(RequestKind.COMPLETIONS, BodyNeed.MODEL),
    "/v1/completions/render": Route(RequestKind.COMPLETIONS, BodyNeed.MODEL),
    "/v1/responses": Route(RequestKind.RESPONSES, BodyNeed.MODEL),
    "/v1/embeddings": Route(RequestKind.EMBEDDINGS, BodyNeed.MODEL),
    "/v1/messages": Route(RequestKind.MESSAGES, BodyNeed.MODEL),
    "/v1/messages/count_tokens": Route(RequestKind.MESSAGES, BodyNeed.MODEL),
    "/v1/audio/speech": Route(RequestKind.AUDIO, BodyNeed.MODEL),
    # The model is optional in these: the servers that have them fall back to the model they serve.
    "/v1/rerank": Route(RequestKind.RERANK, BodyNeed.JSON),
    "/v2/rerank": Route(RequestKind.RERANK, BodyNeed.JSON),
    "/rerank": Route(RequestKind.RERANK, BodyNeed.JSON),
    "/v1/score": Route(RequestKind.RERANK, BodyNeed.JSON),
    "/score": Route(RequestKind.RERANK, BodyNeed.JSON),
    "/pooling": Route(RequestKind.EMBEDDINGS, BodyNeed.JSON),
    "/classify": Route(RequestKind.EMBEDDINGS, BodyNeed.JSON),
    "/v1/images/generations": Route(RequestKind.IMAGES, BodyNeed.JSON),
    "/inference/v1/generate": Route(RequestKind.GENERATE, BodyNeed.JSON),  # vLLM, tokens in and out
    "/generate": Route(RequestKind.GENERATE, BodyNeed.JSON),  # SGLang
    "/v1/images/edits": Route(RequestKind.IMAGES, BodyNeed.FORM),
    "/v1/images/variations": Route(RequestKind.IMAGES, BodyNeed.FORM),
    "/v1/audio/transcriptions": Route(RequestKind.AUDIO, BodyNeed.FORM),
    "/v1/audio/translations": Route(RequestKind.AUDIO, BodyNeed.FORM),
}


def route(method: str, path: str, content_type: str) -> Route:
    """What `method path` asks for; `path` is without its query."""
    if method != "POST":
        return OTHER
    if content_type.startswith("application/grpc"):
        return GRPC
    found = ROUTES.get(path)
    if found is not None:
        return found
    if path.endswith("/"):
        path = path.rstrip("/")
    start = 0
    while start >= 0:
        found = ROUTES.get(path[start:])
        if found is not None:
            return found
        start = path.find("/", start + 1)
    return OTHER
