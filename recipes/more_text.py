"""Extra source text for students: python recipes/more_text.py everyday de data/de-en/more.de

A teacher can translate any text of its language, so students need not stop at the sentences that it was trained on. The
training sentences are written first, then new ones:

    recombined  sentences that exchange what follows a comma where it begins with the same word:
                "X, dass A" and "Y, dass B" become "X, dass B"
    crossed     sentences that exchange what follows two shared words, if some sentence ends like that:
                "Wir fuhren mit dem Zug." and "Er kam mit dem Auto." become "Wir fuhren mit dem Auto."
    clauses     what stands between commas, as sentences of their own
    renamed     sentences with exchanged names: students see few names, and get them wrong
    others      sentences of other texts

The sets, by the recipe they are for:

    talks       iwslt14-53k.toml; Tatoeba and Europarl are tokenised and lower-cased like the talks, which needs
                sacremoses (pip install 'lath[paper]')
    short       tatoeba.toml
    everyday    en-de.toml: everyday sentences first, then speeches that the teacher was not trained on
    bundled     de-en.toml: the same with fewer speeches, and everyday sentences two or three times
    speeches    europarl-third-deen.toml and europarl-third-ende.toml, whose teacher was trained on speeches only

Apart from these copies no line is written twice, and no validation or test sentence is written.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, pairwise
from pathlib import Path

from lath.errors import UserError
from lath.files import read_lines, whole_file

DATA = Path("data")
TALKS, TATOEBA, EUROPARL = DATA / "iwslt14_deen_53k", DATA / "tatoeba_deen", DATA / "europarl_deen"
CLAUSE_WORDS = 6
"""Shorter clauses are left out."""
WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
RARE = 50
"""Students know a name that occurs more often than this in the training text."""

Sentence = list[str]
Parts = dict[str, Iterable[Sentence]]
"""Sentences by kind; the kinds are printed."""


def talks(language: str, chance: random.Random) -> Parts:
    """For iwslt14-53k.toml."""
    sentences = [line.split() for line in read_lines(TALKS / f"train.{language}")]
    tatoeba, europarl = read_lines(TATOEBA / f"train.{language}"), read_lines(EUROPARL / f"train.{language}.xz")
    return {
        "as they are": sentences,
        "recombined": recombined(sentences, chance, variants=2),
        "clauses": (clause.split() for clause in clauses(sentences, full_stop=" .")),
        "everyday": like_talks(shuffled(tatoeba, chance), language, 60_000, fewest=6),
        "speeches": like_talks(shuffled(europarl, chance), language, 20_000, fewest=8),
    }


def short(language: str, chance: random.Random) -> Parts:
    """For tatoeba.toml."""
    sentences = [line.split() for line in everyday_lines(language)]
    return {
        "as they are": sentences,
        "recombined": recombined(sentences, chance, variants=4),
        "crossed": crossed(sentences, chance, variants=12),
    }


def everyday(language: str, chance: random.Random) -> Parts:
    """For de-en.toml and en-de.toml, whose teachers were not trained on every third speech."""
    unread = [line.split() for line in shuffled(speech_lines(language, lambda number: number % 3 == 0), chance)]
    brief = (clause for clause in clauses(unread, full_stop=".") if clause.count(" ") < 15)
    return {
        **short(language, chance),
        "clauses of speeches": (clause.split() for clause in islice(brief, 100_000)),
        "speeches": unread[:200_000],
        "renamed": islice(renamed(unread, shared_names(), chance, variants=6), 100_000),
    }


def speeches(language: str, chance: random.Random) -> Parts:
    """For europarl-third-*.toml, whose teachers were trained on five of fourteen speeches."""
    read = speech_lines(language, lambda number: number % 14 < 5)
    unread = [line.split() for line in shuffled(speech_lines(language, lambda number: number % 14 >= 5), chance)]
    return {
        "as they are": map(str.split, read),
        "everyday": map(str.split, everyday_lines(language)),
        "speeches": unread[:100_000],
        "renamed": islice(renamed(unread, shared_names(), chance, variants=3), 100_000),
    }


SETS: dict[str, Callable[[str, random.Random], Parts]] = {
    "talks": talks,
    "short": short,
    "everyday": everyday,
    "bundled": everyday,
    "speeches": speeches,
}
COPIES = {"bundled": {"as they are": 3, "recombined": 2, "crossed": 2}}
"""How often a kind of sentence is written where it is not once."""
MOST = {"bundled": {"speeches": 120_000}}
"""How many sentences of a kind are written where it is not all."""
HELD_OUT = {
    "talks": [TALKS],
    "short": [TATOEBA],
    "everyday": [TATOEBA, EUROPARL],
    "bundled": [TATOEBA, EUROPARL],
    "speeches": [TATOEBA, EUROPARL],
}
"""The folders of the validation and test text to leave out."""


def everyday_lines(language: str) -> Iterator[str]:
    """Tatoeba: the training text of the teachers, and further sentences."""
    return chain.from_iterable(read_lines(TATOEBA / f"{part}.{language}") for part in ("train", "extra"))


def speech_lines(language: str, wanted: Callable[[int], bool]) -> Iterator[str]:
    """The speeches whose number, counted from 1, is wanted."""
    lines = read_lines(EUROPARL / f"train.{language}.xz")
    return (line for number, line in enumerate(lines, 1) if wanted(number))


def recombined(sentences: list[Sentence], chance: random.Random, variants: int) -> Iterator[Sentence]:
    """Each sentence with a comma up to one of its commas, continued like another sentence."""
    rests: dict[str, list[Sentence]] = defaultdict(list)
    for words in sentences:
        for place in commas(words):
            rests[words[place + 1]].append(words[place + 1 :])
    for words in sentences:
        places = commas(words)
        for _ in range(variants if places else 0):
            place = chance.choice(places)
            yield words[: place + 1] + chance.choice(rests[words[place + 1]])


def crossed(sentences: list[Sentence], chance: random.Random, variants: int) -> Iterator[Sentence]:
    """Each sentence up to two of its words, continued like another sentence with the same two words.

    Many results would be ungrammatical: above all in German a verb and the end of its sentence belong together. So the
    second word, often the verb, and the last must occur together in some sentence, and the punctuation must stay.
    """
    rests: dict[tuple[str, str], list[Sentence]] = defaultdict(list)
    for words in sentences:
        for place in range(2, len(words)):
            rests[words[place - 2], words[place - 1]].append(words[place:])
    frames = {(words[1], words[-1]) for words in sentences if len(words) > 2}
    for words in sentences:
        for _ in range(variants if len(words) > 2 else 0):
            place = chance.randrange(2, len(words))
            made = words[:place] + chance.choice(rests[words[place - 2], words[place - 1]])
            if (made[1], made[-1]) in frames and made[-1][-1] == words[-1][-1]:
                yield made


def clauses(sentences: list[Sentence], full_stop: str) -> Iterator[str]:
    """What stands between the commas of a sentence, capitalised unless the text is tokenised."""
    tokenised = full_stop.startswith(" ")
    for words in sentences:
        places = [-1, *commas(words), len(words) - 1]
        for start, stop in pairwise(places if len(places) > 2 else []):
            clause = words[start + 1 : stop] if tokenised else [*words[start + 1 : stop], words[stop][:-1]]
            if len(clause) >= CLAUSE_WORDS and all(word[:1].isalnum() for word in clause):
                text = " ".join(clause)
                yield (text if tokenised else text[0].upper() + text[1:]) + full_stop


def renamed(
    sentences: Iterable[Sentence], names: list[str], chance: random.Random, variants: int
) -> Iterator[Sentence]:
    """Sentences with their names exchanged; a name that occurs twice is exchanged for one name."""
    known = set(names)
    for words in sentences:
        text = " ".join(words)
        found = sorted(known.intersection(WORD.findall(text)))
        for _ in range(variants if found else 0):
            yield exchanged(text, {name: chance.choice(names) for name in found}).split()


def exchanged(text: str, others: dict[str, str]) -> str:
    """Replace words."""
    return WORD.sub(lambda word: others.get(word[0], word[0]), text)


def shared_names() -> list[str]:
    """Names: rare words that both languages spell alike, always with a capital."""
    counts = []
    for language in ("de", "en"):
        lines = chain(everyday_lines(language), read_lines(EUROPARL / f"train.{language}.xz"))
        counts.append(Counter(chain.from_iterable(map(WORD.findall, lines))))
    both = (word for word in counts[0] if word in counts[1] and len(word) > 3 and word.istitle())
    return sorted(word for word in both if all(count[word] <= RARE and word.lower() not in count for count in counts))


def commas(words: Sentence) -> list[int]:
    """The positions of a sentence's commas, except those near its edges."""
    return [place for place in range(1, len(words) - 3) if words[place].endswith(",")]


def shuffled(lines: Iterable[str], chance: random.Random) -> list[str]:
    """The lines in random order."""
    found = list(lines)
    chance.shuffle(found)
    return found


def like_talks(lines: list[str], language: str, count: int, fewest: int, most: int = 40) -> Iterator[Sentence]:
    """Tokenised, lower-cased sentences of `fewest` to `most` tokens."""
    try:
        from sacremoses import MosesTokenizer
    except ImportError:
        raise UserError(
            "talks are tokenised by sacremoses, which is not installed: pip install 'lath[paper]'"
        ) from None
    tokenise = MosesTokenizer(lang=language).tokenize
    tokenised = (tokenise(line.lower()) for line in lines)
    return islice((words for words in tokenised if fewest <= len(words) <= most), count)


def write(options: argparse.Namespace) -> None:
    """Write the text, and print how many sentences of each kind it holds."""
    held_out = [folder / f"{part}.{options.language}" for folder in HELD_OUT[options.set] for part in ("valid", "test")]
    written = set(chain.from_iterable(map(read_lines, held_out)))
    with whole_file(options.out) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        for name, part in SETS[options.set](options.language, random.Random(1)).items():
            fresh = [line for line in dict.fromkeys(map(" ".join, part)) if line not in written]
            fresh = fresh[: MOST.get(options.set, {}).get(name)]
            written.update(fresh)
            for _ in range(COPIES.get(options.set, {}).get(name, 1)):
                file.writelines(line + "\n" for line in fresh)
            print(f"{len(fresh):7,} {name}")


def main() -> int:
    """Write the text, or report what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("language", choices=("de", "en"))
    parser.add_argument("out", type=Path)
    try:
        write(parser.parse_args())
    except UserError as error:
        print(f"more_text: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
