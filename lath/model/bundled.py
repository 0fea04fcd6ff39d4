"""The models that come with lath, by name.

find_model("de-en")             # the shipped model, unless there is a file or directory of that name
find_model("runs/demo/model")   # a path is a path

They lie in the folder `models`: inside the package where it was installed from a wheel, beside it in a checkout.
"""

from __future__ import annotations

import re
from pathlib import Path

from lath.errors import UserError, did_you_mean

DEFAULT_MODEL = "de-en"
"""What `lath translate` uses when no model is named."""
PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "models", PACKAGE.parent / "models")
"""Where shipped models may lie; the first that exists counts."""
NAME = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*")


def find_model(name: str | Path) -> Path:
    """The directory that a name or path stands for; whether it holds a model is for its reader to say."""
    path = Path(name)
    if path.exists() or not NAME.fullmatch(str(name)):
        return path
    shipped = shipped_models()
    if str(name) in shipped:
        return _folder() / name
    known = f"shipped: {', '.join(shipped)}" if shipped else "no models are shipped with this installation"
    raise UserError(
        f"{name}: no such file or directory, and no shipped model{did_you_mean(str(name), shipped)} ({known}); "
        f"name a model of your own by its directory, for example runs/demo/model"
    )


def default_model() -> Path:
    """The shipped model that is used when none is named, whatever the current directory holds."""
    if DEFAULT_MODEL not in shipped_models():
        raise UserError(
            f"no model is named, and the default, {DEFAULT_MODEL}, is not shipped with this installation; "
            f"name a model directory: lath translate MODEL FILE"
        )
    return _folder() / DEFAULT_MODEL


def shipped_models() -> list[str]:
    """The names of the models that are there."""
    folder = _folder()
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _folder() -> Path:
    return next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[-1])
