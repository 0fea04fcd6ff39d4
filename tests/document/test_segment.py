from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lath.document.segment import split_long


def shorter_than(limit: int) -> Callable[[str], bool]:
    return lambda fragment: len(fragment) <= limit


@pytest.mark.parametrize(
    ("text", "limit", "fragments"),
    [
        ("short enough", 12, ["short enough"]),
        ("", 5, [""]),
        (
            "One two. Three four. Five six.",
            21,
            ["One two. Three four.", "Five six."],
        ),  # whole sentences
        ("One two! Three, four five six", 22, ["One two!", "Three, four five six"]),  # a sentence end wins
        ('He said "no." She left.', 15, ['He said "no."', "She left."]),  # the quote closes with its sentence
        ("one two, three four five", 18, ["one two,", "three four five"]),  # else a clause end
        ("one two three four", 9, ["one two", "three", "four"]),  # else white space
        ("pi is 3.14159, roughly", 16, ["pi is 3.14159,", "roughly"]),  # no cut inside a number
        ("at 10:30 o'clock sharp", 10, ["at 10:30", "o'clock", "sharp"]),
        ("你好。再见！好的", 4, ["你好。", "再见！", "好的"]),  # East Asian marks need no space
        ("「好。」再见，朋友", 6, ["「好。」", "再见，朋友"]),
        ("abcdefgh", 4, ["abcd", "efgh"]),  # a giant word is halved
        ("abcdefghi", 4, ["abcd", "ef", "ghi"]),
        ("ab abcdefgh ab", 4, ["ab", "abcd", "efgh", "ab"]),
        ("  a b  ", 3, ["a b"]),
        ("a    b", 3, ["a", "b"]),
    ],
)
def test_table(text: str, limit: int, fragments: list[str]) -> None:
    assert split_long(text, shorter_than(limit)) == fragments


def test_nothing_fits_and_still_nothing_is_lost() -> None:
    assert split_long("ab c", lambda fragment: False) == ["a", "b", "c"]


def squeezed(text: str) -> str:
    return "".join(text.split())


@settings(max_examples=200, deadline=None)
@given(st.text("ab .,!。，\u2028\t", max_size=60), st.integers(1, 12))
def test_fragments_fit_and_nothing_is_lost(text: str, limit: int) -> None:
    fits = shorter_than(limit)
    fragments = split_long(text, fits)
    assert squeezed("".join(fragments)) == squeezed(text)
    if fits(text):
        assert fragments == [text]
    else:
        assert all(fragment and fits(fragment) and fragment == fragment.strip() for fragment in fragments)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["a", "bb", "ccc"]), min_size=1, max_size=30), st.integers(3, 9))
def test_words_fill_fragments_as_a_loop_would(words: list[str], limit: int) -> None:
    expected = [words[0]]
    for word in words[1:]:
        if len(expected[-1]) + 1 + len(word) <= limit:
            expected[-1] += " " + word
        else:
            expected.append(word)
    assert split_long(" ".join(words), shorter_than(limit)) == expected


@pytest.mark.parametrize("kind", ["prose", "no marks", "one word", "East Asian"])
def test_few_and_short_questions_on_long_lines(kind: str) -> None:
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 12))) for _ in range(15_000)]
    text = {
        "prose": " ".join(word + draw.choice(["", "", "", ",", "."]) for word in words),
        "no marks": " ".join(words),
        "one word": "".join(words),
        "East Asian": re.sub("[ab]", "。", "".join(words)),
    }[kind]
    asked = 0

    def fits(fragment: str) -> bool:
        nonlocal asked
        asked += len(fragment)
        return len(fragment) <= 500

    fragments = split_long(text, fits)
    assert squeezed("".join(fragments)) == squeezed(text)
    assert max(map(len, fragments)) <= 500
    assert asked < 40 * len(text)  # each character is tokenised a few dozen times, for any length of line
