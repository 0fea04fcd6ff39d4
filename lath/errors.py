"""The exception for mistakes of the user, the hints in its messages, and the exception for signals."""

from __future__ import annotations

import difflib
import reprlib
import signal
from collections.abc import Iterable, Sequence


class UserError(Exception):
    """A mistake that the user can fix; the message names the problem, the place and the remedy.

    The command line prints it on one line, without a traceback, and exits with code 2.
    """


class Interrupted(KeyboardInterrupt):
    """A signal has ended the work; the message says what was saved."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.number = number


def exit_code(error: KeyboardInterrupt | UserError) -> int:
    """2 for a mistake of the user, and by convention 128 plus the number of the signal: Ctrl-C 130, SIGTERM 143.

    >>> exit_code(KeyboardInterrupt()), exit_code(Interrupted("terminated", signal.SIGTERM))
    (130, 143)
    """
    return 2 if isinstance(error, UserError) else 128 + getattr(error, "number", signal.SIGINT)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint to append to an "unknown X" message; empty when no known word is similar.

    >>> did_you_mean("stpes", ["steps", "seed"])
    " (did you mean 'steps'?)"
    """
    similar = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {similar[0]!r}?)" if similar else ""


def shown(value: object) -> str:
    """A value as a message shows it: short, whatever it is.

    >>> shown("a" * 1000), shown(10**5000)
    ("'aaaaaaaaaaaa...aaaaaaaaaaaaa'", 'a huge number')
    """
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to write more than 4300 digits
        return "a huge number"


def one_of(names: Sequence[str]) -> str:
    """The names as a list to choose from.

    >>> one_of(["auto", "plain", "recorded"])
    'auto, plain or recorded'
    """
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
