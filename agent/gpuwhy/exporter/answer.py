"""What a path answers, before HTTP gets hold of it."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, a body with its type, and the headers that this path alone has."""

    status: HTTPStatus
    content_type: str
    content: bytes
    headers: tuple[tuple[str, str], ...] = ()


def text(status: HTTPStatus, said: str) -> Answer:
    """A line of plain text."""
    return Answer(status, TEXT, said.encode())
