"""Subword units equal those of the package subword-nmt; codes files are checked."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lath.errors import UserError
from lath.text.subword import learn_codes, learn_words, merge_ranks, read_codes, segment, split_words

BOTH = [
    "der alte Mann geht langsam über die Brücke .",
    "die alte Frau geht schnell durch den Garten .",
    "ein Hund läuft über die Wiese und bellt laut .",
    "the old man walks slowly across the bridge .",
    "the old woman walks quickly through the garden .",
    "in the garden there is an old tree that never blooms .",
]


def test_segment_by_hand() -> None:
    ranks = merge_ranks(["l o", "lo w</w>", "e r</w>", "lo w", "x x", "l o"])
    for word, expected in {
        "low": ["low"],
        "lower": ["low@@", "er"],
        "slow": ["s@@", "low"],
        "l": ["l"],
        "xxx": ["xx@@", "x"],  # from the left; the last x is x</w>
        "xxxx": ["xx@@", "x@@", "x"],
        "é": ["é"],
    }.items():
        assert segment(word, ranks) == expected


def test_codes_equal_those_of_the_package() -> None:
    package = pytest.importorskip("subword_nmt.apply_bpe")
    for count in (5, 40, 200):
        merges = learn_codes(BOTH * 2, count)
        reference = package.BPE(io.StringIO("#version: 0.2\n" + "\n".join(merges) + "\n"))
        ranks = merge_ranks(merges)
        for line in [*BOTH, "ein ganz neuer Satz mit Wörtern , die so nie fielen !", "thethethe  oldoldold a"]:
            mine = [unit for word in split_words(line) for unit in segment(word, ranks)]
            assert " ".join(mine) == reference.segment(line)


@settings(max_examples=150, deadline=None)
@given(
    merges=st.lists(
        st.tuples(st.sampled_from(["a", "b", "aa", "ab", "ba", "aab"]), st.sampled_from(["a", "b", "ab", "b</w>"])),
        max_size=8,
    ),
    word=st.text("ab", min_size=1, max_size=14),
)
def test_any_codes_equal_those_of_the_package(merges: list[tuple[str, str]], word: str) -> None:
    package = pytest.importorskip("subword_nmt.apply_bpe")
    codes = [" ".join(merge) for merge in merges] or ["x y"]
    reference = package.BPE(io.StringIO("#version: 0.2\n" + "\n".join(codes) + "\n"))
    assert " ".join(segment(word, merge_ranks(codes))) == reference.segment(word)


def test_words_by_frequency_then_alphabet() -> None:
    assert learn_words(["c b a", "b ca", "z z z"], []) == ["z", "a", "b", "c", "c@@"]  # a and b twice each


def test_codes_files(tmp_path: Path) -> None:
    path = tmp_path / "codes"
    path.write_text("#version: 0.2\ne r</w>\nt h \n", encoding="utf-8")
    assert read_codes(path) == ["e r</w>", "t h"]
    for text in ("", "e r</w>\n", "#version: 0.1\ne r\n"):
        path.write_text(text)
        with pytest.raises(UserError, match="codes: not a subword-nmt codes file of version 0.2 .*learn-bpe"):
            read_codes(path)
    path.write_text("#version: 0.2\na b\na b c\n")
    with pytest.raises(UserError, match="codes: line 3 is 'a b c', but a merge is two units .*learn-bpe"):
        read_codes(path)
    with pytest.raises(UserError, match="none: no such file"):
        read_codes(tmp_path / "none")
