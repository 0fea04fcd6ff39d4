"""Subword units as subword-nmt makes them: byte pair encoding of tokenised text, as in the paper.

    merges = learn_codes(lines, 10_000)
    segment("lower", merge_ranks(merges))  ->  ["lo@@", "w@@", "er"]

Learning the merges needs the package subword-nmt; applying them does not.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise
from pathlib import Path

from lath.errors import UserError
from lath.files import read_lines

JOINER = "@@"
"""Ends every unit of a word but the last."""
_END = "</w>"


def split_words(line: str) -> list[str]:
    """The words of tokenised text; as in subword-nmt, only a plain space separates words."""
    return [word for word in line.split(" ") if word]


def merge_ranks(merges: Iterable[str]) -> dict[tuple[str, str], int]:
    """The rank of each merge; if a pair is listed twice, its first rank counts."""
    ranks: dict[tuple[str, str], int] = {}
    for rank, merge in enumerate(merges):
        left, right = merge.split(" ")
        ranks.setdefault((left, right), rank)
    return ranks


def segment(word: str, ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Split a word into subword units; all but the last end with the joiner.

    >>> segment("lower", merge_ranks(["e r</w>", "l o"]))
    ['lo@@', 'w@@', 'er']
    """
    units = [*word[:-1], word[-1] + _END]
    end = len(units)
    # Linked units and a heap of candidate pairs keep this at n log n, even for a word of 100,000 characters.
    before, after = list(range(-1, end - 1)), list(range(1, end + 1))
    heap = [(ranks[pair], place, pair) for place, pair in enumerate(pairwise(units)) if pair in ranks]
    heapify(heap)
    while heap:
        rank = heap[0][0]
        joined: list[int] = []
        while heap and heap[0][0] == rank:  # all occurrences of the best pair, left to right
            _, place, (left, right) = heappop(heap)
            follower = after[place]
            if follower == end or (units[place], units[follower]) != (left, right):
                continue  # a neighbour was merged in the meantime
            units[place], units[follower] = left + right, ""
            after[place] = after[follower]
            if after[place] < end:
                before[after[place]] = place
            joined.append(place)
        for place in chain.from_iterable((before[place], place) for place in joined):
            if place >= 0 and after[place] < end and (pair := (units[place], units[after[place]])) in ranks:
                heappush(heap, (ranks[pair], place, pair))
    whole = [unit for unit in units if unit]
    return [*(unit + JOINER for unit in whole[:-1]), whole[-1].removesuffix(_END)]


def read_codes(path: Path) -> list[str]:
    """Read the merges of a subword-nmt codes file, version 0.2."""
    lines = list(read_lines(path))
    if not lines or lines[0].split() != ["#version:", "0.2"]:
        raise UserError(
            f"{path}: not a subword-nmt codes file of version 0.2 (its first line is '#version: 0.2'); "
            f"learn the codes again with subword-nmt learn-bpe"
        )
    merges = [line.strip(" ") for line in lines[1:]]
    while merges and not merges[-1]:
        merges.pop()
    for number, merge in enumerate(merges, start=2):
        if len(merge.split(" ")) != 2:
            raise UserError(
                f"{path}: line {number} is {merge!r}, but a merge is two units with one space between them; "
                f"learn the codes again with subword-nmt learn-bpe"
            )
    return merges


def learn_codes(lines: Iterable[str], count: int) -> list[str]:
    """Learn at most `count` merges with the package subword-nmt."""
    try:
        from subword_nmt.learn_bpe import learn_bpe
    except ImportError:
        raise UserError(
            "learning subword-nmt codes needs the package subword-nmt: pip install 'lath[paper]', "
            "or set vocab.source_codes to a codes file"
        ) from None
    text = iter(lines)
    first = next((line for line in text if split_words(line)), None)
    if first is None:
        raise UserError("no text to learn a vocabulary from: the training files are empty")
    codes = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):
        learn_bpe(chain([first], text), codes, count)
    return codes.getvalue().split("\n")[1:-1]


def learn_words(lines: Iterable[str], merges: Sequence[str]) -> list[str]:
    """The subword units of the lines, most frequent first; ties are in alphabetical order."""
    words = Counter(word for line in lines for word in split_words(line))
    ranks = merge_ranks(merges)
    units: Counter[str] = Counter()
    for word, count in words.items():
        for unit in segment(word, ranks):
            units[unit] += count
    return sorted(units, key=lambda unit: (-units[unit], unit))
