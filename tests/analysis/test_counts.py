"""Counts give the scores of the texts that they were made of, and hold no word of them."""

from __future__ import annotations

import dataclasses
import lzma
from pathlib import Path

import numpy as np
import pytest

from lath.analysis.counts import HEADER, read_counts, write_counts
from lath.analysis.scores import measure, measure_counts
from lath.errors import UserError

RIGHT = ["the old dog barks at the late train", "a cat", "it is late now now", "so", "", "x y"] * 5
ONE = ["the old dog dog barks at a train", "a cat sees it", "it is", "", "no reference", "y x x"] * 5
OTHER = [line[1:] for line in ONE]


@pytest.mark.parametrize("tokenised", [False, True])
def test_scores_and_tests_are_those_of_the_texts(tokenised: bool, tmp_path: Path) -> None:
    expected = measure([ONE, OTHER], RIGHT, tokenised, samples=50)
    paths = [tmp_path / f"{number}.tsv.xz" for number in range(2)]
    for path, found in zip(paths, expected, strict=True):
        write_counts(path, found.counts)
    counts = [read_counts(path) for path in paths]
    for one, before in zip(counts, expected, strict=True):
        assert np.array_equal(one.chrf, before.counts.chrf)
        assert np.array_equal(one.bleu, before.counts.bleu)
    found = measure_counts(counts, tokenised, samples=50)
    assert [one.scores for one in found] == [one.scores for one in expected]
    assert found[1].gain_over(found[0]) == expected[1].gain_over(expected[0])
    assert [dataclasses.asdict(one.scores) for one in measure_counts(counts, tokenised)] == [
        dataclasses.asdict(one.scores) for one in measure([ONE, OTHER], RIGHT, tokenised)
    ]


def test_only_numbers_are_written(tmp_path: Path) -> None:
    write_counts(tmp_path / "a.tsv.xz", measure([ONE], RIGHT)[0].counts)
    header, *lines = lzma.decompress((tmp_path / "a.tsv.xz").read_bytes()).decode().splitlines()
    assert header.split("\t") == list(HEADER)
    assert len(lines) == len(RIGHT)
    assert all(field.isdecimal() for line in lines for field in line.split("\t"))


@pytest.mark.parametrize("text", ["", "\t".join(HEADER), "a\tb\n1\t2", "\t".join(HEADER) + "\n1\t2"])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tsv.xz"
    path.write_bytes(lzma.compress(text.encode()))
    with pytest.raises(UserError, match="not a file of counts"):
        read_counts(path)
