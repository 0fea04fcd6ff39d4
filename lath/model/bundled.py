"""The bundled models, by name.

find_model("de-en")             # the bundled model, unless a file or directory has that name
find_model("runs/demo/model")   # a path

They are in the folder `models`: inside the package if lath was installed from a wheel, next to it in a checkout.
"""

from __future__ import annotations

import re
from pathlib import Path

from lath.errors import UserError, did_you_mean

DEFAULT_MODEL = "de-en"
"""The model of `lath translate` if none is named."""
PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "models", PACKAGE.parent / "models")
"""Where bundled models may be; the first folder that exists is used."""
NAME = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*")


def find_model(name: str | Path) -> Path:
    """The directory of a bundled model, or the path as given; does not check that it holds a model."""
    path = Path(name)
    if path.exists() or not NAME.fullmatch(str(name)):
        return path
    bundled = bundled_models()
    if str(name) in bundled:
        return _folder() / name
    known = f"bundled: {', '.join(bundled)}" if bundled else "this installation has no bundled models"
    raise UserError(
        f"{name}: no such file or directory, and no bundled model{did_you_mean(str(name), bundled)} ({known}); "
        f"give the path of a model directory, for example runs/demo/model"
    )


def default_model() -> Path:
    """The bundled model that is used if none is named, regardless of the current directory."""
    if DEFAULT_MODEL not in bundled_models():
        raise UserError(
            f"no model given, and this installation does not have the default model {DEFAULT_MODEL}; "
            f"name a model directory: lath translate MODEL FILE"
        )
    return _folder() / DEFAULT_MODEL


def bundled_models() -> list[str]:
    """The names of the bundled models."""
    folder = _folder()
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _folder() -> Path:
    return next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[-1])
