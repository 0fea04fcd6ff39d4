"""The one exception a user meets, and the "did you mean" that goes with it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake the user can mend: the message says what, where, and what to do.

    The command line prints it as one line and exits with 2; no traceback.
    """


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint to append to an "unknown X" message; empty when nothing is near.

    >>> did_you_mean("stpes", ["steps", "seed"])
    " (did you mean 'steps'?)"
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""
