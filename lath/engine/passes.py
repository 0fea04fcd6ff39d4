"""Twin of `mask_predict` (decoding/masks.py) and `decode_pieces` (decoding/pieces.py) in fixed shapes.

Everything between two passes of the decoder happens on the device: choosing tokens, merging pieces (merge_kernel.py),
masking, adjusting the length. A whole decode is two recordings with one question to the device between them:

    source -> [encoder, lengths] -> how wide must the target be? -> [every pass, the best candidate] -> tokens

A few sentences do not wait for the answer: their width is guessed from that of the source. Shapes come from a ladder.
A sentence that outgrows its width (rare: it is far longer than its source, or its text merges badly between passes) is
decoded again in a wider one, so neither padding nor the ladder changes a result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lath.config import DecodeSettings
from lath.decoding.lengths import length_candidates, repeat_rows
from lath.decoding.masks import word_mask_count
from lath.decoding.pieces import MergeStep, certainty
from lath.decoding.results import Decoded
from lath.engine.beam import batch_size, cut_to_fit, filled_up, source_width
from lath.engine.graphs import Fetched, Held, recorded
from lath.engine.likely_batch import LikelyBatch, worth_it
from lath.engine.merge_kernel import merge_batch
from lath.model.network import CMLM, LAT, NEVER_WRITTEN_AFTER_BEGIN, Memory, Pieces
from lath.model.padding import row_lengths
from lath.text.vocab import BOS, EOS, MASK, PAD

MOST_POSITIONS = 1 << 16
"""Rows times target positions of a batch at most, which bounds the logits; a larger batch is cut."""
FEW_ROWS = 8
"""Rows up to which the target's width is guessed: spare positions cost them less than the question does."""
MOST_SHAPES = 96
"""Recorded shapes kept; the oldest is forgotten first."""


def target_width(length: int, most: int) -> int:
    """The ladder of target widths, with room for a text that grows between passes."""
    return min(source_width(length + length // 8 + 3), most)


class State(NamedTuple):
    """R rows (sentences times length candidates) between two passes."""

    inputs: Tensor
    """R x T: what the decoder is shown."""
    lengths: Tensor
    """R: how much of each row is sentence."""
    ids: Tensor
    """R x W: what the last pass wrote, BOS and EOS included."""
    scores: Tensor
    """R x W: the log-probability of each."""
    sizes: Tensor
    """R: how many of them there are."""
    overflow: Tensor
    """R: whether a row has outgrown its width."""
    certainty: Tensor
    """R: what chooses among length candidates; known after the last pass."""


class Encoded(NamedTuple):
    """What the first work leaves behind, for B sentences with C length candidates each: R = B x C rows."""

    inputs: Tensor
    """(B + 1) x S: the source, and below it how many of its rows are sentences (the others only fill the shape)."""
    lengths: Tensor
    """R: the likeliest target lengths, 2 or more."""
    length_scores: Tensor
    """R: their log-probabilities."""
    memory: Memory

    @property
    def source(self) -> Tensor:
        """B x S."""
        return self.inputs[:-1]

    @property
    def real(self) -> Tensor:
        """How many rows are sentences."""
        return self.inputs[-1, 0]


class _Started(NamedTuple):
    """Sentences of a batch that the device is decoding."""

    source: Tensor
    wide: int
    found: Fetched


class Passes:
    """Iterative decoding with one model and one set of settings."""

    def __init__(self, model: CMLM | LAT, settings: DecodeSettings) -> None:
        self.model, self.settings = model, settings
        self.device = model.length.table.weight.device
        self._encoders: dict[tuple[int, int], Held[Encoded]] = {}
        self._decoders: dict[tuple[int, int, int], Callable[[], Tensor]] = {}
        self._pool: object = None
        self._alone = threading.Lock()

    def decode(self, source: Tensor) -> list[Decoded]:
        """Translate B x S source tokens (on the CPU; each sentence ends in EOS), best sorted by length."""
        return next(self.decode_many([source]))

    def decode_many(self, sources: Iterable[Tensor]) -> Iterator[list[Decoded]]:
        """Translate batch after batch. Each is returned when the next one has started, so that the host works while the
        device decodes."""
        waiting: list[_Started] | None = None
        for source in sources:
            started = self._start(source)
            if waiting is not None:
                yield self._finish(waiting)
            waiting = started
        if waiting is not None:
            yield self._finish(waiting)

    @torch.inference_mode()
    def _start(self, source: Tensor) -> list[_Started]:
        """Set the device to work on a batch, cut into several if it is too large."""
        candidates = self.settings.length_candidates
        slices = cut_to_fit(
            row_lengths(source), lambda size, longest: size * candidates * self.width(longest) <= MOST_POSITIONS
        )
        return [self._start_rows(source[rows, :longest], at_least=0) for rows, longest in slices]

    def _start_rows(self, source: Tensor, at_least: int) -> _Started:
        with self._alone:
            batch, width = batch_size(len(source)), self.width(source.shape[1])
            encoded = self._encoder(batch, width)
            encoded.result.inputs.copy_(filled_up(source, batch, width))
            encoded.run()
            few = batch * self.settings.length_candidates <= FEW_ROWS
            longest = width if few else max(encoded.result.lengths.tolist())
            wide = max(at_least, target_width(longest, self.model.settings.max_positions))
            return _Started(source, wide, Fetched(self._decoder(encoded, wide)()))

    @torch.inference_mode()
    def _finish(self, started: list[_Started]) -> list[Decoded]:
        """The translations of a batch; sentences that have outgrown their width are decoded again in a wider one."""
        most = self.model.settings.max_positions
        decoded: list[Decoded] = []
        for source, wide, fetched in started:
            # numpy: the sentence is waited for, and its operations take a fraction of torch's time.
            found = fetched.wait().numpy()[: len(source)]
            scores: list[float] = found[:, 2].copy().view(np.float64).tolist()
            # A sentence's tokens stand between BOS and EOS.
            sentences = [
                Decoded(ids[1 : size - 1], score, self.settings.iterations)
                for (_, size, _, *ids), score in zip(found.tolist(), scores, strict=True)
            ]
            outgrown = np.flatnonzero(found[:, 0]).tolist()
            if outgrown and wide < most:
                again = self._start_rows(source[outgrown], target_width(2 * wide, most))
                for number, sentence in zip(outgrown, self._finish([again]), strict=True):
                    sentences[number] = sentence
            decoded += sentences
        return decoded

    def width(self, length: int) -> int:
        """The source's width in the ladder; with the LENGTH slot in front it is one that attention likes."""
        return min(source_width(length + 1) - 1, self.model.settings.max_positions)

    @torch.inference_mode()
    def prepare(self, batch: int, width: int) -> None:
        """Record a shape and the target widths that go with it before a sentence needs them."""
        most = self.model.settings.max_positions
        with self._alone:
            encoded = self._encoder(batch, width)
            for wide in sorted({target_width(length, most) for length in range(2 * width // 3, 4 * width // 3 + 1)}):
                self._decoder(encoded, wide)

    # ---- the two works --------------------------------------------------------------------------------------------

    def _encoder(self, batch: int, width: int) -> Held[Encoded]:
        """The encoder for a shape, made at its first use."""
        if (batch, width) not in self._encoders:
            self._make_room()
            inputs = filled_up(torch.zeros((0, 0), dtype=torch.long), batch, width).to(self.device)
            work = partial(encode, self.model, self.settings, inputs)
            self._encoders[batch, width] = Held(recorded(work, self.device, self._pool))
        return self._encoders[batch, width]

    def _decoder(self, encoded: Held[Encoded], wide: int) -> Callable[[], Tensor]:
        """Every pass for a shape, made at its first use."""
        batch, width = encoded.result.source.shape
        shape = (batch, width, wide)
        if shape not in self._decoders:
            self._make_room()
            self._encoders[batch, width] = encoded  # should it have been forgotten: the new work reads its tensors
            # Nothing of `self` in here: `self` keeps the work, and a reference cycle would hold all its memory until
            # the cyclic garbage collector runs.
            work = partial(_decode, self.model, self.settings, encoded, wide)
            self._decoders[shape] = recorded(work, self.device, self._pool)
        return self._decoders[shape]

    def _make_room(self) -> None:
        if len(self._encoders) + len(self._decoders) >= MOST_SHAPES:
            self._encoders.clear()
            self._decoders.clear()
            self._pool = None
        if self._pool is None and self.device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()


def encode(model: CMLM | LAT, settings: DecodeSettings, inputs: Tensor) -> Encoded:
    """The first work."""
    source, real = inputs[:-1], inputs[-1, 0]
    candidates = settings.length_candidates
    memory, scores = model.encode(source)
    extra = settings.extra_length if isinstance(model, LAT) else 0
    lengths, length_scores = length_candidates(scores, candidates, extra)
    rows = torch.arange(len(source), device=inputs.device).repeat_interleave(candidates)
    return Encoded(inputs, lengths.masked_fill(rows >= real, 2), length_scores, repeat_rows(memory, candidates))


def _decode(model: CMLM | LAT, settings: DecodeSettings, held: Held[Encoded], wide: int) -> Tensor:
    """The second work: every pass, and the summary of the best candidates."""
    state = run_passes(model, settings, held.result, wide)
    return summary(state, own_scores(state), held.result.real, settings.length_candidates)


def run_passes(model: CMLM | LAT, settings: DecodeSettings, encoded: Encoded, wide: int) -> State:
    """Every length candidate after the last pass."""
    state = first_state(model, encoded.lengths, wide)
    if isinstance(model, CMLM):
        for iteration in range(1, settings.iterations + 1):
            state = _fill_masks(model, settings, encoded, state, iteration)
        return state
    write = piece_writer(model, state.inputs, settings.length_candidates)
    for iteration in range(1, settings.iterations + 1):
        pieces = write(model.decode(state.inputs, encoded.memory), state.lengths)
        state = _merge_pieces(pieces, settings, encoded, state, iteration)
    return state


def piece_writer(model: LAT, inputs: Tensor, candidates: int) -> Callable[[Tensor, Tensor], Pieces]:
    """What writes the pieces of R x T x D states, of which so many count in each row."""
    if worth_it(model, inputs.numel()):
        return LikelyBatch(model, len(inputs) // candidates).pieces
    return lambda states, _: model.pieces(states)


def first_state(model: CMLM | LAT, lengths: Tensor, wide: int) -> State:
    """All masks; CMLM is given BOS and EOS. What is too long for the width is cut, and marked."""
    places, overflow = torch.arange(wide, device=lengths.device), lengths > wide
    lengths = lengths.clamp(max=wide)
    inputs = torch.where(places < lengths[:, None], MASK, PAD)
    if isinstance(model, CMLM):
        inputs = torch.where(places == lengths[:, None] - 1, EOS, inputs)
        inputs[:, 0] = BOS
    scores = torch.zeros(inputs.shape, device=lengths.device)
    return State(inputs, lengths, inputs, scores, lengths, overflow, torch.zeros_like(lengths).double())


def _merge_pieces(pieces: Pieces, settings: DecodeSettings, encoded: Encoded, state: State, iteration: int) -> State:
    """Merge the pieces of a pass, mask the least certain tokens and adjust the length."""
    wide = state.inputs.shape[1]
    step = MergeStep(settings.merge_rules, iteration, settings.iterations, wide)
    merged = merge_batch(pieces.tokens, pieces.scores, state.lengths, step)
    # Between passes a text is never adjusted beyond the longer of its own length and its input's.
    overflow = state.overflow | (merged.lengths > wide) if iteration < settings.iterations else state.overflow
    certain = state.certainty
    if iteration == settings.iterations:
        certain = certainty(pieces.scores, state.lengths, encoded.length_scores)
    return state._replace(
        inputs=merged.next_ids,
        lengths=merged.next_lengths,
        ids=merged.ids,
        scores=merged.scores,
        sizes=merged.lengths,
        overflow=overflow,
        certainty=certain,
    )


def _fill_masks(model: CMLM, settings: DecodeSettings, encoded: Encoded, state: State, iteration: int) -> State:
    """Fill all masks, then mask the least certain words again; visible tokens keep their old scores."""
    inputs, lengths = state.inputs, state.lengths
    states = model.decode(inputs, encoded.memory)
    values, filled = model.body.best_tokens(states, (*NEVER_WRITTEN_AFTER_BEGIN, EOS))
    hidden = inputs == MASK
    ids, scores = torch.where(hidden, filled, inputs), torch.where(hidden, values, state.scores)
    places = torch.arange(inputs.shape[1], device=inputs.device)
    words = (places > 0) & (places < lengths[:, None] - 1)
    masks = word_mask_count(lengths, iteration, settings.iterations)
    # A word's rank is the number of words with a lower score, or with the same one and further to the left.
    ordered = scores.masked_fill(~words, torch.inf)
    lower = (ordered[:, None, :] < ordered[:, :, None]) | (
        (ordered[:, None, :] == ordered[:, :, None]) & (places < places[:, None])
    )
    again = words & (lower.sum(dim=2) < masks[:, None])
    certain = state.certainty
    if iteration == settings.iterations:
        certain = torch.where(words, scores.double(), 0.0).sum(dim=1) / (lengths - 2).clamp(min=1)
    return state._replace(
        inputs=torch.where(again, MASK, ids),
        ids=ids,
        scores=scores,
        certainty=certain,
    )


def own_scores(state: State) -> Tensor:
    """R: what chooses among length candidates. As in `decode_pieces`, an empty sentence has the worst there can be."""
    return torch.where(state.sizes > 2, state.certainty, -torch.inf)


def summary(state: State, scores: Tensor, real: Tensor, candidates: int) -> Tensor:
    """B x (3 + W), int64, of the best candidate of each sentence: outgrown, size, score as its bits, tokens."""
    # The first of the best, which is the likelier length.
    best = scores.view(-1, candidates)
    ahead = torch.where(
        best == best.max(dim=1, keepdim=True).values, torch.arange(candidates, device=scores.device), candidates
    )
    rows = torch.arange(len(best), device=scores.device) * candidates + ahead.min(dim=1).values
    grown = state.overflow.view(-1, candidates).any(dim=1) & (torch.arange(len(best), device=scores.device) < real)
    columns = [grown.long(), state.sizes[rows].long(), scores[rows].view(torch.int64)]
    return torch.cat([torch.stack(columns, dim=1), state.ids[rows].long()], dim=1)
