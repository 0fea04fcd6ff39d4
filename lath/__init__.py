"""lath: fast neural machine translation. Short pieces predicted in parallel, merged into one sentence.

import lath
mt = lath.load("runs/demo/model")
mt.translate(["Guten Morgen.", ""])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lath.errors import UserError

if TYPE_CHECKING:
    from lath.translator import Hypothesis, Translator, load

__all__ = ["Hypothesis", "Translator", "UserError", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; `lath --help` and a mistyped command need not wait for it.
    if name in ("Hypothesis", "Translator", "load"):
        import lath.translator

        return getattr(lath.translator, name)
    raise AttributeError(f"module 'lath' has no attribute {name!r}")
