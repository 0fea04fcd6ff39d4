"""lath: fast neural machine translation. Short pieces are predicted in parallel and merged into one sentence.

import lath
mt = lath.load("de-en")
mt.translate(["Guten Morgen.", ""])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lath.errors import UserError

if TYPE_CHECKING:
    from lath.analysis.scores import compare, evaluate
    from lath.config import Recipe, load_recipe
    from lath.decoding.results import Hypothesis
    from lath.distillation import distill
    from lath.preparation import prepare
    from lath.trainer import train
    from lath.translator import Translator, load

__all__ = [
    "Hypothesis", "Recipe", "Translator", "UserError", "compare", "distill", "evaluate", "load", "load_recipe",
    "prepare", "train",
]  # fmt: skip
__version__ = "0.2.0.dev0"

_HOMES = {
    "lath.analysis.scores": ("compare", "evaluate"),
    "lath.config": ("Recipe", "load_recipe"),
    "lath.decoding.results": ("Hypothesis",),
    "lath.distillation": ("distill",),
    "lath.preparation": ("prepare",),
    "lath.trainer": ("train",),
    "lath.translator": ("Translator", "load"),
}


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; `lath --help` and a mistyped command need not wait for it.
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'lath' has no attribute {name!r}")
