"""lath: fast neural machine translation. Short pieces predicted in parallel, merged into one sentence.

import lath
mt = lath.load("runs/demo/model")
mt.translate(["Guten Morgen.", ""])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lath.errors import UserError

if TYPE_CHECKING:
    from lath.config import Recipe, load_recipe
    from lath.trainer import train
    from lath.translator import Hypothesis, Translator, load

__all__ = ["Hypothesis", "Recipe", "Translator", "UserError", "load", "load_recipe", "train"]
__version__ = "0.1.0"

_MODULES = {
    "Hypothesis": "lath.translator",
    "Recipe": "lath.config",
    "Translator": "lath.translator",
    "load": "lath.translator",
    "load_recipe": "lath.config",
    "train": "lath.trainer",
}


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; `lath --help` and a mistyped command need not wait for it.
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'lath' has no attribute {name!r}")
