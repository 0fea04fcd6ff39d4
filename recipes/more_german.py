"""More German for IWSLT'14's students: python recipes/more_german.py data/iwslt14_deen_53k/more.de

A teacher can translate any German, so its students need not stop at the 53,529 sentences that it learnt from. Written
are these, and behind them what is new:

    recombined  sentences of the training text that exchange what follows a comma where it begins with the same word:
                "X , dass A" and "Y , dass B" become "X , dass B"
    clauses     what stands between commas, as sentences of their own
    others      everyday sentences (Tatoeba) and speeches (Europarl), tokenised and lower-cased like the training text

No line is written twice, and none of the validation and test text is. Needs sacremoses (pip install 'lath[paper]').
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from pathlib import Path

from lath.files import read_lines, whole_file

DATA = Path("data")
TALKS = DATA / "iwslt14_deen_53k"
VARIANTS = 2
"""Recombinations tried for each sentence."""
CLAUSE_WORDS = 6
"""A shorter clause is no sentence."""
OTHERS = {DATA / "tatoeba_deen" / "train.de": (60_000, 6, 40), DATA / "europarl_deen" / "train.de.xz": (20_000, 8, 40)}
"""Sentences taken of each text, and their fewest and most tokens."""


def recombined(sentences: list[list[str]], chance: random.Random) -> Iterator[list[str]]:
    """Each sentence with a comma up to one of them, and then another sentence from there on."""
    rests: dict[str, list[list[str]]] = defaultdict(list)
    for words in sentences:
        for place in commas(words):
            rests[words[place + 1]].append(words[place + 1 :])
    for words in sentences:
        places = commas(words)
        for _ in range(VARIANTS if places else 0):
            place = chance.choice(places)
            yield words[: place + 1] + chance.choice(rests[words[place + 1]])


def clauses(sentences: list[list[str]]) -> Iterator[list[str]]:
    """What stands between the commas of a sentence, each with a full stop."""
    for words in sentences:
        places = [-1, *commas(words), len(words) - 1]
        for start, stop in pairwise(places):
            clause = words[start + 1 : stop]
            if len(places) > 2 and len(clause) >= CLAUSE_WORDS and all(word[0].isalnum() for word in clause):
                yield [*clause, "."]


def commas(words: list[str]) -> list[int]:
    """Where the commas of a sentence are, those at its edges left out."""
    return [place for place in range(1, len(words) - 3) if words[place] == ","]


def others(text: Path, count: int, fewest: int, most: int, chance: random.Random) -> Iterator[list[str]]:
    """Some of another text's sentences, as the talks are written."""
    from sacremoses import MosesTokenizer

    tokenise = MosesTokenizer(lang="de").tokenize
    lines = list(read_lines(text))
    chance.shuffle(lines)
    tokenised = (tokenise(line.lower()) for line in lines)
    return islice((words for words in tokenised if fewest <= len(words) <= most), count)


def main() -> None:
    """Write the text, and tell how much of what it holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    chance = random.Random(1)
    sentences = [line.split() for line in read_lines(TALKS / "train.de")]
    parts: dict[str, Iterable[list[str]]] = {
        "as they are": sentences,
        "recombined": recombined(sentences, chance),
        "clauses": clauses(sentences),
        **{str(text): others(text, *limits, chance) for text, limits in OTHERS.items()},
    }
    written = {line for part in ("valid.de", "test.de") for line in read_lines(TALKS / part)}
    with whole_file(out) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        for name, part in parts.items():
            fresh = [line for line in dict.fromkeys(map(" ".join, part)) if line not in written]
            written.update(fresh)
            file.writelines(line + "\n" for line in fresh)
            print(f"{len(fresh):7,} {name}")


if __name__ == "__main__":
    main()
