"""How an engine changes a loaded model: it replaces modules in a copy that shares every weight with the original."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def shallow(module: Module) -> Module:
    """A copy that shares everything; its children can be replaced without touching the original."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied


def swapped(module: Module, replace: Callable[[nn.Module], nn.Module | None]) -> Module:
    """A copy in which every descendant that `replace` answers for is replaced; None keeps a module."""
    copied = shallow(module)
    for name, child in module._modules.items():
        if child is not None:
            copied._modules[name] = replace(child) or swapped(child, replace)
    return copied
