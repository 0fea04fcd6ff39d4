"""The sentences of a benchmark: enough of them, of the requested lengths, none that a model would split."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lath.analysis.sentences import (
    FEWEST_BATCHES,
    TOLERANCE,
    Pool,
    choose_text,
    near_length,
    taken_whole,
    throughput_lines,
    usable_lines,
)
from lath.analysis.settings import BenchSettings
from lath.errors import UserError
from lath.translator import Translator

DATA = Path("news.de")


def words(count: int) -> str:
    return " ".join(["w"] * count)


def pool(*counts: int) -> Pool:
    """Lines of so many tokens, each with its number in front."""
    return Pool([f"{number}:{words(count)}" for number, count in enumerate(counts)], list(counts), 0)


def all_whole(lines: list[str]) -> list[bool]:
    return [True] * len(lines)


def model(max_length: int, tokens_a_word: int = 1) -> Translator:
    """Something that counts tokens and has a maximum."""

    def encode_lines(lines: list[str]) -> list[list[int]]:
        return [[9] * (tokens_a_word * len(line.split())) for line in lines]

    stand_in: Any = SimpleNamespace(
        source_vocab=SimpleNamespace(encode_lines=encode_lines), info=SimpleNamespace(max_length=max_length)
    )
    return cast(Translator, stand_in)


def test_lines_that_a_model_would_split_are_left_out_and_counted() -> None:
    translators = [model(6), model(6, tokens_a_word=2)]
    found = usable_lines(["a b c", "", "a b c d", " a ", "   ", "a b c d e f g"], translators)
    assert found == Pool(["a b c", "a"], [3, 1], too_long=2)
    assert taken_whole(translators, ["a b c", "a b c d"]) == [True, False]


def test_the_first_twenty_are_not_timed() -> None:
    text = choose_text(DATA, pool(*[5] * 30), BenchSettings(sentences=7), all_whole)
    assert [line.partition(":")[0] for line in text.warm_up] == [str(number) for number in range(20)]
    assert [line.partition(":")[0] for line in text.timed] == [str(number) for number in range(20, 27)]
    assert text.tokens == [5] * 7


def test_sentences_of_a_range_of_lengths() -> None:
    text = choose_text(
        DATA, pool(*[4, 5, 6, 7] * 30), BenchSettings(sentences=1000, min_tokens=5, max_tokens=6), all_whole
    )
    assert len(text.warm_up) + len(text.timed) == 60
    assert set(text.tokens) == {5, 6}


@pytest.mark.parametrize(
    ("count", "tokens", "message"),
    [
        (20, (1, None), "news.de: 20 sentences, but 21 or more are needed, because the first 20 are not timed; "
                        "give a longer text"),
        (50, (6, None), "news.de: 0 sentences of 6 to any number of tokens, but 21 or more are needed, because "
                        "the first 20 are not timed; give a longer text or widen --min-tokens and --max-tokens"),
        (50, (1, 4), "news.de: 0 sentences of 1 to 4 tokens, but 21 or more are needed, because "
                     "the first 20 are not timed; give a longer text or widen --min-tokens and --max-tokens"),
    ],
)  # fmt: skip
def test_too_few_sentences(count: int, tokens: tuple[int, int | None], message: str) -> None:
    with pytest.raises(UserError) as refused:
        choose_text(DATA, pool(*[5] * count), BenchSettings(min_tokens=tokens[0], max_tokens=tokens[1]), all_whole)
    assert str(refused.value) == message


def test_lengths_are_those_of_the_text_or_of_lines_joined() -> None:
    lengths = pool(*[9, 10, 42, 38], *[5] * 40)
    settings = BenchSettings(batches=(4,))
    text = choose_text(DATA, lengths, settings, lambda lines: [len(line.split()) < 100 for line in lines])
    assert sorted(text.by_length) == [10, 20, 40, 80]
    assert text.by_length[40][:2] == [lengths.lines[2], lengths.lines[3]]
    assert {len(line.split()) for line in text.by_length[20]} <= set(range(17, 24))
    assert text.notes == ["160 tokens left out: a model would translate them in fragments"]


def test_missing_lengths_are_reported() -> None:
    text = choose_text(DATA, Pool(["x"] * 30, [300] * 30, too_long=3), BenchSettings(batches=()), all_whole)
    assert text.by_length == {}
    assert text.notes[:2] == [
        "3 lines left out: a model would translate them in fragments",
        "10 tokens left out: the text has no such sentences",
    ]


@pytest.mark.parametrize(
    ("counts", "length", "wanted", "groups"),
    [
        ([20, 21, 19, 40], 20, 2, [(0,), (1,)]),  # the nearest first; of equals the first
        ([17, 24, 23, 16], 20, 9, [(0,), (2,)]),  # 15 per cent is the most, and neighbours make 41 and more
        ([5, 5, 5, 5, 5], 20, 9, [(0, 1, 2, 3)]),
        ([10, 10, 30, 10, 9], 20, 9, [(0, 1), (3, 4)]),  # none across a line that is too long
        ([50, 60], 20, 9, []),
        ([], 20, 9, []),
    ],
)
def test_groups_of_about_one_length(counts: list[int], length: int, wanted: int, groups: list[tuple[int, ...]]) -> None:
    assert near_length(counts, length, wanted) == groups


@given(st.lists(st.integers(1, 60)), st.sampled_from([10, 20, 40, 80, 160]), st.integers(1, 12))
def test_every_group_is_near_its_length(counts: list[int], length: int, wanted: int) -> None:
    groups = near_length(counts, length, wanted)
    assert len(groups) <= wanted
    assert len(set(groups)) == len(groups)
    for group in groups:
        assert list(group) == list(range(group[0], group[-1] + 1))
        assert abs(sum(counts[number] for number in group) - length) <= TOLERANCE * length


@pytest.mark.parametrize(
    ("timed", "batch", "count"),
    [(100, 8, 104), (100, 128, 512), (64, 32, 128), (1, 4, 4 * FEWEST_BATCHES), (41, 8, 48)],
)
def test_a_throughput_is_that_of_several_whole_batches(timed: int, batch: int, count: int) -> None:
    text = choose_text(DATA, pool(*[5] * 600), BenchSettings(sentences=timed), all_whole)
    lines = throughput_lines(text, batch)
    assert len(set(lines)) == len(lines) == count
    assert lines[: min(timed, count)] == text.timed[:count]


def test_sentences_are_repeated_only_if_there_are_too_few_and_then_the_report_says_so() -> None:
    twice = Pool([f"{number % 40}: w" for number in range(100)], [2] * 100, 0)
    text = choose_text(DATA, twice, BenchSettings(sentences=30, batches=(4, 8, 32), lengths=()), all_whole)
    distinct = throughput_lines(text, 4)
    assert len(set(distinct)) == len(distinct) == 32
    assert sorted({throughput_lines(text, 32).count(line) for line in text.bulk}) == [3, 4]
    assert text.notes == ["batch 32: 128 sentences for the throughput, but 40 distinct ones: repeated"]


def test_lengths_are_the_requested_ones() -> None:
    text = choose_text(DATA, pool(*[5] * 60), BenchSettings(sentences=7, lengths=(5, 20)), all_whole)
    assert sorted(text.by_length) == [5, 20]
