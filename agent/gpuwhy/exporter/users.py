"""Names and passwords by basic authentication: a bcrypt check costs a core's 70 ms, so it is paid once."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import importlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum

_REMEMBERED = 256
_WAIT_S = 5.0
_BCRYPT_READS_BYTES = 72  # of a password; what comes after has never counted

# One for the process: a flood of wrong passwords gets one core and no more.
_one_at_a_time = threading.BoundedSemaphore(1)


class Access(Enum):
    """What a request's credentials are worth."""

    GRANTED = "granted"
    DENIED = "denied"
    BUSY = "busy"  # too many checks are waiting


class Users:
    """The users of one configuration: names with bcrypt hashes, both as bytes.

    Each pair of name and password is checked once while it is remembered; right ones are remembered apart
    from wrong ones, so that wrong ones cannot push them out. Raises ImportError without ``bcrypt``.
    """

    def __init__(self, hashes: Mapping[bytes, bytes]) -> None:
        self._hashes = dict(hashes)
        self._bcrypt = importlib.import_module("bcrypt")
        # For unknown names: the costliest, so that they take as long as known ones.
        self._decoy = max(self._hashes.values(), key=lambda each: each[4:6])
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()  # guards the two above

    def same_as(self, other: Users) -> bool:
        """Whether names and hashes are the same."""
        return self._hashes == other._hashes

    def check(self, authorization: str) -> Access:
        """Whether an Authorization header lets its sender in; "" for none."""
        scheme, _, coded = authorization.partition(" ")
        if scheme.lower() != "basic":
            return Access.DENIED
        try:
            name, colon, password = base64.b64decode(coded.strip(), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return Access.DENIED
        if not colon:
            return Access.DENIED
        mark = hmac.digest(self._key, b"%d:%b:%b" % (len(name), name, password), hashlib.sha256)
        return self._remembered(mark) or self._check(mark, name, password)

    def _check(self, mark: bytes, name: bytes, password: bytes) -> Access:
        if not _one_at_a_time.acquire(timeout=_WAIT_S):
            return Access.BUSY
        try:
            # Another request with the same pair may have been checked during the wait.
            known = self._remembered(mark)
            if known is not None:
                return known
            right = self._matches(name, password)
        finally:
            _one_at_a_time.release()
        with self._lock:
            kept = self._right if right else self._wrong
            kept[mark] = None
            if len(kept) > _REMEMBERED:
                kept.popitem(last=False)
        return Access.GRANTED if right else Access.DENIED

    def _remembered(self, mark: bytes) -> Access | None:
        with self._lock:
            if mark in self._right:
                return Access.GRANTED
            return Access.DENIED if mark in self._wrong else None

    def _matches(self, name: bytes, password: bytes) -> bool:
        hashed = self._hashes.get(name)
        expected = hashed or self._decoy
        try:
            made = self._bcrypt.hashpw(password[:_BCRYPT_READS_BYTES], expected)
        except ValueError:  # a password that bcrypt does not take, as with a NUL
            return False
        return hmac.compare_digest(made, expected) and hashed is not None
