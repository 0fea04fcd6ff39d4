"""Merging and length adjustment: worked examples first, then what must hold for any pieces."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lath.config import RULE_SETS, MergeRules
from lath.decoding.masks import mask_count
from lath.decoding.merge import (
    Decision,
    Merged,
    Sentence,
    Token,
    longest_common_subsequence,
    merge_pieces,
    next_input,
    wrap,
)

BOS, EOS, MASK = 0, 2, 4
OFFICIAL, PAPER = RULE_SETS["official"], RULE_SETS["paper"]
NO_CONCATENATION = replace(OFFICIAL, concatenate_exact=False)
QUARTER = math.log(0.25)

Pieces = list[list[int]]


def _scores(pieces: Pieces, special: dict[tuple[int, int], float]) -> list[list[float]]:
    """-0.5 for every token but the special ones, which are named by piece and place."""
    return [[special.get((i, j), -0.5) for j in range(len(piece))] for i, piece in enumerate(pieces)]


@dataclasses.dataclass(frozen=True)
class Worked:
    """A merge worked by hand."""

    pieces: Pieces
    expected: list[int]
    scores: dict[tuple[int, int], float] = dataclasses.field(default_factory=dict)
    rules: MergeRules = OFFICIAL


OVERLAPPING = [[0, 10, 11], [10, 11, 12], [11, 12, 2], [12, 2, 2], [2, 2, 2]]
DOUBTED_TAIL = [[10, 11, 12], [11, 20, 21]]
MIDDLE = [[10, 11, 12], [10, 12, 13]]

WORKED = {
    "1 all overlaps exact": Worked(OVERLAPPING, [0, 10, 11, 12, 2]),
    "1 as Algorithm 1 has it": Worked(OVERLAPPING, [0, 10, 11, 12, 2, 2, 2], rules=PAPER),
    "2 nothing shared": Worked([[10, 11, 12], [20, 21, 22]], [10, 11, 12, 20, 21, 22]),
    "3 repeat inside a piece": Worked([[10, 10, 11], [11, 12, 13]], [10, 11, 12, 13]),
    "4 right tail is surer": Worked(DOUBTED_TAIL, [10, 11, 20, 21], {(0, 2): -2.0, (1, 1): -0.4}),
    "4 left tail is surer": Worked(DOUBTED_TAIL, [10, 11, 12], {(0, 2): -0.3, (1, 1): -0.4}),
    "4 a tie goes left": Worked(DOUBTED_TAIL, [10, 11, 12]),
    "5 middle kept": Worked(MIDDLE, [10, 11, 12, 13], {(0, 1): -1.0}),
    "5 middle dropped": Worked(MIDDLE, [10, 12, 13], {(0, 1): -1.5}),
    "5 middle at the value of nothing, left": Worked(MIDDLE, [10, 11, 12, 13], {(0, 1): QUARTER}),
    "6 middle at the value of nothing, right": Worked([[10, 12, 13], [10, 11, 12]], [10, 12, 13], {(1, 1): QUARTER}),
    "7 older tokens replaced": Worked(
        [[10, 11, 12], [20, 12, 13]], [20, 12, 13], {(0, 0): -2.0, (0, 1): -2.2, (1, 0): -0.3}
    ),
    "8 what only the left has first stays": Worked(
        [[10, 11, 12], [11, 13, 14]], [10, 11, 12], {(0, 0): -9.0, (0, 2): -0.3}
    ),
    "9 ties: the early place on the right": Worked([[10, 11, 12], [11, 10, 13]], [10, 11, 12]),
    "9 ties: the late place on the left": Worked(
        [[10, 11, 10, 12], [10, 13, 14, 15]], [10, 11, 10, 13, 14, 15], {(0, 3): -2.0}
    ),
    "10 one shared token is enough to join": Worked([[10, 11, 10], [10, 11, 12]], [10, 11, 10, 11, 12]),
    "10 without that pass": Worked([[10, 11, 10], [10, 11, 12]], [10, 11, 12], {(0, 2): -2.0}, rules=NO_CONCATENATION),
    "11 out of the window": Worked([[10, 11], [11, 12], [12, 13], [10, 14]], [10, 11, 12, 13, 10, 14]),
    "12 two conflicts": Worked(
        [[10, 11, 12, 13], [10, 21, 12, 23]], [10, 21, 12, 13], {(0, 1): -0.9, (0, 3): -0.3, (1, 3): -1.3}
    ),
    "13 text behind an end": Worked([[0, 10, 11], [10, 11, 2], [11, 2, 2], [2, 12, 13]], [0, 10, 11, 2, 12, 13]),
    "no pieces": Worked([], []),
    "one piece": Worked([[10, 10, 11]], [10, 11]),
    "one piece, repeats kept": Worked([[10, 10, 11]], [10, 10, 11], rules=PAPER),
}


@pytest.mark.parametrize("name", WORKED)
def test_worked_merge(name: str) -> None:
    case = WORKED[name]
    assert merge_pieces(case.pieces, _scores(case.pieces, case.scores), case.rules).ids == case.expected


def _merged(pieces: Pieces, special: dict[tuple[int, int], float], rules: MergeRules = OFFICIAL) -> Merged:
    return merge_pieces(pieces, _scores(pieces, special), rules)


def test_positions_without_any_overlap() -> None:
    merged = _merged([[10, 11, 12], [20, 21, 22]], {})
    assert [token.position for token in merged.tokens] == [0, 1, 2, 1, 2, 3]


def test_a_fused_token_has_the_best_score_and_the_mean_position() -> None:
    first, second, *_ = _merged([[10, 10, 11], [11, 12, 13]], {(0, 1): -0.1}).tokens
    assert first == Token(10, -0.1, [(0, 0), (0, 1)])
    assert first.position == 0.5
    assert second.sources == [(0, 2), (1, 0)]
    assert second.position == 1.5


def test_the_pieces_are_not_changed() -> None:
    pieces = [[10, 10, 11], [11, 12, 13]]
    scores = _scores(pieces, {})
    merge_pieces(pieces, scores, OFFICIAL)
    assert pieces == [[10, 10, 11], [11, 12, 13]]
    assert scores == _scores(pieces, {})


def test_decisions_tell_why_a_token_is_there() -> None:
    merged = _merged([[10, 11, 12], [10, 21, 12], [30, 31, 32], [31, 32, 33]], {(1, 1): -0.4})
    assert merged.ids == [10, 21, 12, 30, 31, 32, 33]
    assert merged.decisions == [
        Decision("overlap", 3, (31, 32), (31, 32), 0.0, 0.0, "both"),
        Decision("match", 1, (10,), (10,), -0.5, -0.5, "both"),
        Decision("conflict", 1, (11,), (21,), -0.5, -0.4, "right", ((0, 1),)),
        Decision("match", 1, (12,), (12,), -0.5, -0.5, "both"),
        Decision("concatenate", 2, (10, 21, 12), (30, 31, 32), 0.0, 0.0, "both"),
    ]


# One example for each rule: pieces, special scores, the ids with the official value, the other value and its ids.
MERGE_SWITCHES: dict[str, tuple[Pieces, dict[tuple[int, int], float], list[int], object, list[int]]] = {
    "collapse_repeats": ([[10, 10, 11]], {}, [10, 11], False, [10, 10, 11]),
    "concatenate_exact": ([[10, 11, 10], [10, 11, 12]], {(0, 2): -2.0}, [10, 11, 10, 11, 12], False, [10, 11, 12]),
    "edge_rules": ([[10, 11, 12], [11, 13, 14]], {(0, 0): -9.0}, [10, 11, 12], False, [11, 12]),
    "empty_probability": (MIDDLE, {(0, 1): -1.0}, [10, 11, 12, 13], 0.5, [10, 12, 13]),
}
# The same for the length: scores rise from left to right, so with two masks the first two words are masked.
LENGTH_SWITCHES: dict[str, tuple[int, list[int], object, list[int]]] = {
    "band": (8, [0, 4, 4, 4, 12, 13, 2], 0.25, [0, 4, 4, 12, 13, 2]),
    "reach_input_length": (8, [0, 4, 4, 4, 12, 13, 2], True, [0, 4, 4, 4, 12, 4, 13, 2]),
    "slot_after_eos": (9, [0, 4, 4, 4, 4, 12, 13, 2], True, [0, 4, 4, 4, 12, 13, 2, 4]),
}
STEADY = Sentence([0, 10, 11, 12, 13, 2], [0.0, -4.0, -3.0, -2.0, -1.0, 0.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
CLOSE_AT_THE_START = replace(STEADY, positions=[0.0, 1.0, 2.0, 3.5, 4.0, 4.5])


def test_every_rule_has_an_example() -> None:
    assert {field.name for field in dataclasses.fields(MergeRules)} == {*MERGE_SWITCHES, *LENGTH_SWITCHES}


@pytest.mark.parametrize("switch", MERGE_SWITCHES)
def test_a_merge_rule_does_what_it_says(switch: str) -> None:
    pieces, special, official, value, changed = MERGE_SWITCHES[switch]
    assert _merged(pieces, special).ids == official
    assert _merged(pieces, special, replace(OFFICIAL, **{switch: value})).ids == changed


@pytest.mark.parametrize("switch", LENGTH_SWITCHES)
def test_a_length_rule_does_what_it_says(switch: str) -> None:
    input_length, official, value, changed = LENGTH_SWITCHES[switch]
    # The room behind the end counts as 0; a mask lands there only when every other gap is below that.
    sentence = CLOSE_AT_THE_START if switch == "slot_after_eos" else STEADY
    assert next_input(sentence, 2, input_length, OFFICIAL, mask=MASK).ids == official
    other = replace(OFFICIAL, **{switch: value})
    assert next_input(sentence, 2, input_length, other, mask=MASK).ids == changed


def test_the_rule_sets_differ_where_they_should() -> None:
    assert MergeRules() == OFFICIAL
    differing = {f.name for f in dataclasses.fields(MergeRules) if getattr(OFFICIAL, f.name) != getattr(PAPER, f.name)}
    assert differing == {"collapse_repeats", "concatenate_exact", "reach_input_length"}


# Any pieces: few different ids, so that there is much to align, and repeated scores, so that there are ties.

ids = st.integers(10, 14) | st.sampled_from([BOS, EOS, MASK])
scores = st.sampled_from([-0.1, -0.5, -1.0, QUARTER, -2.0]) | st.floats(-5, 0, allow_nan=False)
rule_sets = st.builds(
    MergeRules,
    collapse_repeats=st.booleans(),
    concatenate_exact=st.booleans(),
    edge_rules=st.booleans(),
    empty_probability=st.sampled_from([0.01, 0.25, 1.0]),
    band=st.sampled_from([0.0, 0.05, 0.1, 0.5, 1.0, 3.0]),
    reach_input_length=st.booleans(),
    slot_after_eos=st.booleans(),
)


@st.composite
def scored_pieces(draw: st.DrawFn) -> tuple[Pieces, list[list[float]]]:
    length = draw(st.integers(1, 5))
    pieces = draw(st.lists(st.lists(ids, min_size=length, max_size=length), min_size=1, max_size=8))
    return pieces, [draw(st.lists(scores, min_size=length, max_size=length)) for _ in pieces]


@given(scored_pieces(), rule_sets)
def test_every_token_was_proposed_once_where_it_says(
    given_pieces: tuple[Pieces, list[list[float]]], rules: MergeRules
) -> None:
    pieces, log_probabilities = given_pieces
    merged = merge_pieces(pieces, log_probabilities, rules)
    sources = [source for token in merged.tokens for source in token.sources]
    assert len(sources) == len(set(sources))
    for token in merged.tokens:
        assert token.sources
        assert {pieces[piece][inner] for piece, inner in token.sources} == {token.id}
        assert token.score == max(log_probabilities[piece][inner] for piece, inner in token.sources)
        assert token.position == sum(piece + inner for piece, inner in token.sources) / len(token.sources)


@st.composite
def cut_sentences(draw: st.DrawFn) -> tuple[list[int], Pieces, list[list[float]]]:
    """A sentence of distinct tokens and pieces of it, each sharing at least one token with the one before."""
    sentence = draw(st.lists(st.integers(10, 99), min_size=1, max_size=14, unique=True))
    length = draw(st.integers(2, 6))
    starts = [0]
    while starts[-1] + length < len(sentence):
        starts.append(starts[-1] + draw(st.integers(1, length - 1)))
    pieces = [sentence[start : start + length] for start in starts]
    return sentence, pieces, [draw(st.lists(scores, min_size=len(p), max_size=len(p))) for p in pieces]


@given(cut_sentences(), st.sampled_from([OFFICIAL, NO_CONCATENATION, PAPER]))
def test_a_cut_sentence_is_whole_again(cut: tuple[list[int], Pieces, list[list[float]]], rules: MergeRules) -> None:
    sentence, pieces, log_probabilities = cut
    assert merge_pieces(pieces, log_probabilities, rules).ids == sentence


@given(st.lists(st.integers(10, 99), max_size=12, unique=True), st.integers(2, 6), st.sampled_from(sorted(RULE_SETS)))
def test_what_a_perfect_model_says_is_the_sentence(words: list[int], length: int, rules: str) -> None:
    """Each position proposes its own window of BOS, words, EOS, EOS, ..., as in training."""
    target = [BOS, *words, EOS]
    extended = target + [EOS] * (length - 1)
    pieces = [extended[start : start + length] for start in range(len(target))]
    sentence = wrap(_merged(pieces, {}, RULE_SETS[rules]), len(pieces), bos=BOS, eos=EOS, mask=MASK)
    assert sentence.ids == target
    assert sentence.positions == [float(place) for place in range(len(target))]


def _is_subsequence(part: tuple[int, ...], whole: list[int]) -> bool:
    rest = iter(whole)
    return all(id in rest for id in part)


short = st.lists(st.integers(10, 13), max_size=6)


@given(short, short)
def test_the_common_subsequence_is_a_longest(left: list[int], right: list[int]) -> None:
    pairs = longest_common_subsequence(left, right)
    assert all(left[i] == right[j] for i, j in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(pairs))
    longest = max(
        size
        for size in range(len(left) + 1)
        if any(_is_subsequence(part, right) for part in itertools.combinations(left, size))
    )
    assert len(pairs) == longest


@pytest.mark.parametrize(
    ("left", "right", "pairs"),
    [
        ([], [1], []),
        ([1], [2], []),
        ([7, 8, 7], [7, 9], [(2, 0)]),
        ([7, 9], [7, 8, 7], [(0, 0)]),
        ([1, 2], [2, 1], [(1, 0)]),
        ([1, 2, 3, 4], [1, 5, 3, 6], [(0, 0), (2, 2)]),
        ([1, 1, 1], [1, 1], [(1, 0), (2, 1)]),
    ],
)
def test_ties_of_the_common_subsequence(left: list[int], right: list[int], pairs: list[tuple[int, int]]) -> None:
    assert longest_common_subsequence(left, right) == pairs


@pytest.mark.parametrize(
    ("tokens", "ids", "end"),
    [
        ([(0, 0), (10, 1), (2, 2)], [0, 10, 2], 2.0),
        ([(10, 0), (11, 1)], [0, 10, 11, 2], 9.0),
        ([(10, 0), (2, 1), (11, 2), (2, 3)], [0, 10, 11, 2], 1.0),
        ([(4, 0), (0, 1), (10, 2), (4, 3)], [0, 10, 2], 9.0),
        ([(1, 0), (3, 1), (5, 2)], [0, 1, 3, 5, 2], 9.0),
        ([], [0, 2], 9.0),
    ],
)
def test_wrap(tokens: list[tuple[int, int]], ids: list[int], end: float) -> None:
    merged = Merged([Token(id, -1.0, [(piece, 0)]) for id, piece in tokens], [])
    sentence = wrap(merged, 9, bos=BOS, eos=EOS, mask=MASK)
    assert sentence.ids == ids
    assert sentence.scores == [0.0, *[-1.0] * (len(ids) - 2), 0.0]
    assert (sentence.positions[0], sentence.positions[-1]) == (0.0, end)


def test_the_end_stands_where_it_was_first_proposed() -> None:
    merged = Merged([Token(EOS, -1.0, [(4, 1), (3, 0)]), Token(EOS, -1.0, [(1, 0)])], [])
    assert wrap(merged, 9, bos=BOS, eos=EOS, mask=MASK).positions == [0.0, 3.0]


@pytest.mark.parametrize(
    ("length", "iterations", "counts"),
    [
        (12, 4, [9, 6, 3, 0]),
        (10, 4, [8, 5, 3, 0]),
        (3, 4, [1, 1, 1, 0]),
        (2, 4, [0, 0, 0, 0]),
        (30, 1, [0]),
        (7, 3, [5, 3, 0]),
        (6, 6, [4, 4, 3, 2, 1, 0]),
    ],
)
def test_mask_counts_of_the_table(length: int, iterations: int, counts: list[int]) -> None:
    assert [mask_count(length, iteration, iterations) for iteration in range(1, iterations + 1)] == counts


@given(st.integers(2, 300), st.integers(1, 30))
def test_masks_shrink_to_none_and_spare_begin_and_end(length: int, iterations: int) -> None:
    counts = [mask_count(length, iteration, iterations) for iteration in range(1, iterations + 1)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0
    for iteration, count in enumerate(counts, 1):
        assert count == min(length - math.floor(Fraction(iteration * length, iterations)), length - 2)


@st.composite
def sentences(draw: st.DrawFn) -> Sentence:
    """Words are distinct, so that a test sees which of them is still there."""
    size = draw(st.integers(0, 12))
    words = list(range(10, 10 + size))
    positions = sorted(draw(st.lists(st.integers(0, 60).map(lambda third: third / 3), min_size=size, max_size=size)))
    return Sentence(
        [BOS, *words, EOS],
        [0.0, *draw(st.lists(scores, min_size=size, max_size=size)), 0.0],
        [0.0, *positions, draw(st.floats(0, 20))],
    )


@given(sentences(), st.data(), st.integers(2, 24), rule_sets)
def test_the_next_input(sentence: Sentence, data: st.DataObject, input_length: int, rules: MergeRules) -> None:
    length = len(sentence.ids)
    masks = data.draw(st.integers(0, length - 2))
    result = next_input(sentence, masks, input_length, rules, mask=MASK)

    # The least certain words are masked, in number as asked; begin and end never.
    assert len(result.masked) == masks
    assert not {0, length - 1} & set(result.masked)
    left_alone = set(range(1, length - 1)) - set(result.masked)
    if result.masked and left_alone:
        assert max(sentence.scores[p] for p in result.masked) <= min(sentence.scores[p] for p in left_alone)

    # What is visible stays, in order; the rest is masks.
    visible = [id for place, id in enumerate(sentence.ids) if place not in result.masked]
    assert [id for id in result.ids if id != MASK] == visible
    assert result.ids[0] == BOS
    if not rules.slot_after_eos:
        assert result.ids[-1] == EOS

    # Masks are added as asked; deleting may run out of masks.
    if result.change >= 0:
        assert len(result.ids) == length + result.change
    else:
        assert max(length + result.change, len(visible)) <= len(result.ids) <= length
    if rules.reach_input_length:
        assert result.change in (0, input_length - length)


@pytest.mark.parametrize(
    ("input_length", "band", "adjust_to", "change"),
    [
        # The sentence has 6 tokens.
        (6, 0.0, "edge", 0),
        (7, 0.0, "edge", 1),
        (5, 0.0, "edge", -1),
        (7, 0.05, "edge", 0),  # 7 * 0.95 = 6.65 is cut to 6
        (8, 0.05, "edge", 1),
        (5, 0.05, "edge", -1),  # 5 * 1.05 = 5.25 is cut to 5
        (20, 0.05, "edge", 13),
        (20, 0.05, "input", 14),
        (8, 2.0, "edge", 0),  # a number of tokens
        (9, 2.0, "edge", 1),
        (3, 2.0, "edge", -1),
        (9, 2.0, "input", 3),
        (4, 0.25, "input", -2),
    ],
)
def test_length_changes_of_the_table(input_length: int, band: float, adjust_to: str, change: int) -> None:
    rules = MergeRules(band=band, reach_input_length=adjust_to == "input")
    assert next_input(STEADY, 2, input_length, rules, mask=MASK).change == change


@pytest.mark.parametrize(
    ("positions", "input_length", "expected"),
    [
        # Between 11 and 12 there is room for 5 - 2 - 1 = 2.
        ([0, 1, 2, 5, 6, 7], 8, [0, 4, 11, 4, 4, 12, 13, 2]),
        # Before 11 there is room for 3 - 0 - 1 - 1 mask = 1; then no gap has room and the leftmost takes the second.
        ([0, 1, 3, 4, 5, 6], 8, [0, 4, 4, 4, 11, 12, 13, 2]),
    ],
)
def test_masks_are_inserted_where_positions_leave_room(
    positions: list[float], input_length: int, expected: list[int]
) -> None:
    sentence = Sentence([0, 10, 11, 12, 13, 2], [0.0, -4.0, -1.0, -1.0, -1.0, 0.0], [float(p) for p in positions])
    rules = MergeRules(band=0.0)
    assert next_input(sentence, 1, input_length, rules, mask=MASK).ids == expected


def test_a_turn_of_deleting_is_spent_where_there_is_no_mask() -> None:
    # The narrowest gap is between 11 and 12, which are both visible: nothing is there to delete.
    sentence = replace(STEADY, scores=[0.0, -9.0, -1.0, -1.0, -1.0, 0.0], positions=[0.0, 1.0, 2.0, 2.0, 4.0, 5.0])
    result = next_input(sentence, 1, 5, MergeRules(band=0.0), mask=MASK)
    assert (result.ids, result.change) == ([0, 4, 11, 12, 13, 2], -1)


def test_a_mask_is_deleted_where_the_gap_is_narrowest() -> None:
    sentence = replace(STEADY, positions=[0.0, 1.0, 1.5, 3.0, 4.0, 5.0], scores=[0.0, -9.0, -1.0, -8.0, -1.0, 0.0])
    result = next_input(sentence, 2, 5, MergeRules(band=0.0), mask=MASK)
    assert result.ids == [0, 11, 4, 13, 2]
