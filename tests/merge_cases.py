"""Batches of pieces for the fast mergers, and what the plain one makes of them."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lath.config import RULE_SETS, MergeRules
from lath.decoding.masks import mask_count
from lath.decoding.merge import merge_pieces, next_input, wrap
from lath.decoding.pieces import MergeStep
from lath.engine.merge_kernel import MergedBatch
from lath.text.vocab import BOS, EOS, MASK, PAD

Merger = Callable[[Tensor, Tensor, Tensor, MergeStep], MergedBatch]
Pieces = list[list[int]]
Scores = list[list[float]]

JUNK = 77
"""Stands behind the pieces of the shorter sentences; nobody may read it."""
IDS = {"bos": BOS, "eos": EOS, "mask": MASK}
OFFICIAL, PAPER = RULE_SETS["official"], RULE_SETS["paper"]
EVERY_SWITCH = (
    OFFICIAL,
    PAPER,
    replace(OFFICIAL, concatenate_exact=False, band=0.1, slot_after_eos=True),
    replace(OFFICIAL, collapse_repeats=False, reach_input_length=True, band=1.0),
    replace(PAPER, edge_rules=False, empty_probability=0.6, band=0.0),
    replace(PAPER, collapse_repeats=True, reach_input_length=False, band=2.5, slot_after_eos=True),
)
"""Both rule sets, and each rule at least once at another value."""


@dataclass(frozen=True)
class Case:
    """A batch of sentences, each with its pieces."""

    name: str
    pieces: list[Pieces]
    scores: list[Scores]
    step: MergeStep
    dtype: torch.dtype = torch.float32

    def tensors(self, extra: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, scores, lengths; padded `extra` pieces wider than need be."""
        width, length = max(map(len, self.pieces)) + extra, max(len(p[0]) for p in self.pieces if p)
        tokens = torch.full((len(self.pieces), width, length), JUNK)
        scores = torch.zeros(len(self.pieces), width, length, dtype=self.dtype)
        for row, (pieces, piece_scores) in enumerate(zip(self.pieces, self.scores, strict=True)):
            if pieces:
                tokens[row, : len(pieces)] = torch.tensor(pieces)
                scores[row, : len(pieces)] = torch.tensor(piece_scores, dtype=self.dtype)
        return tokens, scores, torch.tensor([len(p) for p in self.pieces])


@dataclass(frozen=True)
class Expected:
    """What comes out for one sentence."""

    ids: list[int]
    scores: list[float]
    next_ids: list[int]


def plain(case: Case) -> list[Expected]:
    """What `lath/decoding/merge.py` makes of each sentence."""
    _, scores, lengths = case.tensors()
    step, expected = case.step, []
    for row, pieces in enumerate(case.pieces):
        merged = merge_pieces(pieces, scores[row, : lengths[row]].double().tolist(), step.rules)
        sentence = wrap(merged, len(pieces), bos=BOS, eos=EOS, mask=MASK)
        following: list[int] = []
        if step.iteration < step.iterations:
            masks = mask_count(len(sentence.ids), step.iteration, step.iterations)
            following = next_input(sentence, masks, len(pieces), step.rules, mask=MASK).ids
        if len(following) > step.limit:
            following = [*following[: step.limit - 1], EOS]
        expected.append(Expected(sentence.ids, sentence.scores, following))
    return expected


def told(merged: MergedBatch) -> list[Expected]:
    """What a fast merger's tensors say of each sentence; behind it must be nothing but padding."""
    assert (merged.ids.shape[0], merged.ids.shape) == (len(merged.lengths), merged.scores.shape)
    results = []
    columns = (merged.ids, merged.scores, merged.lengths, merged.next_ids, merged.next_lengths)
    for ids, scores, length, next_ids, next_length in zip(*(c.tolist() for c in columns), strict=True):
        assert set(ids[length:]) <= {PAD}
        assert not any(scores[length:])
        assert set(next_ids[next_length:]) <= {PAD}
        results.append(Expected(ids[:length], scores[:length], next_ids[:next_length]))
    return results


def differences(case: Case, merger: Merger, expected: list[Expected] | None = None, extra: int = 0) -> list[str]:
    """Where a merger differs from what is expected: from the plain one, unless something else is given."""
    found = told(merger(*case.tensors(extra), case.step))
    return [
        f"{case.name}, sentence {row}: {one}, expected {other}; {case.step}; {case.pieces[row]}, {case.scores[row]}"
        for row, (one, other) in enumerate(zip(found, expected or plain(case), strict=True))
        if one != other
    ]


# ---- builders -------------------------------------------------------------------------------------------------


def confusing(rng: random.Random, count: int, length: int) -> tuple[Pieces, Scores]:
    """Few different ids and scores: overlaps, repeats and ties everywhere, specials anywhere."""
    ids = [*range(10, 10 + rng.randint(2, 6)), *rng.sample([BOS, EOS, MASK, PAD], rng.randint(0, 3))]
    scores = [-0.125, -0.5, -1.0, -1.375, -2.0]
    if rng.random() < 0.5:
        scores = [-rng.expovariate(1.0) for _ in range(20)]
    return (
        [rng.choices(ids, k=length) for _ in range(count)],
        [rng.choices(scores, k=length) for _ in range(count)],
    )


def noisy_truth(rng: random.Random, count: int, length: int) -> tuple[Pieces, Scores]:
    """Windows of one sentence, as a model with some errors would write them."""
    noise, words = rng.choice([0.0, 0.05, 0.15, 0.4]), range(10, rng.choice([16, 1000]))
    target = [BOS, *rng.choices(words, k=max(count - 2, 0)), *[EOS] * (2 * length + 2)]
    pieces = []
    for start in range(count):
        first = max(0, start + (rng.choice([-1, 1]) if rng.random() < noise else 0))
        piece = [rng.choice(words) if rng.random() < noise else id for id in target[first : first + length + 1]]
        if rng.random() < noise:  # said twice
            place = rng.randrange(length)
            piece.insert(place, piece[place])
        elif rng.random() < noise:  # left out
            del piece[rng.randrange(length)]
        pieces.append(piece[:length])
    return pieces, [[-rng.expovariate(2.0) for _ in range(length)] for _ in range(count)]


def random_case(seed: int, most_sentences: int = 6, most_pieces: int = 12, longest: int = 6) -> Case:
    """A ragged batch under any of the rules, at any pass; sometimes cut."""
    rng = random.Random(seed)
    build, length = rng.choice([confusing, noisy_truth]), rng.randint(2, longest)
    counts = [rng.randint(1, most_pieces) for _ in range(rng.randint(1, most_sentences))]
    made = [build(rng, count, length) for count in counts]
    iterations = rng.randint(1, 5)
    step = MergeStep(
        rng.choice(EVERY_SWITCH), rng.randint(1, iterations), iterations, rng.choice([2, 9, 40, longest * most_pieces])
    )
    return Case(f"random {seed}", [p for p, _ in made], [s for _, s in made], step)


def recorded_cases(group: str = "", shares: tuple[str, ...] = ()) -> Iterator[tuple[Case, list[Expected]]]:
    """The authors' program's outputs, a batch for each piece length, share of tokens kept and band.

    One `group` of the cases, and some `shares`, if they are named. Left out are entries that hang on float rounding,
    and those where the authors' floats keep another number of tokens than the exact share.
    """
    batches: dict[tuple[int, Fraction, float], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for case in recorded(group):
        length = len(case["final_output"])
        for entry in case["intermediate"]:
            share = Fraction(entry["keep_rate"]).limit_denominator(20)
            exact = int(entry["keep_rate"] * length) == math.floor(share * length)
            if exact and not entry.get("float_tie_sensitive") and (not shares or str(share) in shares):
                batches.setdefault((case["K"], share, entry["fix_len_range"]), []).append((case, entry))
    for (length, share, band), pairs in batches.items():
        rules = replace(OFFICIAL, slot_after_eos=True, band=band)
        step = MergeStep(rules, share.numerator, share.denominator, 400)
        name, cases = f"recorded K{length} {share} {band}", [case for case, _ in pairs]
        yield (
            _recorded_case(name, cases, step),
            [Expected(c["wrapped"]["tokens"], c["wrapped"]["scores"], entry["output"]) for c, entry in pairs],
        )


def recorded_merges(rules: MergeRules, group: str = "", iterations: tuple[int, ...] = (1, 2, 3, 4)) -> list[Case]:
    """The pieces of the recorded cases under any rules, for the comparison with the plain merger."""
    by_length: dict[int, list[dict[str, Any]]] = {}
    for case in recorded(group):
        by_length.setdefault(case["K"], []).append(case)
    return [
        _recorded_case(f"K{length}, pass {iteration}", cases, MergeStep(rules, iteration, 4, 400))
        for length, cases in by_length.items()
        for iteration in iterations
    ]


def recorded(group: str) -> list[dict[str, Any]]:
    """The recorded cases that use no switch of the authors' own, and do not hang on float rounding."""
    folder = Path(os.environ.get("LATH_CASES") or Path(__file__).parent / "cases")
    trees = [json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))]
    cases = [
        case
        for tree in trees
        if tree.get("format", {}).get("ids", IDS).items() >= IDS.items()
        for case in tree.get("cases", [])
        if "pieces" in case
    ]
    usable = [case for case in cases if not case.get("overrides") and not case.get("float_tie_sensitive")]
    return [case for case in usable if group in ("", case.get("group"))]


def _recorded_case(name: str, cases: list[dict[str, Any]], step: MergeStep) -> Case:
    return Case(name, [case["pieces"] for case in cases], [case["scores"] for case in cases], step, torch.float64)
