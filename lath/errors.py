"""The exception for mistakes of the user, and its "did you mean" hint."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can fix; the message names the problem, the place and the remedy.

    The command line prints it on one line, without a traceback, and exits with code 2.
    """


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint to append to an "unknown X" message; empty when no known word is similar.

    >>> did_you_mean("stpes", ["steps", "seed"])
    " (did you mean 'steps'?)"
    """
    similar = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {similar[0]!r}?)" if similar else ""
