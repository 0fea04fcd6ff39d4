"""Twin of `VerifyingDecoder` (decoding/verify.py) in fixed shapes, recorded as CUDA graphs.

    source -> [both encoders, lengths] -> [the first draft] -> [AT checks] -> [LAT drafts the rest] -> [AT checks] ...

The host reads what each check has left while the device drafts the rest, so neither waits for the other; of a batch
that is complete the last redraft was for nothing. Complete texts leave by halves, as in beam.py. `rerank` is two
recordings: the encoders, and every pass with AT's of all candidates. Shapes come from a ladder, the width is guessed,
and a text that outgrows its width is written again in a wider one (passes.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from lath.config import DecodeSettings
from lath.decoding.lengths import length_limits, repeat_rows
from lath.decoding.pieces import MergeStep
from lath.decoding.results import Decoded
from lath.decoding.verify import Rule
from lath.engine.beam import HALVINGS, batch_size, cut_to_fit, filled_up, source_width
from lath.engine.fused import FewQueryMask, causal_mask
from lath.engine.graphs import Fetched, Held, recorded, side_by_side, tensors_of
from lath.engine.merge_kernel import merge_batch
from lath.engine.passes import (
    FEW_ROWS,
    MOST_POSITIONS,
    MOST_SHAPES,
    Encoded,
    encode,
    own_scores,
    run_passes,
    summary,
    target_width,
)
from lath.engine.verify_kernel import CHECKS, COUNTS, DONE, KEPT, OUTGROWN, Texts, extend_batch, judge_batch
from lath.model.network import (
    AT,
    LAT,
    NEVER_WRITTEN_AFTER_BEGIN,
    Body,
    KeyValues,
    Mask,
    Memory,
    PaddedMask,
    sentence_mask,
)
from lath.model.padding import row_lengths
from lath.text.vocab import BOS, EOS

Result = TypeVar("Result")
Rows = np.ndarray[Any, np.dtype[np.int64]]

RERANKED_POSITIONS = MOST_POSITIONS // 4
"""As `MOST_POSITIONS`, of `rerank`, which needs all logits as float32."""


class Pair(NamedTuple):
    """Who drafts, who checks, and how."""

    student: LAT
    verifier: AT
    settings: DecodeSettings

    @property
    def positions(self) -> int:
        """Of two tables of positions the shorter one ends a text."""
        return min(self.student.settings.max_positions, self.verifier.settings.max_positions)


class Sources(NamedTuple):
    """B encoded sentences."""

    drafted: Encoded
    """For LAT, with its length candidates."""
    checked: Memory
    """For AT."""
    biases: tuple[Tensor, Tensor]
    """B x 1 x 1 x S of each: which of it may be seen."""

    def student_memory(self, candidates: int) -> list[KeyValues]:
        """What LAT has encoded, once a sentence."""
        return [KeyValues(keys[::candidates], values[::candidates]) for keys, values in self.drafted.memory.layers]


@dataclass
class _Rounds:
    """The texts of one shape and the recorded work on them."""

    texts: Texts
    fixed: _Fixed
    """Kept for the recordings, which read it by address and hold nothing themselves."""
    begin: Callable[[], None]
    checks: dict[int, Callable[[], Tensor]]
    """One for each batch size, the whole one first."""
    redrafts: dict[int, Callable[[], None]]


@dataclass
class _Shape:
    """What is recorded for B sentences of S source tokens."""

    sources: Held[Sources]
    rounds: dict[int, _Rounds]
    reranks: dict[int, Callable[[], Tensor]]
    """Both by the target's width."""


class Verification:
    """Decoding with one pair of models and one set of settings."""

    def __init__(self, student: LAT, verifier: AT, settings: DecodeSettings) -> None:
        self.pair = Pair(student, verifier, settings)
        self.device = student.length.table.weight.device
        self._side = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self._pool: object = None
        self._alone = threading.Lock()

    @torch.inference_mode()
    def decode(self, source: Tensor) -> list[Decoded]:
        """Translate B x S source tokens (on the CPU; each sentence ends in EOS), best sorted by length."""
        settings = self.pair.settings
        most = RERANKED_POSITIONS if settings.verify == "rerank" else MOST_POSITIONS
        slices = cut_to_fit(
            row_lengths(source),
            lambda size, longest: size * settings.length_candidates * self.width(longest) <= most,
        )
        return [found for rows, longest in slices for found in self._decode_rows(source[rows, :longest], at_least=0)]

    def decode_many(self, sources: Iterable[Tensor]) -> Iterator[list[Decoded]]:
        """Translate batch after batch."""
        return map(self.decode, sources)

    def width(self, length: int) -> int:
        """The source's width in the ladder; with the LENGTH slot in front it is one that attention likes."""
        return min(source_width(length + 1) - 1, self.pair.positions)

    @torch.inference_mode()
    def prepare(self, batch: int, width: int) -> None:
        """Record a shape and the target widths that go with it before a sentence needs them."""
        lengths = [width] if self._few(batch) else range(2 * width // 3, 4 * width // 3 + 1)
        with self._alone:
            shape = self._shape(batch, width)
            for wide in sorted({target_width(length, self._most) for length in lengths}):
                if self.pair.settings.verify == "rerank":
                    self._rerank(shape, wide)
                else:
                    self._rounds(shape, wide)

    @property
    def _most(self) -> int:
        return self.pair.student.settings.max_positions

    def _few(self, batch: int) -> bool:
        """Whether the target's width is guessed."""
        return batch * self.pair.settings.length_candidates <= FEW_ROWS

    def _decode_rows(self, source: Tensor, at_least: int) -> list[Decoded]:
        rerank = self.pair.settings.verify == "rerank"
        with self._alone:
            batch, width = batch_size(len(source)), self.width(source.shape[1])
            shape = self._shape(batch, width)
            shape.sources.result.drafted.inputs.copy_(filled_up(source, batch, width))
            shape.sources.run()
            longest = width if self._few(batch) else max(shape.sources.result.drafted.lengths.tolist())
            wide = max(at_least, target_width(longest, self._most))
            if rerank:
                found = Fetched(self._rerank(shape, wide)()).wait().numpy()
            else:
                found = self._finish(shape.sources, self._rounds(shape, wide))
        found = found[: len(source)]
        settings = self.pair.settings
        decoded = _reranked(found, settings) if rerank else _checked(found, settings)
        outgrown = np.flatnonzero(found[:, 0 if rerank else OUTGROWN]).tolist()
        if outgrown and wide < self._most:
            again = self._decode_rows(source[outgrown], target_width(2 * wide, self._most))
            for number, sentence in zip(outgrown, again, strict=True):
                decoded[number] = sentence
        return decoded

    def _finish(self, sources: Held[Sources], rounds: _Rounds) -> Rows:
        """Check and draft again until every text is complete; B x (COUNTS + 1 + W) as `_check` reports."""
        rounds.begin()
        size = len(rounds.texts.lines)
        places, final = np.arange(size), np.zeros((size, COUNTS + 1 + rounds.texts.lines.shape[1]), dtype=np.int64)
        while True:
            fetched = Fetched(rounds.checks[size]())
            rounds.redrafts[size]()
            report = fetched.wait().numpy()
            done = report[:, DONE] != 0
            final[places[done]] = report[done]
            going_on, smaller = np.flatnonzero(~done), size
            if len(going_on) == 0:
                return final
            while len(going_on) <= smaller // 2 and smaller // 2 in rounds.checks:
                smaller //= 2
            if smaller < size:
                rows = np.concatenate([going_on, np.flatnonzero(done)])[:smaller]  # complete ones fill it up
                _move(self.pair, sources.result, rounds.texts, torch.from_numpy(rows), size)
                places, size = places[rows], smaller

    # ---- what is recorded -----------------------------------------------------------------------------------------

    def _shape(self, batch: int, width: int) -> _Shape:
        """The encoders for a shape, made at its first use."""
        if (batch, width) not in self._shapes:
            self._make_room()
            inputs = filled_up(torch.zeros((0, 0), dtype=torch.long), batch, width).to(self.device)
            self._shapes[batch, width] = _Shape(
                Held(self._recorded(partial(_encode, self.pair, inputs, self._side))), {}, {}
            )
        return self._shapes[batch, width]

    def _rerank(self, shape: _Shape, wide: int) -> Callable[[], Tensor]:
        """Every pass and AT's for a shape, made at its first use."""
        if wide not in shape.reranks:
            shape.reranks[wide] = self._recorded(partial(_rerank, self.pair, shape.sources, wide))
        return shape.reranks[wide]

    def _rounds(self, shape: _Shape, wide: int) -> _Rounds:
        """The draft, checks and redrafts for a shape, made at its first use."""
        if wide not in shape.rounds:
            pair, sources = self.pair, shape.sources
            batch, like = len(sources.result.checked.visible), pair.verifier.body.target_positions.weight
            texts = Texts.allocate(batch, min(wide, pair.positions), Rule.of(pair.settings), like)
            fixed = _Fixed.of(pair, texts)
            made = _Rounds(texts, fixed, self._recorded(partial(_begin, pair, sources, texts, wide)), {}, {})
            for size in [batch >> halvings for halvings in range(HALVINGS + 1) if batch >> halvings]:
                made.checks[size] = self._recorded(partial(_check, pair, sources, texts, fixed, size))
                made.redrafts[size] = self._recorded(partial(_redraft, pair, sources, texts, fixed, size))
            shape.rounds[wide] = made
        return shape.rounds[wide]

    def _recorded(self, work: Callable[[], Result]) -> Callable[[], Result]:
        # Nothing of `self` in the work: a reference cycle would hold all its memory until a collection.
        return recorded(work, self.device, self._pool)

    def _make_room(self) -> None:
        if sum(1 + len(shape.rounds) + len(shape.reranks) for shape in self._shapes.values()) >= MOST_SHAPES:
            self._shapes.clear()
            self._pool = None
        if self._pool is None and self.device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()


# ---- the works ----------------------------------------------------------------------------------------------------
# What is kept from one to the next stands in tensors that no recording owns, or in a result that is held: recordings
# share memory, and a replay overwrites whatever nobody held when it was recorded.


class _Fixed(NamedTuple):
    """What is the same in every round of a shape."""

    student_places: Tensor
    """W x D: the vectors of the positions."""
    verifier_places: Tensor
    causal: Mask

    @staticmethod
    def of(pair: Pair, texts: Texts) -> _Fixed:
        places = torch.arange(texts.lines.shape[1], device=texts.lines.device)
        vectors = [model.body.target_positions(places) for model in (pair.student, pair.verifier)]
        return _Fixed(vectors[0], vectors[1], causal_mask(len(places), texts.bias))


def _encode(pair: Pair, inputs: Tensor, side: torch.cuda.Stream | None) -> Sources:
    """Both encoders, one beside the other."""
    checked, drafted = side_by_side(
        lambda: pair.verifier.encode(inputs[:-1]), lambda: encode(pair.student, pair.settings, inputs), side
    )
    visible = drafted.memory.visible[:: pair.settings.length_candidates]
    like = checked.layers[0].keys
    biases = [sentence_mask(keys, keys, like).bias for keys in (visible, checked.visible)]
    return Sources(drafted, checked, (biases[0], biases[1]))


def _begin(pair: Pair, sources: Held[Sources], texts: Texts, wide: int) -> None:
    """The first draft of every text: that of the likeliest candidate."""
    settings, drafted = pair.settings, sources.result.drafted
    state = run_passes(pair.student, settings, drafted, wide)
    found = summary(state, own_scores(state), drafted.real, settings.length_candidates)
    outgrown = (found[:, 0] != 0) & (wide < pair.student.settings.max_positions)
    fills = torch.arange(len(found), device=found.device) >= drafted.real
    texts.begin(length_limits(drafted.source, pair.positions), outgrown, outgrown | fills)
    extend_batch(found[:, 3:], found[:, 1], texts)


def _check(pair: Pair, sources: Held[Sources], texts: Texts, fixed: _Fixed, size: int) -> Tensor:
    """One pass of AT over what is kept and drafted of the first texts; size x (counts, totals as bits, lines)."""
    texts, body, rule = texts.first(size), pair.verifier.body, Rule.of(pair.settings)
    memory = [KeyValues(keys[:size], values[:size]) for keys, values in sources.result.checked.layers]
    x = _embed(body, texts.lines, fixed.verifier_places)
    states, _ = body.decoder(x, fixed.causal, memory, _mask(sources.result.biases[1][:size]))
    judge_batch(body.top_tokens(states, NEVER_WRITTEN_AFTER_BEGIN, max(2, rule.top)), texts, rule)
    return torch.cat([texts.counts, texts.totals.view(torch.long)[:, None], texts.lines], dim=1)


def _redraft(pair: Pair, sources: Held[Sources], texts: Texts, fixed: _Fixed, size: int) -> None:
    """One pass of LAT, which sees what is kept of the first texts; what it writes behind that is their next draft."""
    texts, student = texts.first(size), pair.student
    memory = sources.result.student_memory(pair.settings.length_candidates)
    memory = [KeyValues(keys[:size], values[:size]) for keys, values in memory]
    x = _embed(student.body, texts.shown, fixed.student_places)
    states, _ = student.body.decoder(x, _mask(texts.bias), memory, _mask(sources.result.biases[0][:size]))
    asked = states.flatten(0, 1).index_select(0, texts.places.flatten()).view(states.shape)
    pieces = student.pieces(asked)
    pieces.tokens[:, 0, 0] = BOS  # the last kept token stands for it
    merged = merge_batch(pieces.tokens, pieces.scores, texts.asked, MergeStep(pair.settings.merge_rules, 1, 1, 2))
    extend_batch(merged.ids, merged.lengths, texts)


def _rerank(pair: Pair, sources: Held[Sources], wide: int) -> Tensor:
    """Every pass, and one of AT over all candidates: the summary of those that it finds best."""
    settings, verifier, drafted = pair.settings, pair.verifier, sources.result.drafted
    state = run_passes(pair.student, settings, drafted, wide)
    room, widest = verifier.settings.max_positions, wide == pair.student.settings.max_positions
    width = min(room, state.ids.shape[1] - 1 if widest else wide)
    memory = repeat_rows(sources.result.checked, settings.length_candidates)
    logits = verifier.body.logits(verifier.decode(state.ids[:, :width], memory)[0]).float()
    gold, lengths = state.ids[:, 1 : width + 1, None], state.sizes - 1
    of_gold = logits.gather(2, gold)[:, :, 0] - logits.logsumexp(dim=2)
    counted = torch.arange(width, device=lengths.device) < lengths[:, None]
    totals = torch.where(counted, of_gold.double(), 0.0).sum(dim=1)
    scores = torch.where(lengths <= room, totals / lengths.double() ** settings.length_penalty, -torch.inf)
    if width < room and not widest:
        state = state._replace(overflow=state.overflow | (lengths > width))
    return summary(state, scores, drafted.real, settings.length_candidates)


def _embed(body: Body, tokens: Tensor, places: Tensor) -> Tensor:
    """As `Body.embed_target`, with vectors of the positions that are known."""
    embedded: Tensor = body.output_table(tokens) + places
    return embedded


def _mask(bias: Tensor) -> Mask:
    return FewQueryMask(bias) if bias.is_cuda else PaddedMask(bias)


# ---- on the host --------------------------------------------------------------------------------------------------


def _move(pair: Pair, sources: Sources, texts: Texts, rows: Tensor, size: int) -> None:
    """Move these of the first `size` texts to the front, with what belongs to them."""
    rows = rows.to(texts.lines.device)
    memory = sources.student_memory(pair.settings.length_candidates)
    for tensor in tensors_of((memory, sources.checked.layers, sources.biases, texts[:3])):
        tensor[: len(rows)] = tensor[:size].index_select(0, rows)


def _checked(found: Rows, settings: DecodeSettings) -> list[Decoded]:
    """Complete texts."""
    totals: list[float] = found[:, COUNTS].copy().view(np.float64).tolist()
    decoded: list[Decoded] = []
    for row, total in zip(found.tolist(), totals, strict=True):
        kept, checks = row[KEPT], row[CHECKS]
        ids = row[COUNTS + 2 : COUNTS + 2 + kept]
        score = total / max(kept, 1) ** settings.length_penalty  # nothing is kept of an outgrown draft
        decoded.append(Decoded([id for id in ids if id != EOS], score, settings.iterations + checks - 1, [], checks))
    return decoded


def _reranked(found: Rows, settings: DecodeSettings) -> list[Decoded]:
    """The best candidates: their tokens stand between BOS and EOS."""
    scores: list[float] = found[:, 2].copy().view(np.float64).tolist()
    return [
        Decoded(ids[1 : size - 1], score, settings.iterations, [], checks=1)
        for (_, size, _, *ids), score in zip(found.tolist(), scores, strict=True)
    ]
