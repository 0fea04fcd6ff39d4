"""Twin of `merge_rows` (decoding/pieces.py) on the device: one Triton program merges one sentence.

    merged = merge_batch(tokens, scores, lengths, step)

Nothing is asked of the host and every shape is known beforehand, so the call can be part of a CUDA graph. The text of
a sentence grows in one array of records (id, score, sum and number of its positions, the lowest of them):

    [0 .. done)     merged for good, but for its last K records, which the next segment may still change
    [done .. end)   the running segment: pieces joined by exact overlaps

The records of piece p stand from p * K on until their turn comes; no text is longer than the pieces it came from, so
it never runs into those still to come. All that looks at text looks at K records at most. Scores are compared, and
means taken, in float64 and in the order of the plain version: the results are equal, not close.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lath.config import MergeRules
from lath.decoding.pieces import MergeStep, merge_rows
from lath.model.network import Pieces
from lath.text.vocab import BOS, EOS, MASK, PAD

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

TILE = 32
"""Pieces, scores or records that are handled side by side where their number is not known beforehand."""


def available() -> bool:
    """Whether Triton is there, so that `merge_on_device` can be called."""
    return triton is not None


class MergedBatch(NamedTuple):
    """B sentences, and what the decoder reads in its next pass; PAD (score 0) stands behind each."""

    ids: Tensor
    """B x (T * K + 2): BOS, words, EOS. No sentence can be longer."""
    scores: Tensor
    """B x (T * K + 2), those of BOS and EOS 0."""
    lengths: Tensor
    """B."""
    next_ids: Tensor
    """B x limit; nothing but PAD after the last pass."""
    next_lengths: Tensor
    """B; 0 after the last pass."""


def merge_batch(tokens: Tensor, scores: Tensor, lengths: Tensor, step: MergeStep) -> MergedBatch:
    """Merge B x T x K pieces, of which the first `lengths` of each sentence count, and make the next inputs."""
    return (merge_on_device if tokens.is_cuda else merge_plainly)(tokens, scores, lengths, step)


def merge_plainly(tokens: Tensor, scores: Tensor, lengths: Tensor, step: MergeStep) -> MergedBatch:
    """The same by plain functions, on the CPU: what runs where there is no GPU, and the kernel's oracle."""
    out = allocate_outputs(tokens, scores, step.limit)
    for tensor, nothing in zip(out, (PAD, 0, 0, PAD, 0), strict=True):
        tensor.fill_(nothing)
    inputs = [[MASK] * length for length in lengths.tolist()]
    last = step.iteration == step.iterations
    merged = merge_rows(inputs, Pieces(tokens, scores), step)
    for row, (sentence, following, _) in enumerate(merged):
        size = len(sentence.ids)
        out.ids[row, :size] = torch.tensor(sentence.ids)
        out.scores[row, :size] = torch.tensor(sentence.scores, dtype=scores.dtype)
        out.lengths[row] = size
        if not last:
            out.next_ids[row, : len(following)] = torch.tensor(following)
            out.next_lengths[row] = len(following)
    return out


class Scratch(NamedTuple):
    """Room for the records of each sentence while it is merged."""

    whole: Tensor
    """B x 5 x S, int32: ids, sums of positions, their numbers, the lowest position; the length of each piece."""
    real: Tensor
    """B x 2 x S, float64: scores, positions."""

    @staticmethod
    def allocate(tokens: Tensor) -> Scratch:
        """Room enough for B x T x K tokens."""
        batch, pieces, length = tokens.shape
        size = pieces * length + 2
        return Scratch(
            torch.empty(batch, 5, size, dtype=torch.int32, device=tokens.device),
            torch.empty(batch, 2, size, dtype=torch.float64, device=tokens.device),
        )


def allocate_outputs(tokens: Tensor, scores: Tensor, limit: int) -> MergedBatch:
    """Room for what `merge_on_device` makes of B x T x K tokens."""
    batch, pieces, length = tokens.shape
    size = pieces * length + 2
    return MergedBatch(
        tokens.new_empty(batch, size),
        scores.new_empty(batch, size),
        tokens.new_empty(batch),
        tokens.new_empty(batch, limit),
        tokens.new_empty(batch),
    )


def merge_on_device(tokens: Tensor, scores: Tensor, lengths: Tensor, step: MergeStep) -> MergedBatch:
    """What `merge_plainly` does, in one kernel.

    The first call with a new K, or room for another power of two of tokens, compiles: make it before a graph is
    captured. Rules, passes and limits are arguments of the kernel.
    """
    assert available(), "ask available() first"
    batch, pieces, length = tokens.shape
    assert 2 <= length <= 8, "sets of records are bytes"
    out = allocate_outputs(tokens, scores, step.limit)
    given = _Given(tokens.contiguous(), scores.contiguous(), lengths.contiguous())
    shape = _Shape(length, triton.next_power_of_2(length), triton.next_power_of_2(pieces * length + 2))
    _merge_kernel[(batch,)](
        given, out, Scratch.allocate(tokens), _Rules.of(step.rules), pieces, step.limit, step.iteration,
        step.iterations, shape, num_warps=1 if shape.block <= 512 else 4, enable_fp_fusion=False,
    )  # fmt: skip
    return out


class _Given(NamedTuple):
    """The tensors a program reads."""

    tokens: Tensor
    scores: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class _Shape:
    """Sizes the kernel is compiled for."""

    length: int
    """K, the tokens of a piece."""
    lanes: int
    """K rounded up to a power of two."""
    block: int
    """Room for the longest sentence, a power of two."""


class _Rules(NamedTuple):
    """`MergeRules` as the kernel takes them: a switch is 0 or not.

    All are floats: Triton compiles again for each integer of a tuple that becomes 1 or a multiple of 16, even if asked
    not to. A float reaches the kernel as float32, so three of them carry a float64.
    """

    collapse_repeats: float
    concatenate_exact: float
    edge_rules: float
    slot_after_eos: float
    to_input: float
    empty_score: tuple[float, float, float]
    low: tuple[float, float, float]
    high: tuple[float, float, float]
    margin: float
    """The band goes from aim * low - margin to aim * high + margin, each product cut to a whole number."""

    @staticmethod
    def of(rules: MergeRules) -> _Rules:
        relative, margin = (rules.band, 0) if rules.band < 1 else (0.0, int(rules.band))
        return _Rules(
            float(rules.collapse_repeats),
            float(rules.concatenate_exact),
            float(rules.edge_rules),
            float(rules.slot_after_eos),
            float(rules.reach_input_length),
            _thirds(math.log(rules.empty_probability)),
            _thirds(1 - relative),
            _thirds(1 + relative),
            float(margin),
        )


def _thirds(real: float) -> tuple[float, float, float]:
    """Three float32 whose sum in float64, from left to right, is `real`: 3 x 24 bits hold its 53."""
    first = _float32(real)
    second = _float32(real - first)
    return first, second, real - first - second


def _float32(real: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", real))[0]
    return rounded


# ---- the kernel -----------------------------------------------------------------------------------------------
# Between a store and a load of the same place by another thread, and the other way round, stands a barrier.

if available():
    _BOS, _EOS, _MASK, _PAD = tl.constexpr(BOS), tl.constexpr(EOS), tl.constexpr(MASK), tl.constexpr(PAD)
    _TILE = tl.constexpr(TILE)


def _jit(function: Callable[..., Any], **options: object) -> Any:
    return triton.jit(function, **options) if available() else function


def _merge_program(
    given: _Given,
    out: MergedBatch,
    scratch: Scratch,
    rules: _Rules,
    pieces: int,
    limit: int,
    iteration: int,
    iterations: int,
    shape: tl.constexpr,
) -> None:
    """Everything that happens to one sentence between two passes of the decoder."""
    row = tl.program_id(0).to(tl.int64)
    size = pieces * shape.length + 2
    whole, real = scratch.whole + row * 5 * size, scratch.real + row * 2 * size
    count = tl.load(given.lengths + row).to(tl.int32)
    start = row * pieces * shape.length
    _read_pieces(given.tokens + start, given.scores + start, count, whole, real, size, rules, shape)
    merged = _merge_pieces(count, whole, real, size, rules, shape)
    length = _wrap(merged, count, whole, real, size, shape)

    places = tl.arange(0, shape.block)
    ids = tl.load(whole + places, mask=places < length, other=_PAD)
    scores = tl.load(real + places, mask=places < length, other=0.0)
    tl.store(out.ids + row * size + places, ids, mask=places < size)
    tl.store(out.scores + row * size + places, scores, mask=places < size)
    tl.store(out.lengths + row, length)
    next_length = 0
    if iteration < iterations:
        masks = tl.minimum(length - length * iteration // iterations, length - 2)
        visible = _mask(length, masks, whole, real, size)
        change = _length_change(length, count, rules)
        next_length = _adjust(visible, change, whole, real, size, out.next_ids + row * limit, limit, rules, shape)
    else:
        _fill(out.next_ids + row * limit, 0, limit, shape)
    tl.store(out.next_lengths + row, next_length)


@_jit
def _load(whole: tl.tensor, real: tl.tensor, size: tl.tensor, places: tl.tensor, mask: tl.tensor) -> tl.tuple:
    """The records at `places`: id, sum and number of positions, the lowest, score. Where `mask` is not, nothing."""
    return (
        tl.load(whole + places, mask=mask, other=0),
        tl.load(whole + size + places, mask=mask, other=0),
        tl.load(whole + 2 * size + places, mask=mask, other=0),
        tl.load(whole + 3 * size + places, mask=mask, other=1 << 30),
        tl.load(real + places, mask=mask, other=-float("inf")),
    )


@_jit
def _store(
    whole: tl.tensor, real: tl.tensor, size: tl.tensor, places: tl.tensor, mask: tl.tensor, record: tl.tuple
) -> None:
    tl.store(whole + places, record[0], mask=mask)
    tl.store(whole + size + places, record[1], mask=mask)
    tl.store(whole + 2 * size + places, record[2], mask=mask)
    tl.store(whole + 3 * size + places, record[3], mask=mask)
    tl.store(real + places, record[4], mask=mask)


@_jit
def _fuse(left: tl.tuple, right: tl.tuple) -> tl.tuple:
    """One record of two; the id is the left one's, for `right` may be nothing."""
    return (
        left[0],
        left[1] + right[1],
        left[2] + right[2],
        tl.minimum(left[3], right[3]),
        tl.maximum(left[4], right[4]),
    )


@_jit
def _read_pieces(
    tokens: tl.tensor,
    scores: tl.tensor,
    count: tl.tensor,
    whole: tl.tensor,
    real: tl.tensor,
    size: tl.tensor,
    rules: tl.tuple,
    shape: tl.constexpr,
) -> None:
    """The records of all pieces, a lane a piece; the same token again is the same record, written again."""
    width: tl.constexpr = shape.length
    for first in range(0, count, _TILE):
        piece = first + tl.arange(0, _TILE)
        there = piece < count
        nothing = tl.full([_TILE], 0, tl.int32)
        number, id, total, times, lowest = nothing, nothing, nothing, nothing, nothing
        score = nothing.to(tl.float64)
        for inner in tl.static_range(width):
            place = piece * shape.length + inner
            new_id = tl.load(tokens + place, mask=there, other=0).to(tl.int32)
            new_score = tl.load(scores + place, mask=there, other=0.0).to(tl.float64)
            again = (number > 0) & (new_id == id) & (rules.collapse_repeats != 0)
            id = new_id
            total = tl.where(again, total, 0) + piece + inner
            times = tl.where(again, times, 0) + 1
            lowest = tl.where(again, lowest, piece + inner)
            score = tl.where(again, tl.maximum(score, new_score), new_score)
            number += tl.where(again, 0, 1)
            record = (id, total, times, lowest, score)
            _store(whole, real, size, piece * shape.length + number - 1, there, record)
        tl.store(whole + 4 * size + piece, number, mask=there)
    tl.debug_barrier()


@_jit
def _merge_pieces(
    count: tl.tensor, whole: tl.tensor, real: tl.tensor, size: tl.tensor, rules: tl.tuple, shape: tl.constexpr
) -> tl.tensor:
    """`merge_pieces` on the records; the length of the text. A turn after the last piece folds the last segment."""
    lanes = tl.arange(0, shape.lanes)
    done, end = count * 0, count * 0
    for piece in range(0, count + 1):
        start = piece * shape.length
        length = tl.load(whole + 4 * size + piece, mask=piece < count, other=0)
        # All of these loads can be under way at once; what stands behind a shortened piece is left out further down.
        record = _load(whole, real, size, start + lanes, lanes < tl.where(piece < count, shape.length, 0))
        overlap = length * 0
        if rules.concatenate_exact != 0:
            overlap = _overlap(whole, done, end, start, length, shape)
        if (overlap == 0) & (end > done):
            end = _fold(whole, real, size, done, end, rules, shape)
            done = end

        # The piece's first `overlap` records are fused with the text's last; the others stand behind it.
        target = end - overlap + lanes
        record = _fuse(record, _load(whole, real, size, target, lanes < overlap))
        tl.debug_barrier()
        _store(whole, real, size, target, lanes < length, record)
        tl.debug_barrier()
        end += length - overlap
    return end


@_jit
def _overlap(
    ids: tl.tensor, done: tl.tensor, end: tl.tensor, start: tl.tensor, length: tl.tensor, shape: tl.constexpr
) -> tl.tensor:
    """The most ids that end the running segment and begin the piece at `start` alike."""
    overlaps = tl.arange(0, shape.lanes) + 1
    inner = tl.arange(0, shape.lanes)[None, :]
    tail = tl.load(ids + end - overlaps[:, None] + inner, mask=overlaps[:, None] <= end, other=0)
    head = tl.load(ids + start + inner)
    possible = tl.minimum(end - done, length)
    compared = inner < overlaps[:, None]
    differing = tl.max(tl.where(compared & (tail != head), 1, 0), 1)
    return tl.max(tl.where((differing == 0) & (overlaps <= possible), overlaps, 0), 0)


# ---- folding a segment into the text: Algorithm 1 --------------------------------------------------------------
# A set of records of the tail (the text's last K) or of the head (the segment's first K) is bits of an int64.


@_jit
def _fold(
    whole: tl.tensor,
    real: tl.tensor,
    size: tl.tensor,
    done: tl.tensor,
    end: tl.tensor,
    rules: tl.tuple,
    shape: tl.constexpr,
) -> tl.tensor:
    """`_merge_segments` on [0 .. done) and [done .. end); the new end."""
    left, right = tl.minimum(done, shape.length), tl.minimum(end - done, shape.length)
    base = done - left
    i, j = tl.arange(0, shape.lanes)[:, None], tl.arange(0, shape.lanes)[None, :]
    tail = tl.load(whole + base + i, mask=i < left, other=-1)
    head = tl.load(whole + done + j, mask=j < right, other=-2)
    bits = tl.full([shape.lanes, shape.lanes], 1, tl.int64) << (shape.lanes * i + j)
    same = tl.sum(tl.sum(tl.where(tail == head, bits, 0), 1), 0)
    if same != 0:  # otherwise line 3: the two stand one behind the other already
        matched1, matched2, partner, before, after = _align(same, shape)
        keeps_left = _judge(matched1, matched2, left, right, real + base, real + done, rules, shape)
        lanes = tl.arange(0, shape.lanes)
        bit = tl.full([shape.lanes], 1, tl.int64) << lanes
        below = bit - 1
        stays1 = (lanes < left) & (((matched1 & bit) != 0) | (((keeps_left >> _bits(matched1 & below)) & 1) != 0))
        stays2 = (lanes < right) & ((matched2 & bit) == 0) & (((keeps_left >> _bits(matched2 & below)) & 1) == 0)
        kept1, kept2 = tl.sum(tl.where(stays1, bit, 0), 0), tl.sum(tl.where(stays2, bit, 0), 0)
        record1 = _load(whole, real, size, base + lanes, stays1)
        record2 = _load(whole, real, size, done + lanes, stays2)
        record1 = _fuse(record1, _load(whole, real, size, done + _bits(partner - 1), partner != 0))
        tl.debug_barrier()
        _store(whole, real, size, base + _bits(kept1 & below) + _bits(kept2 & before), stays1, record1)
        _store(whole, real, size, base + _bits(kept2 & below) + _bits(kept1 & after), stays2, record2)
        tl.debug_barrier()
        lost = left + right - _bits(kept1) - _bits(kept2)
        if lost > 0:
            _move(whole, real, size, done + right, end, lost)
        end -= lost
    return end


@_jit
def _align(same: tl.tensor, shape: tl.constexpr) -> tl.tuple:
    """The longest common subsequence of tail and head, from bits that mark which of their ids are equal.

    A row of the usual table of lengths rises by 0 or 1 from column to column, so it is described by the set of columns
    where it rises. The next row's set follows with one addition: in each run of flat columns that ends in a rise, the
    carry from the first match moves the rise there (Crochemore and others 2001, Hyyrö 2004).

    It returns the matched records of both; and for each record of the tail the one it is matched with, and those of
    the head that stand before the next match; for each of the head, those of the tail that stand before it.
    """
    width: tl.constexpr = shape.length
    full = (1 << shape.lanes) - 1
    rises = same * 0
    flat = same * 0 + full
    for i in tl.static_range(width):
        ids = (same >> (shape.lanes * i)) & full
        flat = ((flat + (flat & ids)) | (flat & ~ids)) & full
        rises |= (full - flat) << (shape.lanes * i)
    lanes = tl.arange(0, shape.lanes)
    matched1, matched2, bound = same * 0, same * 0, same * 0 + full
    nothing = tl.full([shape.lanes], 0, tl.int64)
    partner, before, after = nothing, nothing, nothing
    for back in tl.static_range(width):
        i = shape.length - 1 - back
        top = (rises >> (shape.lanes * i)) & bound
        top |= top >> 1
        top |= top >> 2
        top |= top >> 4
        top ^= top >> 1  # the last column below the bound where the row rises
        match = top & (same >> (shape.lanes * i))
        matched1 |= tl.where(match != 0, 1 << i, 0)
        matched2 |= match
        bound = tl.where(match != 0, top - 1, bound)
        partner = tl.where(lanes == i, match, partner)
        before = tl.where(lanes == i, bound, before)
        after |= tl.where(((bound >> lanes) & 1) == 0, 1 << i, 0)
    return matched1, matched2, partner, before, after


@_jit
def _judge(
    matched1: tl.tensor,
    matched2: tl.tensor,
    left: tl.tensor,
    right: tl.tensor,
    scores1: tl.tensor,
    scores2: tl.tensor,
    rules: tl.tuple,
    shape: tl.constexpr,
) -> tl.tensor:
    """Lines 9 to 14: the set of spans of which the left side is kept; a lane a span, that before the first match 0."""
    spans = tl.arange(0, 2 * shape.lanes)
    sum1, number1, _ = _span_sums(matched1, left, scores1, shape)
    sum2, number2, last = _span_sums(matched2, right, scores2, shape)
    empty = _real(rules.empty_score)
    mean1 = tl.where(number1 > 0, sum1 / tl.maximum(number1, 1).to(tl.float64), empty)
    mean2 = tl.where(number2 > 0, sum2 / tl.maximum(number2, 1).to(tl.float64), empty)
    keeps_left = mean1 >= mean2
    if rules.edge_rules != 0:
        keeps_left = keeps_left | ((spans == 0) & (number2 == 0))
        keeps_left = keeps_left & ((spans != last) | (number1 > 0))
    return tl.sum(tl.where(keeps_left, tl.full([2 * shape.lanes], 1, tl.int64) << spans, 0), 0)


@_jit
def _span_sums(matched: tl.tensor, size: tl.tensor, scores: tl.tensor, shape: tl.constexpr) -> tl.tuple:
    """For each span between matches the sum of its scores, added from left to right, and its size; the last span."""
    width: tl.constexpr = shape.length
    spans = tl.arange(0, 2 * shape.lanes)
    total = tl.full([2 * shape.lanes], 0.0, tl.float64)
    number = tl.full([2 * shape.lanes], 0, tl.int32)
    span = matched * 0
    for i in tl.static_range(width):
        score = tl.load(scores + i, mask=i < size, other=0.0)
        is_match = (matched >> i) & 1
        adds = (spans == span) & (is_match == 0) & (i < size)
        total = tl.where(adds, total + score, total)
        number += tl.where(adds, 1, 0)
        span += is_match
    return total, number, span


@_jit
def _bits(set: tl.tensor) -> tl.tensor:
    """How many of the lowest eight bits are set."""
    set = (set & 0x55) + ((set >> 1) & 0x55)
    set = (set & 0x33) + ((set >> 2) & 0x33)
    return ((set & 0x0F) + ((set >> 4) & 0x0F)).to(tl.int32)


@_jit
def _move(whole: tl.tensor, real: tl.tensor, size: tl.tensor, start: tl.tensor, end: tl.tensor, by: tl.tensor) -> None:
    """Move the records [start .. end) `by` places to the left."""
    for first in range(start, end, _TILE):
        places = first + tl.arange(0, _TILE)
        record = _load(whole, real, size, places, places < end)
        tl.debug_barrier()
        _store(whole, real, size, places - by, places < end, record)
        tl.debug_barrier()


# ---- from the text to the next input ----------------------------------------------------------------------------


@_jit
def _wrap(
    merged: tl.tensor, count: tl.tensor, whole: tl.tensor, real: tl.tensor, size: tl.tensor, shape: tl.constexpr
) -> tl.tensor:
    """`wrap` on the records: ids, scores and positions of the sentence take their place; its length."""
    places = tl.arange(0, shape.block)
    there = places < merged
    id, total, times, _, score = _load(whole, real, size, places, there)
    word = there & (id != _BOS) & (id != _EOS) & (id != _MASK)
    position = total.to(tl.float64) / tl.maximum(times, 1).to(tl.float64)
    ends = tl.min(tl.where(there & (id == _EOS), places, shape.block), 0)
    end = tl.load(whole + 3 * size + ends, mask=ends < merged, other=0)
    end = tl.where(ends < merged, end, count)
    target = tl.cumsum(tl.where(word, 1, 0), 0)
    length = tl.sum(tl.where(word, 1, 0), 0) + 2
    tl.debug_barrier()
    tl.store(whole + target, id, mask=word)
    tl.store(real + target, score, mask=word)
    tl.store(real + size + target, position, mask=word)
    edges = tl.arange(0, 2)
    at = edges * (length - 1)
    tl.store(whole + at, tl.where(edges == 0, _BOS, _EOS))
    tl.store(real + at, edges.to(tl.float64) * 0.0)
    tl.store(real + size + at, tl.where(edges == 0, 0, end).to(tl.float64))
    tl.debug_barrier()
    return length


@_jit
def _mask(length: tl.tensor, masks: tl.tensor, whole: tl.tensor, real: tl.tensor, size: tl.tensor) -> tl.tensor:
    """Leave out the `masks` least certain words; writes the places of what stays visible and returns their number.

    A word's rank is the number of words with a lower score, or the same score and further left.
    """
    visible = length * 0
    for first in range(0, length, _TILE):
        place = first + tl.arange(0, _TILE)
        score = tl.load(real + place, mask=place < length, other=0.0)
        rank = tl.full([_TILE], 0, tl.int32)
        for other_first in range(0, length, _TILE):
            other = other_first + tl.arange(0, _TILE)
            other_score = tl.load(real + other, mask=other < length, other=0.0)
            other_is_word = (other > 0) & (other < length - 1)
            lower = (other_score[None, :] < score[:, None]) | (
                (other_score[None, :] == score[:, None]) & (other[None, :] < place[:, None])
            )
            rank += tl.sum(tl.where(lower & other_is_word[None, :], 1, 0), 1)
        is_word = (place > 0) & (place < length - 1)
        stays = (place < length) & ((rank >= masks) | (is_word == 0))
        target = visible + tl.cumsum(tl.where(stays, 1, 0), 0) - 1
        tl.store(whole + size + target, place, mask=stays)
        visible += tl.sum(tl.where(stays, 1, 0), 0)
    tl.debug_barrier()
    return visible


@_jit
def _length_change(length: tl.tensor, aim: tl.tensor, rules: tl.tuple) -> tl.tensor:
    margin = tl.cast(rules.margin, tl.int32)
    low = (aim.to(tl.float64) * _real(rules.low)).to(tl.int32) - margin
    high = (aim.to(tl.float64) * _real(rules.high)).to(tl.int32) + margin
    edge = tl.where(length < low, low, high)
    edge = tl.where(rules.to_input != 0, aim, edge)
    return tl.where((low <= length) & (length <= high), 0, edge - length)


@_jit
def _real(thirds: tl.tuple) -> tl.tensor:
    return tl.cast(thirds[0], tl.float64) + tl.cast(thirds[1], tl.float64) + tl.cast(thirds[2], tl.float64)


@_jit
def _adjust(
    visible: tl.tensor,
    change: tl.tensor,
    whole: tl.tensor,
    real: tl.tensor,
    size: tl.tensor,
    out: tl.tensor,
    limit: tl.tensor,
    rules: tl.tuple,
    shape: tl.constexpr,
) -> tl.tensor:
    """Put masks between the visible tokens, as many as were masked and `change` more; write the next input."""
    slots = tl.arange(0, shape.block)
    there = slots < visible
    has_next = slots < visible - 1
    place = tl.load(whole + size + slots, mask=there, other=0)
    after = tl.load(whole + size + slots + 1, mask=has_next, other=1)
    id = tl.load(whole + place, mask=there, other=0)
    masks = tl.where(has_next, after - place - 1, 0)
    gap = tl.load(real + size + after, mask=has_next, other=0.0) - tl.load(real + size + place, mask=there, other=0.0)
    gap = tl.where(has_next, gap - 1 - masks.to(tl.float64), 0.0)
    is_slot = slots < tl.where(rules.slot_after_eos != 0, visible, visible - 1)
    # To delete is to add the other way round: the widest gap then is the narrowest.
    sign = tl.where(change < 0, -1, 1)
    gap = tl.where(is_slot, gap * sign.to(tl.float64), -float("inf"))
    for _ in range(0, change * sign):
        widest = tl.max(gap, 0)
        slot = tl.min(tl.where(gap == widest, slots, shape.block), 0)
        gap = tl.where(slots == slot, gap - 1, gap)
        masks = tl.where(slots == slot, masks + sign, masks)

    masks = tl.maximum(masks, 0)  # below zero nothing was there to delete
    target = slots + tl.cumsum(masks, 0) - masks
    length = visible + tl.sum(masks, 0)
    _fill(out, length, limit, shape)
    tl.debug_barrier()
    # What is too long is cut, and ends in EOS.
    written = tl.where(length > limit, limit - 1, length)
    tl.store(out + target, id, mask=there & (target < written))
    return tl.minimum(length, limit)


@_jit
def _fill(out: tl.tensor, length: tl.tensor, limit: tl.tensor, shape: tl.constexpr) -> None:
    """`length` masks and then padding; if that is too long, EOS last."""
    for first in range(0, limit, shape.block):
        place = first + tl.arange(0, shape.block)
        ids = tl.where(place < length, _MASK, _PAD)
        ids = tl.where((length > limit) & (place == limit - 1), _EOS, ids)
        tl.store(out + place, ids, mask=place < limit)


_merge_kernel = _jit(_merge_program, do_not_specialize=["rules", "pieces", "limit", "iteration", "iterations"])
