"""`lath/merge.py` for a whole batch on the CPU: the same results, computed for all sentences side by side in numpy.

    merged = merge_batch(tokens, scores, lengths, aims, MergeStep(rules, iteration=1, iterations=4, limit=512))

Only what hangs on earlier results is done in turns: a turn for each segment that is folded into the texts, and one
for each mask that is inserted or deleted. What a turn costs hardly grows with the batch; for a single sentence the
plain version is the faster one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lath.config import MergeRules
from lath.text.vocab import BOS, EOS, MASK, PAD

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class MergeStep:
    """What is done between two passes of the decoder: the same for every sentence of a batch."""

    rules: MergeRules
    iteration: int
    """The pass that wrote the pieces, from 1."""
    iterations: int
    """Passes in all; after the last there is no next input."""
    limit: int
    """Longest next input, 2 or more: what is longer is cut and ends in EOS."""


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


def merge_batch(tokens: Tensor, scores: Tensor, lengths: Tensor, aims: Tensor, step: MergeStep) -> MergedBatch:
    """Merge B x T x K pieces and make the next inputs.

    `lengths` is how many pieces each sentence has; those behind are not read. `aims` is the length that each next
    input is adjusted towards.
    """
    batch, width, length = tokens.shape
    counts = lengths.numpy().astype(np.int64)
    texts = _merge_pieces(tokens.numpy(), scores.double().numpy(), counts, step.rules)
    sentences = _wrap(texts, counts, width * length + 2)
    following = np.full((batch, step.limit), PAD)
    following_lengths = np.zeros(batch, dtype=np.int64)
    if step.iteration < step.iterations:
        visible = _visible(sentences, step)
        change = _length_changes(sentences.lengths, aims.numpy().astype(np.int64), step.rules)
        following_lengths = _adjust(sentences, visible, change, step.rules, following)
    return MergedBatch(
        torch.from_numpy(sentences.ids).to(tokens.dtype),
        torch.from_numpy(sentences.scores).to(scores.dtype),
        torch.from_numpy(sentences.lengths).to(tokens.dtype),
        torch.from_numpy(following).to(tokens.dtype),
        torch.from_numpy(following_lengths).to(tokens.dtype),
    )


# ---- records ----------------------------------------------------------------------------------------------------

ID, SCORE, TOTAL, TIMES, LOWEST = range(5)
"""Columns of a record: a token, its best score, and its positions' sum, number and minimum. All exact in float64."""
NO_TAIL, NO_HEAD = -1.0, -2.0
"""Ids of places of the last K of a text, or the first K of a segment, that are not there: equal to no other."""
NOTHING = (NO_HEAD, -math.inf, 0.0, 0.0, math.inf)
"""The record that changes none it is fused with."""


class _Texts(NamedTuple):
    """Merged texts before special tokens are removed."""

    records: Floats
    """B x W x 5."""
    lengths: Ints


def _merge_pieces(tokens: npt.NDArray[Any], scores: Floats, counts: Ints, rules: MergeRules) -> _Texts:
    """`merge_pieces` of each sentence."""
    batch, width, length = tokens.shape
    there = np.arange(width) < counts[:, None]
    rows, numbers = there.nonzero()
    records, sizes = _piece_records(tokens[there], scores[there], numbers, rules.collapse_repeats)
    overlaps = np.zeros_like(sizes)
    if rules.concatenate_exact:
        overlaps = _overlaps(records[:, ID], sizes, numbers == 0, length)
    ends = np.cumsum(sizes - overlaps)
    starts = ends - sizes
    if overlaps.any():
        inner = np.arange(len(records)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        records = _fuse_at(records, np.repeat(starts, sizes) + inner)
    begins = overlaps == 0
    segments = _Segments(starts[begins], np.diff(starts[begins], append=len(records)), rows[begins])
    return _fold(records, segments, batch, length, rules)


def _piece_records(ids: npt.NDArray[Any], scores: Floats, numbers: Ints, collapse: bool) -> tuple[Floats, Ints]:
    """The records of N pieces, one behind the other, and how many each piece has; adjacent repeats are one."""
    positions = numbers[:, None] + np.arange(ids.shape[1])
    new = np.ones(ids.shape, dtype=np.bool_)
    if collapse:
        new[:, 1:] = ids[:, 1:] != ids[:, :-1]
    first = new.ravel().nonzero()[0]
    records = np.empty((len(first), 5))
    records[:, ID] = ids.ravel()[first]
    records[:, SCORE] = np.maximum.reduceat(scores.ravel(), first)
    records[:, TOTAL] = np.add.reduceat(positions.ravel(), first)
    records[:, TIMES] = np.diff(first, append=ids.size)
    records[:, LOWEST] = positions.ravel()[first]
    return records, new.sum(axis=1)


def _fuse_at(records: Floats, places: Ints) -> Floats:
    """Put each record at its place; those that share one are fused."""
    size = int(places.max()) + 1
    fused = np.empty((size, 5))
    fused[places, ID] = records[:, ID]
    fused[:, [SCORE, LOWEST]] = -math.inf, math.inf
    np.maximum.at(fused[:, SCORE], places, records[:, SCORE])
    np.minimum.at(fused[:, LOWEST], places, records[:, LOWEST])
    fused[:, TOTAL] = np.bincount(places, records[:, TOTAL], size)
    fused[:, TIMES] = np.bincount(places, records[:, TIMES], size)
    return fused


# ---- exact concatenation ----------------------------------------------------------------------------------------


def _overlaps(ids: Floats, sizes: Ints, first: Bools, length: int) -> Ints:
    """How many ids each piece shares exactly with the end of the running segment; 0 starts a new segment.

    The segment's last ids are those of the piece before it, whole as that may be. Only behind a piece that was
    collapsed does it matter how that one was joined: such pieces are looked at in turn.
    """
    lanes = np.arange(length)
    ends = np.cumsum(sizes)
    padded = np.concatenate([np.zeros(length), ids, np.zeros(length)])
    heads = padded[(ends - sizes)[:, None] + lanes + length]
    heads[lanes >= sizes[:, None]] = NO_HEAD
    tails = padded[ends[:, None] + lanes]
    tails[lanes < length - sizes[:, None]] = NO_TAIL

    pieces = np.arange(len(sizes))
    short = (sizes < length) & ~first
    turn = pieces - np.maximum.accumulate(np.where(short, 0, pieces)) if len(pieces) else pieces
    for number in range(1, int(turn.max(initial=0)) + 1):
        chosen = (turn == number).nonzero()[0]
        before, size = tails[chosen - 1], sizes[chosen, None]
        overlap = _exact_overlap(before, heads[chosen])[:, None]
        older = np.take_along_axis(before, np.minimum(lanes + size - overlap, length - 1), axis=1)
        missing = lanes < length - size
        tails[chosen] = np.where(missing & (overlap > 0), older, tails[chosen])
    overlaps = np.zeros_like(sizes)
    overlaps[1:] = _exact_overlap(tails[:-1], heads[1:])
    overlaps[first] = 0
    return overlaps


def _exact_overlap(tails: Floats, heads: Floats) -> Ints:
    """The largest n such that the last n of the tail are the first n of the head."""
    length = tails.shape[1]
    overlap = np.zeros(len(tails), dtype=np.int64)
    for size in range(1, length + 1):
        overlap[(tails[:, length - size :] == heads[:, :size]).all(axis=1)] = size
    return overlap


# ---- Algorithm 1 ------------------------------------------------------------------------------------------------


class _Segments(NamedTuple):
    """Where each segment starts among the records, how many it has, and whose it is."""

    starts: Ints
    sizes: Ints
    rows: Ints


def _fold(records: Floats, segments: _Segments, batch: int, length: int, rules: MergeRules) -> _Texts:
    """Fold the segments of each sentence into one text, from left to right.

    A segment's first K records meet the last K of the text; the others are put behind as they are.
    """
    ranks = np.arange(len(segments.rows)) - np.searchsorted(segments.rows, segments.rows)
    turns = np.argsort(ranks, kind="stable")  # a turn folds the segments of one rank, at most one a sentence
    starts, sizes, rows = (column[turns] for column in segments)
    room = length + int(np.bincount(rows, sizes, batch).max(initial=0))
    texts = np.empty((batch, room, 5))
    texts[:, :length] = NO_TAIL  # so that the last K of a short text can be read
    flat, firsts = texts.reshape(-1, 5), rows * room
    lanes = np.arange(length + 1)
    heads = np.concatenate([records, np.tile(NOTHING, (length + 1, 1))])[starts[:, None] + lanes]
    heads[lanes >= np.minimum(sizes, length)[:, None]] = NOTHING
    beyond = np.maximum(sizes - length, 0)
    segment = np.repeat(np.arange(len(sizes)), beyond)
    inner = length + np.arange(len(segment)) - np.repeat(np.cumsum(beyond) - beyond, beyond)
    others = records[starts[segment] + inner]

    ends, head_sizes = np.zeros(batch, dtype=np.int64), sizes - beyond
    bounds = np.searchsorted(ranks[turns], np.arange(ranks.max(initial=-1) + 2))
    for turn in map(slice, bounds[:-1], bounds[1:]):
        row, end = rows[turn], ends[rows[turn]]
        tails = flat.take((firsts[turn] + end)[:, None] + lanes[:-1], axis=0)
        window = _window(np.concatenate([tails, heads[turn]], axis=1), rules)
        base = firsts[turn] + length + np.maximum(end - length, 0)
        flat[(base[:, None] + window.places)[window.stays]] = window.records[window.stays]
        # A record's place in the segment, plus this, is its place among all texts' records.
        offsets = base + window.sizes - head_sizes[turn]
        behind = slice(*np.searchsorted(segment, (turn.start, turn.stop)))
        flat[offsets[segment[behind] - turn.start] + inner[behind]] = others[behind]
        ends[row] = offsets + sizes[turn] - firsts[turn] - length
    return _Texts(texts[:, length:], ends)


class _Window(NamedTuple):
    """What becomes of R tails and heads: 2 K records each, in the order of the merged text."""

    records: Floats
    stays: Bools
    places: Ints
    """Of those that stay, from 0."""
    sizes: Ints
    """How many stay in each row."""


def _window(both: Floats, rules: MergeRules) -> _Window:
    """Algorithm 1 on K records of a tail (at the right), K of a head (at the left) and one that is nothing, a row."""
    count, length = len(both), both.shape[1] // 2
    plan = _plan(both[:, :length, None, ID] == both[:, None, length:-1, ID])
    flat, first = both.reshape(-1, 5), np.arange(count)[:, None] * (2 * length + 1)
    records = flat.take(first + plan.order, axis=0)
    scores, there = records[:, :, SCORE].ravel(), records[:, :, ID] >= 0
    mates = flat.take(first + plan.mates, axis=0)
    np.maximum(records[:, :, SCORE], mates[:, :, SCORE], out=records[:, :, SCORE])
    records[:, :, TOTAL : TIMES + 1] += mates[:, :, TOTAL : TIMES + 1]
    np.minimum(records[:, :, LOWEST], mates[:, :, LOWEST], out=records[:, :, LOWEST])

    # bincount adds in the order of the records, as the plain version does.
    size = 2 * length + 4
    groups = plan.groups * there + np.arange(count)[:, None] * size
    numbers = np.bincount(groups.ravel(), minlength=count * size).reshape(count, size)
    sums = np.bincount(groups.ravel(), scores, count * size).reshape(count, size)
    means = sums[:, LEFT:] / np.maximum(numbers[:, LEFT:], 1)
    means[numbers[:, LEFT:] == 0] = math.log(rules.empty_probability)
    keeps_left = means[:, : length + 1] >= means[:, length + 1 :]
    if rules.edge_rules:
        keeps_left[:, 0] |= numbers[:, LEFT + length + 1] == 0
        every = np.arange(count)
        keeps_left[every, plan.matches] &= numbers[every, LEFT + plan.matches] > 0
    kept = np.empty((count, size), dtype=np.bool_)
    kept[:, DROPPED], kept[:, KEPT] = False, True
    kept[:, LEFT : LEFT + length + 1] = keeps_left
    np.logical_not(keeps_left, out=kept[:, LEFT + length + 1 :])
    stays = kept.take(groups)
    places = np.cumsum(stays, axis=1)
    return _Window(records, stays, places - 1, places[:, -1])


DROPPED, KEPT, LEFT = range(3)
"""Groups of records that share their lot: never kept, always kept, then K + 1 left spans and K + 1 right spans."""


class _Plan(NamedTuple):
    """How R tails and heads are aligned; a record is named by its place in the tail, or K + that in the head."""

    order: Ints
    """R x 2 K: the records in the order of the merged text, both sides of a span one behind the other."""
    mates: Ints
    """R x 2 K: the record of the head that each of these is fused with; 2 K is none."""
    groups: Ints
    """R x 2 K: whom each of these shares its lot with."""
    matches: Ints
    """R."""


TABLE_LENGTH = 3
"""Up to this K the plans of all patterns are kept: 2 to the power of 9 of them."""


def _plan(same: Bools) -> _Plan:
    """The plans for R x K x K patterns of equal ids."""
    length = same.shape[1]
    if length > TABLE_LENGTH:
        return _align(same)
    table = _table(length).take(same.reshape(len(same), -1) @ (1 << np.arange(length * length)), axis=0)
    width = 2 * length
    return _Plan(table[:, :width], table[:, width : 2 * width], table[:, 2 * width : -1], table[:, -1])


@lru_cache(maxsize=TABLE_LENGTH)
def _table(length: int) -> Ints:
    """The plan of each pattern, its parts side by side."""
    patterns = np.arange(1 << length * length)[:, None] >> np.arange(length * length) & 1
    plan = _align(patterns.astype(np.bool_).reshape(-1, length, length))
    return np.concatenate([*plan[:-1], plan.matches[:, None]], axis=1)


def _align(same: Bools) -> _Plan:
    """`longest_common_subsequence` of each pattern, with its rule for ties."""
    count, length, _ = same.shape
    table = np.zeros((count, length + 1, length + 1), dtype=np.int64)
    for i in range(length):
        for j in range(length):
            longer = np.maximum(table[:, i, j + 1], table[:, i + 1, j])
            table[:, i + 1, j + 1] = np.where(same[:, i, j], table[:, i, j] + 1, longer)
    mates = np.full((count, 2 * length), 2 * length)
    matched = np.zeros((count, 2 * length), dtype=np.bool_)
    every, column = np.arange(count), np.full(count, length)
    for i in range(length, 0, -1):
        # Drop the head's last as long as that costs nothing: the first column that reaches the row's value.
        column = (table[:, i] >= table[every, i, column][:, None]).argmax(axis=1)
        match = (column > 0) & same[every, i - 1, column - 1]
        column -= match
        mates[match, i - 1] = length + column[match]
        matched[match, i - 1] = True
        matched[match, length + column[match]] = True
    before = np.cumsum(matched.reshape(count, 2, length), axis=2).reshape(count, -1) - matched
    right = np.arange(2 * length) >= length
    groups = np.where(matched, np.where(right, DROPPED, KEPT), LEFT + (length + 1) * right + before)
    matches = matched[:, :length].sum(axis=1)
    groups[matches == 0] = KEPT  # line 3: nothing shared, both stay
    order = np.argsort(2 * before + matched, axis=1, kind="stable")
    return _Plan(order, np.take_along_axis(mates, order, 1), np.take_along_axis(groups, order, 1), matches)


# ---- from texts to next inputs ----------------------------------------------------------------------------------


class _Sentences(NamedTuple):
    """B sentences between BOS and EOS, each B x W."""

    ids: Ints
    scores: Floats
    positions: Floats
    lengths: Ints


def _wrap(texts: _Texts, counts: Ints, width: int) -> _Sentences:
    """`wrap` of each text: one begin and one end, and no other; W is `width`."""
    batch, size, _ = texts.records.shape
    there = np.arange(size) < texts.lengths[:, None]
    ids = np.where(there, texts.records[:, :, ID], PAD).astype(np.int64)
    words = there & (ids != BOS) & (ids != EOS) & (ids != MASK)
    rows, columns = words.nonzero()
    targets = np.cumsum(words, axis=1)[rows, columns]
    chosen = texts.records[rows, columns]
    every, lengths = np.arange(batch), words.sum(axis=1) + 2
    result = _Sentences(
        np.full((batch, width), PAD), np.zeros((batch, width)), np.zeros((batch, width)), lengths.astype(np.int64)
    )
    result.ids[rows, targets] = ids[rows, columns]
    result.ids[:, 0] = BOS
    result.ids[every, lengths - 1] = EOS
    result.scores[rows, targets] = chosen[:, SCORE]
    result.positions[rows, targets] = chosen[:, TOTAL] / chosen[:, TIMES]
    result.positions[every, lengths - 1] = counts
    ends_in, end = (ids == EOS).nonzero()
    which, first = np.unique(ends_in, return_index=True)
    result.positions[which, lengths[which] - 1] = texts.records[which, end[first], LOWEST]
    return result


def _visible(sentences: _Sentences, step: MergeStep) -> Bools:
    """B x W: what is not masked, nor padding. Of equal scores the leftmost is masked first."""
    ids, scores, _, lengths = sentences
    columns, sizes = np.arange(ids.shape[1]), lengths[:, None]
    masks = np.minimum(sizes - sizes * step.iteration // step.iterations, sizes - 2)
    words = (columns > 0) & (columns < sizes - 1)
    order = np.argsort(np.where(words, scores, math.inf), axis=1, kind="stable")
    hidden = np.empty_like(words)
    np.put_along_axis(hidden, order, columns < masks, axis=1)
    return ~hidden & (columns < sizes)


def _length_changes(lengths: Ints, aims: Ints, rules: MergeRules) -> Ints:
    if rules.band >= 1:
        low, high = aims - int(rules.band), aims + int(rules.band)
    else:
        low, high = (aims * (1 - rules.band)).astype(np.int64), (aims * (1 + rules.band)).astype(np.int64)
    edges = aims if rules.reach_input_length else np.where(lengths < low, low, high)
    return np.where((low <= lengths) & (lengths <= high), 0, edges - lengths)


def _adjust(sentences: _Sentences, visible: Bools, change: Ints, rules: MergeRules, out: Ints) -> Ints:
    """Put masks between what is visible, as many as were masked and `change` more; the lengths of the next inputs."""
    batch, limit = out.shape
    counts = visible.sum(axis=1)
    rows, columns = visible.nonzero()
    slots = np.cumsum(visible, axis=1)[rows, columns] - 1
    width = int(counts.max(initial=0))
    places = np.zeros((batch, width + 1), dtype=np.int64)
    places[rows, slots] = columns
    positions = np.take_along_axis(sentences.positions, places, axis=1)
    has_next = np.arange(width) < counts[:, None] - 1
    masks = np.where(has_next, places[:, 1:] - places[:, :-1] - 1, 0)
    gaps = np.where(has_next, positions[:, 1:] - positions[:, :-1] - 1 - masks, 0.0)
    is_slot = np.arange(width) < counts[:, None] if rules.slot_after_eos else has_next
    # To delete is to add the other way round: the widest gap then is the narrowest.
    sign = np.where(change < 0, -1, 1)
    gaps = np.where(is_slot, gaps * sign[:, None], -math.inf)
    turns = np.abs(change)
    for turn in range(int(turns.max(initial=0))):
        row = (turns > turn).nonzero()[0]
        slot = gaps[row].argmax(axis=1)
        gaps[row, slot] -= 1
        masks[row, slot] += sign[row]

    masks = np.maximum(masks, 0)  # below zero nothing was there to delete
    targets = (np.cumsum(masks, axis=1) - masks)[rows, slots] + slots
    lengths = counts + masks.sum(axis=1)
    out[np.arange(limit) < lengths[:, None]] = MASK
    fits = targets < limit
    out[rows[fits], targets[fits]] = sentences.ids[rows[fits], columns[fits]]
    out[lengths > limit, limit - 1] = EOS
    result: Ints = np.minimum(lengths, limit)
    return result
