"""The kinds of request that are told apart; what each needs from its body is in `paths`."""

from __future__ import annotations

import enum


class RequestKind(enum.IntEnum):
    """What an HTTP path asks a model server for."""

    CHAT = 1
    COMPLETIONS = 2
    RESPONSES = 3
    EMBEDDINGS = 4
    RERANK = 5
    IMAGES = 6
    AUDIO = 7
    MESSAGES = 8
    GENERATE = 9
    GRPC = 10
    OTHER = 11
