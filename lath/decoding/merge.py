"""From pieces to a sentence, and from a sentence to the next decoder input.

Follows section 3 (Algorithm 1) and appendix E of the paper; plain Python, no tensors: this is the
reference every faster merger is compared with. Ids are opaque here: the caller names the special ones.

The life of a sentence between two passes of the decoder:

    pieces -> merge_pieces -> Merged -> wrap -> Sentence -> next_input -> the next pass's tokens
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lath.config import MergeRules

Source = tuple[int, int]
"""Where a proposed token came from: the piece, and the place inside that piece (both from 0)."""


@dataclass(slots=True)
class Token:
    """One token of a merged text, with every proposal that was aligned into it."""

    id: int
    score: float
    """The best log-probability among its proposals."""
    sources: list[Source]

    @property
    def position(self) -> float:
        """The mean of piece + inner over all proposals (appendix E), which shows where gaps are."""
        return sum([piece + inner for piece, inner in self.sources]) / len(self.sources)


class Decision(NamedTuple):
    """One step of a merge, recorded so that a reader can see why each token is there."""

    step: Literal["overlap", "concatenate", "match", "conflict"]
    piece: int
    """The first piece of the text that was being joined on the right."""
    left: tuple[int, ...]
    right: tuple[int, ...]
    left_score: float
    right_score: float
    kept: Literal["left", "right", "both"]
    lost: tuple[Source, ...] = ()
    """After a conflict: all proposals of the side that lost."""


@dataclass(slots=True)
class Merged:
    """The merged text before special tokens are removed."""

    tokens: list[Token]
    decisions: list[Decision]

    @property
    def ids(self) -> list[int]:
        """The token ids in order."""
        return [token.id for token in self.tokens]


def merge_pieces(pieces: Sequence[Sequence[int]], scores: Sequence[Sequence[float]], rules: MergeRules) -> Merged:
    """Merge one piece for each decoder position into one text.

    >>> merge_pieces([[7, 8, 9], [8, 9, 6]], [[-0.1] * 3] * 2, MergeRules()).ids
    [7, 8, 9, 6]
    """
    window = max((len(piece) for piece in pieces), default=0)
    decisions: list[Decision] = []
    segments = [
        _piece_tokens(index, piece, scores[index], rules.collapse_repeats) for index, piece in enumerate(pieces)
    ]
    if rules.concatenate_exact:
        segments = _concatenate_exact(segments, decisions)
    merged: list[Token] = segments[0] if segments else []
    empty_score = math.log(rules.empty_probability)
    for segment in segments[1:]:
        merged = _merge_segments(merged, segment, window, empty_score, rules.edge_rules, decisions)
    return Merged(merged, decisions)


def _piece_tokens(index: int, ids: Sequence[int], scores: Sequence[float], collapse: bool) -> list[Token]:
    tokens: list[Token] = []
    for inner, id in enumerate(ids):
        if collapse and tokens and tokens[-1].id == id:
            tokens[-1].sources.append((index, inner))
            tokens[-1].score = max(tokens[-1].score, scores[inner])
        else:
            tokens.append(Token(id, scores[inner], [(index, inner)]))
    return tokens


def _fuse(left: Token, right: Token) -> Token:
    """Line 16 of Algorithm 1: two proposals of one token are one, with the higher score."""
    return Token(left.id, max(left.score, right.score), left.sources + right.sources)


def _concatenate_exact(pieces: list[list[Token]], decisions: list[Decision]) -> list[list[Token]]:
    """Join each piece to the running segment by the longest exact overlap; no overlap starts a new segment."""
    segments: list[list[Token]] = []
    written: list[int] = []
    for piece in pieces:
        ids = [token.id for token in piece]
        for overlap in range(min(len(written), len(ids)), 0, -1):
            if written[-overlap:] == ids[:overlap]:
                segment, common = segments[-1], tuple(ids[:overlap])
                for left, right in zip(segment[-overlap:], piece, strict=False):
                    left.score, left.sources = max(left.score, right.score), left.sources + right.sources
                segment += piece[overlap:]
                written += ids[overlap:]
                decisions.append(Decision("overlap", piece[0].sources[0][0], common, common, 0.0, 0.0, "both"))
                break
        else:
            segments.append(piece)
            written = ids
    return segments


def _merge_segments(
    left: list[Token],
    right: list[Token],
    window: int,
    empty_score: float,
    edge_rules: bool,
    decisions: list[Decision],
) -> list[Token]:
    """Algorithm 1 on the last `window` tokens of the left text and the first `window` of the right."""
    tail, head = left[-window:], right[:window]
    first = right[0].sources[0][0]
    pairs = longest_common_subsequence([token.id for token in tail], [token.id for token in head])
    if not pairs:  # line 3
        decisions.append(Decision("concatenate", first, _ids(tail), _ids(head), 0.0, 0.0, "both"))
        return left + right
    merged = left[: len(left) - len(tail)]
    previous1 = previous2 = -1
    for number, (i1, i2) in enumerate([*pairs, (len(tail), len(head))]):
        span1, span2 = tail[previous1 + 1 : i1], head[previous2 + 1 : i2]
        before_first, after_last = number == 0, number == len(pairs)
        if edge_rules and before_first and not span2:
            merged += span1
        elif edge_rules and after_last and not span1:
            merged += span2
        else:  # lines 9 to 14
            score1, score2 = _span_score(span1, empty_score), _span_score(span2, empty_score)
            merged += span1 if score1 >= score2 else span2
            if span1 or span2:
                kept: Literal["left", "right"] = "left" if score1 >= score2 else "right"
                lost = tuple([source for token in (span2 if kept == "left" else span1) for source in token.sources])
                decisions.append(Decision("conflict", first, _ids(span1), _ids(span2), score1, score2, kept, lost))
        if not after_last:
            matched = _fuse(tail[i1], head[i2])
            merged.append(matched)
            decisions.append(
                Decision("match", first, (matched.id,), (matched.id,), tail[i1].score, head[i2].score, "both")
            )
        previous1, previous2 = i1, i2
    return merged + right[len(head) :]


def _ids(span: list[Token]) -> tuple[int, ...]:
    return tuple([token.id for token in span])  # a list first: a generator takes twice as long


def _span_score(span: list[Token], empty_score: float) -> float:
    """Section 3: the mean score of the span's tokens, or a fixed value for an empty span."""
    return sum(token.score for token in span) / len(span) if span else empty_score


def longest_common_subsequence(left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    """Index pairs of one longest common subsequence, in order.

    The paper leaves ties open; here the latest possible places on the left are matched with the earliest
    possible places on the right.

    >>> longest_common_subsequence([7, 8, 7], [7, 9])
    [(2, 0)]
    """
    if set(left).isdisjoint(right):  # the usual case where pieces do not overlap
        return []
    table = [[0] * (len(right) + 1)]
    for id1 in left:
        above, row = table[-1], [0]
        for j, id2 in enumerate(right):
            row.append(above[j] + 1 if id1 == id2 else max(above[j + 1], row[j]))
        table.append(row)
    pairs: list[tuple[int, int]] = []
    i, j = len(left), len(right)
    while table[i][j]:
        if table[i][j - 1] == table[i][j]:
            j -= 1
        elif left[i - 1] == right[j - 1]:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        else:
            i -= 1
    return pairs[::-1]


@dataclass(slots=True)
class Sentence:
    """A merged text between exactly one begin and one end symbol."""

    ids: list[int]
    scores: list[float]
    positions: list[float]


def wrap(merged: Merged, pieces: int, *, bos: int, eos: int, mask: int) -> Sentence:
    """Remove every begin, end and mask token wherever it stands, and put one begin and one end around the rest.

    The end stands at the first place where an end was proposed, or at `pieces`, the number of pieces, if nowhere.
    """
    end = next(
        (float(min(piece + inner for piece, inner in token.sources)) for token in merged.tokens if token.id == eos),
        float(pieces),
    )
    words = [token for token in merged.tokens if token.id not in (bos, eos, mask)]
    return Sentence(
        ids=[bos, *(token.id for token in words), eos],
        scores=[0.0, *(token.score for token in words), 0.0],
        positions=[0.0, *(token.position for token in words), end],
    )


class NextInput(NamedTuple):
    """The decoder input of the next pass, and how it was made."""

    ids: list[int]
    masked: list[int]
    """Places in the sentence (BOS is 0) whose tokens were masked."""
    change: int
    """Masks to insert (positive) or delete (negative) to come near the input length."""


def next_input(sentence: Sentence, masks: int, input_length: int, rules: MergeRules, *, mask: int) -> NextInput:
    """Mask the `masks` least certain words and adjust the length towards `input_length` (appendix E).

    Begin and end are never masked, and only masks are ever deleted.
    """
    length = len(sentence.ids)
    masked = least_certain(sentence.scores, masks)
    change = _length_change(length, input_length, rules)
    hidden = set(masked)
    if change == 0:
        return NextInput([mask if place in hidden else id for place, id in enumerate(sentence.ids)], masked, 0)

    # A slot is the room between one visible token and the next; it holds the masks that stand there.
    visible = [place for place in range(length) if place not in hidden]
    counts = [after - place - 1 for place, after in itertools.pairwise(visible)]
    gaps = [
        sentence.positions[after] - sentence.positions[place] - 1 - count
        for (place, after), count in zip(itertools.pairwise(visible), counts, strict=True)
    ]
    if rules.slot_after_eos:
        counts.append(0)
        gaps.append(0.0)
    for _ in range(abs(change)):
        if change > 0:
            slot = gaps.index(max(gaps))
            counts[slot] += 1
            gaps[slot] -= 1
        else:
            slot = gaps.index(min(gaps))
            counts[slot] -= 1  # below zero: nothing is there to delete, but the turn is spent
            gaps[slot] += 1
    if not rules.slot_after_eos:
        counts.append(0)
    ids: list[int] = []
    for place, count in zip(visible, counts, strict=True):
        ids += [sentence.ids[place], *[mask] * count]
    return NextInput(ids, masked, change)


def least_certain(scores: list[float], count: int) -> list[int]:
    """The places of the `count` words with the lowest scores, in order; BOS and EOS are never among them."""
    words = range(1, len(scores) - 1)
    return sorted(sorted(words, key=scores.__getitem__)[:count])


def _length_change(length: int, input_length: int, rules: MergeRules) -> int:
    """Appendix E: zero inside the band, else the signed distance to the band's edge or to the input length."""
    if rules.band >= 1:
        low, high = input_length - int(rules.band), input_length + int(rules.band)
    else:
        low, high = int(input_length * (1 - rules.band)), int(input_length * (1 + rules.band))
    if low <= length <= high:
        return 0
    if rules.reach_input_length:
        return input_length - length
    return low - length if length < low else high - length
