"""A recipe for one's own text: `lath init`.

write_starter(Path("mine"), {"source_language": "fr"})  ->  mine/recipe.toml
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from lath.config import BUNDLED_RECIPES, load_recipe, to_tree
from lath.errors import UserError
from lath.files import whole_file

STARTER = "starter.toml"
NAME = "recipe.toml"


def write_starter(directory: Path, given: Mapping[str, str | None]) -> Path:
    """Write the starter recipe, with `given` settings of the section data, and return its path.

    A file that is not given is named after its split and language, and is in the directory.
    """
    path = directory / NAME
    if os.path.lexists(path):
        raise UserError(f"{path}: exists already; name another directory, or remove it")
    starter = BUNDLED_RECIPES / STARTER
    data = to_tree(load_recipe(starter).data) | {key: value for key, value in given.items() if value}
    for split in ("train", "valid"):
        for side in ("source", "target"):
            key = f"{split}_{side}"
            data[key] = given.get(key) or str(directory / f"{split}.{data[f'{side}_language']}")

    def changed(line: re.Match[str]) -> str:
        return f"{line[1]} = {json.dumps(data[line[1]], ensure_ascii=False)}" if line[1] in data else line[0]

    text = re.sub(r'^(\w+) = ".*?"', changed, starter.read_text(encoding="utf-8"), flags=re.MULTILINE)
    with whole_file(path) as partial:
        partial.write_text(text.replace(NAME, shlex.quote(str(path))), encoding="utf-8")
    return path
