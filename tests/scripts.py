"""Scripts of the project that are not part of the package, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


def load_script(path: str) -> ModuleType:
    """A fresh module of a script, for example recipes/more_text.py."""
    spec = importlib.util.spec_from_file_location(Path(path).stem + "_script", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
