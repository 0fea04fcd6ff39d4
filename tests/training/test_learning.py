"""Each kind learns a language from scratch, through the whole pipeline: text, vocabulary, training, translation.

The seconds go into training; five tests, so that two workers can share them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import toy

import lath

STEPS = {"AT": 300, "CMLM": 500, "LAT": 650}


def trained(folder: Path, kind: str, language: toy.Language) -> lath.Translator:
    return lath.load(toy.train_toy(folder, toy.toy_recipe(folder, kind, language, steps=STEPS[kind])), device="cpu")


def held_out(folder: Path, language: toy.Language) -> tuple[list[str], list[str]]:
    source, target = toy.write_pairs(folder, "test", language, 200, seed=3)
    return source.read_text().splitlines(), target.read_text().splitlines()


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_a_plain_language_is_learnt_to_over_95_percent_exact_sentences(tmp_path: Path, kind: str) -> None:
    mt = trained(tmp_path, kind, toy.plain_pairs)
    source, target = held_out(tmp_path, toy.plain_pairs)
    for settings in [{"beam": 1}, {"beam": 5}] if kind == "AT" else [{"iterations": 1}, {"iterations": 4}]:
        exact = sum(h == t for h, t in zip(mt.translate(source, **settings), target, strict=True))
        assert exact > 0.95 * len(source), f"{kind} {settings}: {exact} of {len(source)} right"


def test_lat_in_one_pass_clearly_beats_cmlm_where_every_phrase_has_two_renderings(tmp_path: Path) -> None:
    right: dict[str, int] = {}
    for kind in ("CMLM", "LAT"):
        folder = tmp_path / kind
        folder.mkdir()
        mt = trained(folder, kind, toy.ambiguous_pairs)
        source, _ = held_out(folder, toy.ambiguous_pairs)
        hypotheses = mt.translate(source, iterations=1)
        right[kind] = sum(toy.ambiguous_right(s, h) for s, h in zip(source, hypotheses, strict=True))
    assert right["LAT"] > right["CMLM"] + 40, f"of 200 sentences right: {right}"
