"""Texts in the middle of being written, for the kernels of verify_kernel.py and the plain functions beside them."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from lath.decoding.verify import Rule
from lath.engine.verify_kernel import (
    DONE,
    DRAFTED,
    KEPT,
    OUTGROWN,
    Texts,
    extend_on_device,
    extend_plainly,
    judge_on_device,
    judge_plainly,
)
from lath.text.vocab import EOS, PAD

RULES = (Rule(1, 0.0), Rule(3, 0.5), Rule(3, 2.0), Rule(6, 0.30000001), Rule(2, 9.0))


def texts(draw: random.Random, batch: int, width: int, rule: Rule) -> Texts:
    """Some have room left, others grow out of it; one is done."""
    made = Texts.allocate(batch, width, rule, torch.zeros(0))
    for row in range(batch):
        kept = draw.randrange(width - 1)
        drafted = draw.randint(0 if kept else 1, width - 1 - kept)
        written = [draw.randrange(6, 11) for _ in range(kept + drafted)]
        if drafted and draw.random() < 0.6:
            written[-1] = EOS
        limit = kept + max(drafted, 1) + draw.choice((0, 0, 1, 5, width))
        made.lines[row, 1 : 1 + len(written)] = torch.tensor(written, dtype=torch.long)
        made.counts[row] = torch.tensor([kept, drafted, limit, row, 0, int(draw.random() < 0.1)])
        made.totals[row] = -draw.random()
    return made


def likeliest(draw: random.Random, batch: int, width: int, count: int) -> tuple[Tensor, Tensor]:
    """Scores in order, with ties; few tokens, so that many are those of a draft."""
    ids = [[draw.sample([*range(6, 11), EOS], count) for _ in range(width)] for _ in range(batch)]
    steps = torch.tensor(
        [[[draw.choice((0.0, 0.25, 0.3, 1.0)) for _ in range(count)] for _ in range(width)] for _ in range(batch)]
    )
    return -steps.cumsum(dim=2), torch.tensor(ids)


def moved(fields: Texts, device: str) -> Texts:
    return Texts(*(field.clone().to(device) for field in fields))


def compared(one: Texts, other: Texts) -> list[str]:
    """What of two results differs, of all that somebody reads."""
    wrong = []
    found = Texts(*(field.cpu() for field in other))
    for row, counts in enumerate(one.counts.tolist()):
        flags = found.counts[row].tolist()
        if [flags[OUTGROWN], flags[DONE]] != [counts[OUTGROWN], counts[DONE]]:
            wrong.append(f"row {row}: flags {flags}, expected {counts}")
        if counts[OUTGROWN]:
            continue
        length = 1 + counts[KEPT] + counts[DRAFTED]
        same = [
            flags == counts,
            torch.equal(found.lines[row, :length], one.lines[row, :length]),
            abs(float(found.totals[row] - one.totals[row])) < 1e-12,
        ]
        if not counts[DONE]:
            asked = int(one.asked[row])
            same += [
                torch.equal(found.shown[row], one.shown[row]),
                torch.equal(found.bias[row], one.bias[row]),
                torch.equal(found.places[row], one.places[row]),
                int(found.asked[row]) == asked,
            ]
        if not all(same):
            wrong.append(f"row {row}: {same}, {flags}, expected {counts}, {one.lines[row]}, found {found.lines[row]}")
    return wrong


def differences(device: str, seeds: int = 40) -> list[str]:
    """Where the kernels differ from the plain functions."""
    wrong = []
    for seed in range(seeds):
        draw = random.Random(seed)
        rule = RULES[seed % len(RULES)]
        batch, width = draw.choice((1, 4)), draw.choice((8, 11, 40))
        before, found = texts(draw, batch, width, rule), likeliest(draw, batch, width, max(2, rule.top))
        plain, fast = moved(before, "cpu"), moved(before, device)
        judge_plainly(found, plain, rule)
        judge_on_device((found[0].to(device), found[1].to(device)), fast, rule)
        wrong += [f"judge {seed}: {line}" for line in compared(plain, fast)]

        # Both go on from what the plain function has left; those that are not done are drafted again.
        fast = moved(plain, device)
        size = width * 3 + 2
        ids = torch.tensor([[draw.randrange(6, 11) for _ in range(size + 3)] for _ in range(batch)])[:, 3:]
        sizes = torch.tensor([draw.randint(2, size if draw.random() < 0.3 else width // 2) for _ in range(batch)])
        ids[torch.arange(size) >= sizes[:, None]] = PAD
        extend_plainly(ids, sizes, plain)
        extend_on_device(ids.to(device), sizes.to(device), fast)
        wrong += [f"extend {seed}: {line}" for line in compared(plain, fast)]
        open_rows = plain.counts[:, DONE] == 0
        if not torch.equal(fast.lines.cpu()[open_rows], plain.lines[open_rows]):
            wrong.append(f"extend {seed}: padding")
    return wrong
