"""Twin of `judge` and of what `redraft` does around LAT's pass (decoding/verify.py): one Triton program for each text.

    judge_batch(likeliest, texts, rule)    behind a pass of AT: keep the accepted part, lay out the input of LAT
    extend_batch(ids, sizes, texts)        behind a pass of LAT: what it wrote is the next draft

Both change the texts in place and ask nothing of the host, so they can be part of a CUDA graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lath.decoding.verify import Rule, Text, judge, masks_behind
from lath.engine.top_tokens import power_of_two
from lath.text.vocab import BOS, EOS, MASK, PAD

KEPT, DRAFTED, LIMIT, CHECKS, OUTGROWN, DONE, COUNTS = range(7)
"""Columns of `Texts.counts`, and their number."""


class Texts(NamedTuple):
    """B translations that are being written, in W places; twins of `Text`."""

    lines: Tensor
    """B x W: BOS, the kept tokens, the draft, padding. Behind the kept tokens of a complete text is anything."""
    counts: Tensor
    """B x COUNTS: tokens kept, tokens drafted, the limit, checks; outgrown its width; done, so nothing changes any
    more."""
    totals: Tensor
    """B (float64): AT's log-probability of what is kept."""
    nats: Tensor
    """1 (float64): the rule's, to the last bit."""
    shown: Tensor
    """B x W: what LAT is shown."""
    bias: Tensor
    """B x 1 x 1 x W: the mask of its attention to that."""
    places: Tensor
    """B x W: where its states stand, among B x W, from the last kept token on."""
    asked: Tensor
    """B: how many of them make pieces."""

    @staticmethod
    def allocate(batch: int, width: int, rule: Rule, like: Tensor) -> Texts:
        """Texts that allow nothing yet; `like` has the model's type and device."""
        device = like.device
        lines = torch.full((batch, width), PAD, device=device)
        lines[:, 0] = BOS
        return Texts(
            lines=lines,
            counts=torch.zeros((batch, COUNTS), dtype=torch.long, device=device),
            totals=torch.zeros(batch, dtype=torch.double, device=device),
            nats=torch.tensor([rule.nats], dtype=torch.double, device=device),
            shown=lines.clone(),
            bias=torch.zeros((batch, 1, 1, width), dtype=like.dtype, device=device),
            places=torch.zeros((batch, width), dtype=torch.long, device=device),
            asked=torch.ones(batch, dtype=torch.long, device=device),
        )

    def first(self, size: int) -> Texts:
        """The first `size` texts."""
        return Texts(*(field if field is self.nats else field[:size] for field in self))

    def begin(self, limits: Tensor, outgrown: Tensor, done: Tensor) -> None:
        """Nothing is kept."""
        nothing = torch.zeros_like(limits)
        columns = [nothing, nothing, limits, nothing, outgrown.long(), done.long()]
        self.counts.copy_(torch.stack(columns, dim=1))
        self.totals.zero_()


def judge_batch(likeliest: tuple[Tensor, Tensor], texts: Texts, rule: Rule) -> None:
    """What a check makes of each text; `likeliest` are AT's B x W x n best log-probabilities and tokens."""
    (judge_on_device if texts.lines.is_cuda else judge_plainly)(likeliest, texts, rule)


def extend_batch(ids: Tensor, sizes: Tensor, texts: Texts) -> None:
    """The next draft of each text: the words and the EOS of B sentences, whose first `sizes` tokens count."""
    (extend_on_device if texts.lines.is_cuda else extend_plainly)(ids, sizes, texts)


# ---- by plain functions: what runs where there is no GPU, and the kernels' oracle ---------------------------------


def judge_plainly(likeliest: tuple[Tensor, Tensor], texts: Texts, rule: Rule) -> None:
    """As `judge_batch`, on the CPU."""
    width = texts.lines.shape[1]
    best, ids = (tensor.tolist() for tensor in likeliest)
    lines, counts, totals = texts.lines.tolist(), texts.counts.tolist(), texts.totals.tolist()
    for row, (kept, drafted, limit, checks, _, done) in enumerate(counts):
        masks = 0
        if not done:
            line = lines[row][1 : 1 + kept + drafted]
            before = Text(row, limit, line[:kept], totals[row], line[kept:], 0, checks, [])
            text = judge(before, best[row][kept:], ids[row][kept:], rule)
            kept, masks = len(text.kept), 0 if text.complete else masks_behind(text)
            outgrown = kept + masks >= width
            counts[row] = [kept, 0, limit, text.checks, outgrown, outgrown or text.complete]
            lines[row] = [BOS, *text.kept, *[PAD] * width][:width]
            totals[row] = text.log_probability
        shown = [*lines[row][: 1 + kept], *[MASK] * masks, *[PAD] * width][:width]
        texts.shown[row] = torch.tensor(shown)
        texts.bias[row] = torch.where(texts.shown[row] == PAD, -torch.inf, 0.0)
        texts.places[row] = row * width + (kept + torch.arange(width)).clamp(max=width - 1)
        texts.asked[row] = 1 + masks
    texts.lines.copy_(torch.tensor(lines))
    texts.counts.copy_(torch.tensor(counts))
    texts.totals.copy_(torch.tensor(totals, dtype=torch.double))


def extend_plainly(ids: Tensor, sizes: Tensor, texts: Texts) -> None:
    """As `extend_batch`, on the CPU."""
    width = texts.lines.shape[1]
    rows = zip(texts.counts.tolist(), ids.tolist(), sizes.tolist(), strict=True)
    for row, ((kept, _, limit, checks, _, done), written, size) in enumerate(rows):
        if done:
            continue
        draft = written[1:size][: limit - kept]
        outgrown = kept + len(draft) >= width
        texts.counts[row] = torch.tensor([kept, len(draft), limit, checks, outgrown, outgrown])
        texts.lines[row, 1 + kept :] = torch.tensor([*draft, *[PAD] * width][: width - 1 - kept])


# ---- by Triton --------------------------------------------------------------------------------------------------


def judge_on_device(likeliest: tuple[Tensor, Tensor], texts: Texts, rule: Rule) -> None:
    """As `judge_batch`, in one kernel. The first call with a width compiles: make it before a graph is captured."""
    from lath.engine.kernels import judge_kernel

    best, ids = (tensor.contiguous() for tensor in likeliest)
    batch, width, columns = ids.shape
    judge_kernel[(batch,)](
        best, ids, *texts, min(rule.top, columns), columns, width,
        KEPT=KEPT, DRAFTED=DRAFTED, LIMIT=LIMIT, CHECKS=CHECKS, OUTGROWN=OUTGROWN, DONE=DONE, COUNTS=COUNTS,
        EOS=EOS, MASK=MASK, PAD=PAD, BLOCK=power_of_two(width), num_warps=1,
    )  # fmt: skip


def extend_on_device(ids: Tensor, sizes: Tensor, texts: Texts) -> None:
    """As `extend_batch`, in one kernel."""
    from lath.engine.kernels import extend_kernel

    batch, width = texts.lines.shape
    assert ids.stride(1) == 1, "the tokens of a sentence lie side by side"
    extend_kernel[(batch,)](
        ids, sizes, texts.lines, texts.counts, ids.stride(0), sizes.stride(0), width,
        KEPT=KEPT, DRAFTED=DRAFTED, LIMIT=LIMIT, OUTGROWN=OUTGROWN, DONE=DONE, COUNTS=COUNTS, PAD=PAD,
        BLOCK=power_of_two(width), num_warps=1,
    )  # fmt: skip
