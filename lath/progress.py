"""Progress bars on stderr, shown only when stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")


class Bar:
    """A tqdm bar if stderr is a terminal and tqdm is installed; otherwise it does nothing."""

    def __init__(self, what: str, total: int | None, unit: str, done: int = 0, shown: bool = True) -> None:
        self._bar: Any = None
        if shown and sys.stderr is not None and sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:  # lath runs without tqdm
                return
            self._bar = tqdm(desc=what, total=total, initial=done, unit=f" {unit}", dynamic_ncols=True, leave=False)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int = 1) -> None:
        """Add `count` to the items done."""
        if self._bar is not None:
            self._bar.update(count)

    def note(self, text: str) -> None:
        """Show a short text next to the bar."""
        if self._bar is not None:
            self._bar.set_postfix_str(text)


def watched(items: Iterable[Item], what: str, total: int | None, unit: str = "lines") -> Iterator[Item]:
    """Yield the items unchanged and count them in a progress bar."""
    with Bar(what, total, unit) as bar:
        for item in items:
            yield item
            bar.advance()
