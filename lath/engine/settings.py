"""The settings of the verbs that make something for an engine: `lath shortlist` and `lath export`.

The command line shows these defaults in its help, so this file does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ShortlistSettings:
    """The size of a lexical shortlist (`lath shortlist`)."""

    near: int = 100
    """Target tokens for each source token."""
    frequent: int = 1000
    """Most frequent target tokens, allowed in every sentence."""


@dataclass(frozen=True)
class ExportSettings:
    """The format of an exported model (`lath export`)."""

    to: str = "ctranslate2"
    """One of `export.TARGETS`."""
    quantization: str = "float32"
    """One of `export.QUANTIZATIONS`."""
