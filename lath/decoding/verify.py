"""A teacher that checks: LAT drafts a translation, and AT checks the whole draft in one parallel pass.

Speculative decoding with a parallel draft. AT alone needs a pass for each token; given a draft, a single pass gives
its opinion of every token. Three modes (`decode.verify`):

    rerank    LAT writes a translation of each length candidate; AT scores them all at once, and the best wins
    relaxed   a round: AT accepts the draft up to the first token that is not among its best few, or is much less
              likely than its best, and writes its own token there; LAT drafts the rest again, seeing all of this
    exact     the same, but only AT's best token is accepted: the translation is that of greedy AT, token for token

A round writes at least one token, so there are at most as many as the length limit of a beam search. Each sentence has
its own limit and padding is masked, so a result does not depend on the batch; finished sentences leave it.

Ties: a pass over a draft and a search that keeps its past round differently. Where AT's two best tokens are equally
likely up to rounding (in fp32 about 1e-5 nats), `exact` may choose the other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lath.config import DecodeSettings
from lath.decoding.lengths import best_candidates, length_limits, repeat_rows
from lath.decoding.masks import only_at
from lath.decoding.merge import merge_pieces
from lath.decoding.pieces import MergeRule, MergeStep, decode_pieces, merge_row, write_candidates
from lath.decoding.results import Check, Decoded, Pass
from lath.model.network import AT, LAT, NEVER_WRITTEN_AFTER_BEGIN, Memory, Pieces
from lath.model.padding import pad
from lath.text.vocab import BOS, EOS, MASK, PAD


class VerifyingDecoder:
    """LAT, checked by AT as `decode.verify` says, in plain PyTorch."""

    engine, has_verifier = "plain", True

    def __init__(self, student: LAT, verifier: AT, merge: MergeRule = merge_pieces) -> None:
        """Both on one device, with the same vocabularies; `merge` is how LAT merges pieces."""
        self.student, self.verifier, self.merge = student, verifier, merge

    @torch.inference_mode()
    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """On the models' device."""
        source = source.to(self.student.body.target_positions.weight.device)
        if not settings.verify:
            return decode_pieces(self.student, source, settings, trace, self.merge)
        memory, lengths = self.student.encode(source)
        candidates = write_candidates(self.student, memory, lengths, settings, trace, self.merge)
        checked = self.verifier.encode(source)
        if settings.verify == "rerank":
            scored = score_candidates(self.verifier, checked, candidates, settings)
            return best_candidates(scored, settings.length_candidates)
        # Of two tables of positions the shorter one ends a text; AT alone could go on in a longer one.
        limits = length_limits(source, min(m.settings.max_positions for m in (self.student, self.verifier)))
        drafts = best_candidates(candidates, settings.length_candidates)
        texts = [Text.begin(row, *each) for row, each in enumerate(zip(limits.tolist(), drafts, strict=True))]
        for text in self._finish(texts, memory, checked, settings, trace):
            drafts[text.row] = text.decoded(settings.length_penalty)
        return drafts

    def _finish(
        self, texts: list[Text], memory: Memory, checked: Memory, settings: DecodeSettings, trace: bool
    ) -> list[Text]:
        """Check and draft again until every text is complete."""
        rule, complete = Rule.of(settings), []
        step = MergeStep(settings.merge_rules, 1, 1, self.student.settings.max_positions)
        while texts:
            texts = check(self.verifier, checked.select(_rows(texts, memory)), texts, rule)
            complete += [text for text in texts if text.complete]
            texts = [text for text in texts if not text.complete]
            if texts:
                texts = redraft(self.student, memory.select(_rows(texts, memory)), texts, step, self.merge, trace)
        return complete


class Text(NamedTuple):
    """A translation that is being written."""

    row: int
    """Its sentence's row in the batch."""
    limit: int
    """Tokens that it may have; EOS counts."""
    kept: list[int]
    """Accepted tokens without BOS; with EOS when the text has come to its end."""
    log_probability: float
    """AT's, of what is kept."""
    draft: list[int]
    """What LAT proposes for the rest. After a check: what its last draft had behind the place that was reached."""
    iterations: int
    """LAT's passes."""
    checks: int
    """AT's passes."""
    passes: list[Pass]

    @staticmethod
    def begin(row: int, limit: int, draft: Decoded) -> Text:
        """Nothing is kept yet."""
        return Text(row, limit, [], 0.0, [*draft.ids, EOS][:limit], draft.iterations, 0, draft.passes)

    @property
    def complete(self) -> bool:
        """Whether nothing may follow."""
        return self.kept[-1:] == [EOS] or len(self.kept) == self.limit

    def decoded(self, length_penalty: float) -> Decoded:
        """The result, scored as a beam search scores its hypotheses."""
        score = self.log_probability / len(self.kept) ** length_penalty
        return Decoded([id for id in self.kept if id != EOS], score, self.iterations, self.passes, self.checks)


def _rows(texts: list[Text], memory: Memory) -> Tensor:
    return torch.tensor([text.row for text in texts], device=memory.visible.device)


# ---- AT checks --------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """Which tokens of a draft AT accepts."""

    top: int
    """Among so many of its likeliest, ..."""
    nats: float
    """... and at most so much less likely than the likeliest."""

    @staticmethod
    def of(settings: DecodeSettings) -> Rule:
        """The rule of a mode; `exact` accepts the likeliest token alone."""
        return Rule(1, 0.0) if settings.verify == "exact" else Rule(settings.verify_top, settings.verify_nats)


def check(verifier: AT, memory: Memory, texts: list[Text], rule: Rule) -> list[Text]:
    """Keep the accepted part of each draft and AT's token behind it: one pass over all of the texts."""
    inputs = [[BOS, *text.kept, *(id for id in text.draft if id != EOS)] for text in texts]
    target = pad(inputs).to(memory.visible.device)
    asked = (target != PAD) & _from_last_kept(texts, target)
    count = max(2, rule.top)  # 2 as in a greedy search, so that equal numbers come in the same order
    best, likeliest = only_at(
        asked,
        verifier.decode(target, memory)[0],
        lambda states: verifier.body.top_tokens(states, NEVER_WRITTEN_AFTER_BEGIN, count),
    )
    rows = zip(texts, best.tolist(), likeliest.tolist(), strict=True)
    return [judge(text, values[len(text.kept) :], ids[len(text.kept) :], rule) for text, values, ids in rows]


def judge(text: Text, best: Sequence[list[float]], likeliest: Sequence[list[int]], rule: Rule) -> Text:
    """The text after a check; `best` and `likeliest` are AT's best log-probabilities and tokens from its draft on."""
    total, accepted = text.log_probability, 0
    for token, values, ids in zip(text.draft, best, likeliest, strict=False):
        place = ids.index(token) if token in ids[: rule.top] else None
        if place is None or values[place] < values[0] - rule.nats:
            break
        total, accepted = total + values[place], accepted + 1
    kept = [*text.kept, *text.draft[:accepted]]
    correction = None
    if kept[-1:] != [EOS] and len(kept) < text.limit:
        correction = likeliest[accepted][0]
        kept, total = [*kept, correction], total + best[accepted][0]
    if text.passes:
        text.passes[-1].check = Check(accepted, correction)
    rest = text.draft[accepted:] if correction is None else behind(text.draft[accepted:], correction)
    return text._replace(kept=kept, log_probability=total, draft=rest, checks=text.checks + 1)


def behind(rest: list[int], correction: int) -> list[int]:
    """What of a draft follows a correction: all behind the same token, or else behind the token in its place."""
    return rest[rest.index(correction) + 1 :] if correction in rest else rest[1:]


def score_candidates(
    verifier: AT, memory: Memory, candidates: list[Decoded], settings: DecodeSettings
) -> list[Decoded]:
    """The same candidates with AT's scores, as a beam search scores its hypotheses: one pass over all of them.

    What has outgrown the table of positions has the worst score there can be.
    """
    room = verifier.settings.max_positions
    target = pad([[BOS, *candidate.ids][:room] for candidate in candidates]).to(memory.visible.device)
    gold = pad([[*candidate.ids, EOS][:room] for candidate in candidates]).to(target.device)
    there = target != PAD
    states = verifier.decode(target, repeat_rows(memory, settings.length_candidates))[0][there]
    logits = verifier.body.logits(states).float()
    of_gold = logits.gather(1, gold[there][:, None])[:, 0] - logits.logsumexp(dim=1)
    sums = torch.zeros(len(target), dtype=torch.double, device=target.device)
    sums.index_add_(0, there.nonzero()[:, 0], of_gold.double())
    lengths = [len(candidate.ids) + 1 for candidate in candidates]
    scores = [
        total / length**settings.length_penalty if length <= room else -torch.inf
        for total, length in zip(sums.tolist(), lengths, strict=True)
    ]
    return [
        Decoded(candidate.ids, score, candidate.iterations, candidate.passes, checks=1)
        for candidate, score in zip(candidates, scores, strict=True)
    ]


# ---- LAT drafts again -------------------------------------------------------------------------------------------


def masks_behind(text: Text) -> int:
    """As many as the last draft had tokens there, so far as they fit."""
    return max(1, min(len(text.draft), text.limit - len(text.kept)))


def redraft(
    student: LAT, memory: Memory, texts: list[Text], step: MergeStep, merge: MergeRule, trace: bool
) -> list[Text]:
    """A new draft of what follows the kept tokens, which LAT sees: one pass.

    The piece of the last kept token is the first that reaches into the rest; that token stands for BOS, and everything
    from it on is merged as a sentence.
    """
    counts = [masks_behind(text) for text in texts]
    inputs = [[BOS, *text.kept, *[MASK] * count] for text, count in zip(texts, counts, strict=True)]
    target = pad(inputs).to(memory.visible.device)
    asked = (target != PAD) & _from_last_kept(texts, target)
    written = Pieces(*only_at(asked, student.decode(target, memory), student.pieces))
    drafted: list[Text] = []
    rows = zip(texts, counts, written.tokens.tolist(), written.scores.double().tolist(), strict=True)
    for text, count, pieces, scores in rows:
        there = slice(len(text.kept), len(text.kept) + 1 + count)
        (_, *first), *others = pieces[there]
        shown = [BOS, *[MASK] * count]
        merged = merge_row(shown, [[BOS, *first], *others], scores[there], step, merge, trace)
        passes = text.passes
        if merged.trace is not None:
            merged.trace.prefix = text.kept
            passes = [*passes, merged.trace]
        draft = merged.sentence.ids[1:][: text.limit - len(text.kept)]
        drafted.append(text._replace(draft=draft, iterations=text.iterations + 1, passes=passes))
    return drafted


def _from_last_kept(texts: list[Text], target: Tensor) -> Tensor:
    """B x T: the places from the last kept token on; behind it comes what is not decided yet."""
    starts = torch.tensor([len(text.kept) for text in texts], device=target.device)
    return torch.arange(target.shape[1], device=target.device) >= starts[:, None]
