"""Who may ask, and how often: keys and rates. Values in, values out; the clock is passed in."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Iterable
from pathlib import Path

from lath.errors import UserError
from lath.files import read_lines

MOST_CLIENTS = 10_000
"""Clients whose requests are counted; the one that asked longest ago is forgotten first."""


def read_keys(path: Path) -> Keys:
    """The keys of a file, one a line; blank lines and those that start with # are none."""
    keys = [line.strip() for line in read_lines(path)]
    keys = [key for key in keys if key and not key.startswith("#")]
    if not keys:
        raise UserError(f"{path}: no key in it; write one key on each line")
    return Keys(keys)


class Keys:
    """API keys, of which only digests are kept."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Without keys everybody may ask."""
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, key: str) -> str | None:
        """A name for the owner of a key, or None if it is wrong; the time it takes says nothing about the keys."""
        given = _digest(key)
        equal = [hmac.compare_digest(given, digest) for digest in self._digests]
        return given.hex()[:16] if any(equal) else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class Rates:
    """How many requests each client may still make: so many at once, and as many again in every minute."""

    def __init__(self, per_minute: int) -> None:
        """0 is no limit."""
        self.per_minute = per_minute
        self._left: dict[str, tuple[float, float]] = {}
        """Requests left, and when that was so."""

    def wait(self, client: str, now: float) -> int:
        """Count a request: 0 if it may be made, otherwise the seconds until one may.

        >>> rates = Rates(2)
        >>> [rates.wait("a", 0.0), rates.wait("a", 0.0), rates.wait("a", 0.0), rates.wait("b", 0.0)]
        [0, 0, 30, 0]
        """
        if not self.per_minute:
            return 0
        left, then = self._left.pop(client, (float(self.per_minute), now))
        left = min(self.per_minute, left + (now - then) * self.per_minute / 60)
        allowed = left >= 1
        self._left[client] = (left - 1 if allowed else left, now)
        if len(self._left) > MOST_CLIENTS:
            del self._left[next(iter(self._left))]
        return 0 if allowed else math.ceil((1 - left) * 60 / self.per_minute)
