"""Is aligned text what the recipe says? The warnings of `lath prepare`, from a sample of the text.

blocks = sample_blocks((Path("train.de"), Path("train.en")), 160_000)
find_problems(blocks, ("train.de", "train.en"), ("de", "en"))  ->  ["train.de and train.en: 97 % of the pairs ...", ...]

Every share is compared with one threshold. docs/runs/own-data has the trial: below a tenth of it on clean text, ten
times above it on text that is wrong throughout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lath.document.language import identify, known_languages
from lath.errors import UserError, one_of
from lath.files import read_blocks
from lath.progress import watched
from lath.text.corpus import spread

BLOCK = 200
"""Neighbouring lines that are looked at together: enough to see a shift from their lengths alone."""
BLOCKS = 100
"""Blocks in a sample."""
IDENTIFIED = 1000
"""Pairs whose languages are identified."""
SHARE = 0.05
"""The share of wrong pairs, or of shifted blocks, from which there is a warning."""
FEWEST = 3
"""Fewer wrong pairs than this are no reason for a warning."""
SHIFTS = 20
"""The most lines by which the target may be shifted."""
SHORTEST = 20
"""Letters that a text needs to be called foreign: names and single words are in no language."""
CONFIDENT = 0.8
"""The probability that it needs, too."""
CLEAR = 6
"""By how many standard errors the lengths must fit better when the target is moved."""
EXAMPLES = 3

Files = tuple[str, str]
Languages = tuple[str, str]


class Pair(NamedTuple):
    """A line of both files, with its number."""

    line: int
    source: str
    target: str


Block = list[Pair]


def sample_blocks(files: tuple[Path, Path], total: int) -> list[Block]:
    """Blocks of neighbouring pairs of two aligned files, evenly spread over their `total` lines."""
    blocks = -(-total // BLOCK)
    starts = [BLOCK * number for number in spread(range(blocks), blocks, BLOCKS)]
    sides = [
        list(read_blocks(path, watched(starts, f"checking {path.name}", len(starts), "blocks"), BLOCK))
        for path in files
    ]
    return [
        [Pair(start + number, *pair) for number, pair in enumerate(zip(*block, strict=True), 1)]
        for start, *block in zip(starts, *sides, strict=True)
    ]


def find_problems(blocks: Sequence[Block], files: Files, languages: Languages | None) -> list[str]:
    """A warning for each way in which the text looks wrong; without `languages` they are not looked at."""
    pairs = list(chain.from_iterable(blocks))
    found = [_same(pairs, files), _shifted(blocks, files)]
    if languages is not None:
        different = [pair for pair in pairs[:: max(1, len(pairs) // IDENTIFIED)] if not _is_same(pair)]
        found += _wrong_languages(different, files, languages)
    return [problem for problem in found if problem]


def not_identifiable(languages: Languages) -> str:
    """Why the languages of a text cannot be checked; empty if they can."""
    if not all(languages):
        return "data.source_language and data.target_language are not both set"
    try:
        unknown = set(languages) - known_languages()
    except UserError as error:
        return str(error)
    return f"{', '.join(sorted(unknown))}: not a language that can be identified" if unknown else ""


def _same(pairs: Sequence[Pair], files: Files) -> str:
    same = [pair for pair in pairs if _is_same(pair)]
    if not _many(same, pairs):
        return ""
    return (
        f"{files[0]} and {files[1]}: {_share(same, pairs)} of the pairs have the same text on both sides; "
        f"name a text and its translation, or remove what is not translated" + _examples(same)
    )


def _is_same(pair: Pair) -> bool:
    text = pair.source.strip()
    return text == pair.target.strip() and any(map(str.isalpha, text))


def _shifted(blocks: Sequence[Block], files: Files) -> str:
    found = [(block, shift) for block in blocks if (shift := best_shift(block))]
    if not found or len(found) < SHARE * len(blocks):
        return ""
    shift = Counter(shift for _, shift in found).most_common(1)[0][0]
    first = next(block for block, its_shift in found if its_shift == shift)
    sources, targets = _log_lengths(first)
    gains = abs(sources - targets) - abs(sources - np.roll(targets, -shift))
    inner = sorted(range(max(0, -shift), len(first) - max(0, shift)), key=lambda place: -gains[place])
    return (
        f"{files[0]} and {files[1]}: line n of the source has the length of line n{shift:+d} of the target in "
        f"{len(found)} of {len(blocks)} places, first in lines {first[0].line} to {first[-1].line}; "
        f"a line is missing or one too many before it: insert or remove it"
        + _examples([first[place] for place in sorted(inner[:EXAMPLES])])
    )


def best_shift(block: Block) -> int:
    """By how many lines the targets must be moved so that their lengths fit the sources'; 0 unless that is clear."""
    sources, targets = (lengths - lengths.mean() for lengths in _log_lengths(block))
    lines, scale = len(block), np.sqrt((sources @ sources) * (targets @ targets))
    if lines <= 2 * SHIFTS or scale == 0:
        return 0
    # All shifts at once; what is moved over the end comes back at the start.
    products = np.fft.irfft(np.conj(np.fft.rfft(sources)) * np.fft.rfft(targets), lines)
    fits = {shift: products[shift] / scale for shift in range(-SHIFTS, SHIFTS + 1)}
    best = max(fits, key=lambda shift: float(fits[shift]))
    # Fisher's transformation: the standard error is 1 / sqrt(lines) for any correlation. The best of 41 shifts of
    # unrelated text is about 4 of them above that of no shift.
    better = np.arctanh(0.999 * fits[best]) - np.arctanh(0.999 * fits[0])
    return best if better * np.sqrt(lines) > CLEAR else 0


def _log_lengths(block: Block) -> tuple[NDArray[Any], NDArray[Any]]:
    lengths = np.log1p([[len(pair.source), len(pair.target)] for pair in block])
    return lengths[:, 0], lengths[:, 1]


def _wrong_languages(pairs: Sequence[Pair], files: Files, languages: Languages) -> list[str]:
    """A warning about pairs that are swapped, else about each side that is in another language."""
    sides = [[pair.source for pair in pairs], [pair.target for pair in pairs]]
    found = [identify(side) for side in sides]
    mirrored = languages[1], languages[0]
    nearer = zip(*([code for code, _ in side] for side in found), strict=True)
    swapped = [pair for pair, codes in zip(pairs, nearer, strict=True) if codes == mirrored != languages]
    if _many(swapped, pairs):
        return [
            f"{files[0]} and {files[1]}: {_share(swapped, pairs)} of the pairs look swapped: the source is "
            f"{mirrored[0]} and the target {mirrored[1]}; swap the files in the recipe, or the languages"
            + _examples(swapped)
        ]
    problems = []
    for file, language, texts, identified in zip(files, languages, sides, found, strict=True):
        long = [place for place, text in enumerate(texts) if sum(map(str.isalpha, text)) >= SHORTEST]
        foreign = [place for place in long if identified[place][0] != language and identified[place][1] >= CONFIDENT]
        if _many(foreign, long):
            others = [code for code, _ in Counter(identified[place][0] for place in foreign).most_common(2)]
            problems.append(
                f"{file}: {_share(foreign, long)} of the lines look like {one_of(others)} instead of {language}; "
                f"remove them, or correct the languages in the recipe" + _examples([pairs[place] for place in foreign])
            )
    return problems


def _many(wrong: Sequence[object], all_: Sequence[object]) -> bool:
    return len(wrong) >= max(FEWEST, SHARE * len(all_))


def _share(part: Sequence[object], whole: Sequence[object]) -> str:
    return f"{100 * len(part) / len(whole):.0f} %"


def _examples(pairs: Sequence[Pair]) -> str:
    """A few pairs, each on a line of its own."""
    return "".join(f"\n  line {line}: {_cut(source)} | {_cut(target)}" for line, source, target in pairs[:EXAMPLES])


def _cut(text: str) -> str:
    shown = "".join(character if character.isprintable() else " " for character in text[:60])
    return shown if len(text) <= 60 else f"{shown[:57]}..."
