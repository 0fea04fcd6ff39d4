"""Which sentence splitter finds the ends of sentences, and how fast? The trial of docs/adr/0013-sentence-splitter.md.

    python benchmarks/split.py de docs/runs/splitter/hard.de.txt test.de --inner docs/runs/splitter/inner-ends.tsv

A file has one sentence a line, and five lines make a paragraph; or one paragraph a line, " ¦ " between sentences.
--inner names further ends inside a line: folder/file, line, characters before the end (white space not counted), and
"end", or "either" where both are right. The last end of a paragraph is not counted. Splitters that are not installed
are left out. Speeds are medians of interleaved turns. Prints a row for each file and splitter, then a line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from lath.document.layout import split_line
from lath.files import chunks, read_lines

Split = Callable[[str], list[str]]


class Paragraph(NamedTuple):
    """A text, where its sentences end, and where a splitter may do as it likes."""

    text: str
    ends: frozenset[int]
    either: frozenset[int]


def size(text: str) -> int:
    """Characters without white space: splitters treat that differently."""
    return sum(not character.isspace() for character in text)


def ends(parts: list[str]) -> set[int]:
    """Where all parts but the last end, in characters without white space."""
    found, place = set(), 0
    for part in parts:
        place += size(part)
        found.add(place)
    return found - {place}


def paragraphs(path: Path, inner: dict[tuple[str, int], list[tuple[int, str]]]) -> list[Paragraph]:
    """The paragraphs of a file."""
    lines = [line.strip() for line in read_lines(path)]
    if any(" ¦ " in line for line in lines):
        found = [line.split(" ¦ ") for line in lines]
        return [Paragraph(" ".join(parts), frozenset(ends(parts)), frozenset()) for parts in found]
    paragraphs = []
    name = f"{path.parent.name}/{path.name}"
    for numbered in chunks(enumerate(lines, start=1), 5):
        parts = [line for _, line in numbered]
        marked: dict[str, set[int]] = {"end": ends(parts), "either": set()}
        start = 0
        for number, line in numbered:
            for place, kind in inner.get((name, number), []):
                marked[kind].add(start + place)
            start += size(line)
        paragraphs.append(Paragraph(" ".join(parts), frozenset(marked["end"]), frozenset(marked["either"])))
    return paragraphs


def splitters(language: str) -> dict[str, Split]:
    """The installed splitters by name."""

    def module(name: str) -> Any:
        return importlib.import_module(name)

    def icu() -> Split:
        breaker = module("icu4py.breakers").SentenceBreaker
        return lambda text: list(breaker(text, language))

    def syntok() -> Split:
        process = module("syntok.segmenter").process
        return lambda text: [
            "".join(token.spacing + token.value for token in sentence)
            for paragraph in process(text)
            for sentence in paragraph
        ]

    makers: dict[str, Callable[[], Split]] = {
        "pysbd": lambda: module("pysbd").Segmenter(language=language, clean=False).segment,
        "sentence-splitter": lambda: module("sentence_splitter").SentenceSplitter(language).split,
        "syntok": syntok,
        "blingfire": lambda: lambda text: module("blingfire").text_to_sentences(text).split("\n"),
        "sentencex": lambda: lambda text: module("sentencex").segment(language, text),
        "segtok": lambda: lambda text: list(module("segtok.segmenter").split_single(text)),
        "nupunkt": lambda: module("nupunkt").sent_tokenize,
        "icu4py": icu,
        "lath (sentencex, corrected)": lambda: lambda text: [span.text for span in split_line(text, language)],
    }
    made: dict[str, Split] = {}
    for name, maker in makers.items():
        with contextlib.suppress(ImportError):
            split = maker()
            split("One. Two.")  # some import only now
            made[name] = split
    return made


def score(split: Split, texts: list[Paragraph]) -> dict[str, float]:
    """Precision, recall and F1 of sentence ends, and the counts of wrong and missed ones."""
    right = wrong = missed = 0
    for paragraph in texts:
        found = ends(split(paragraph.text)) - paragraph.either
        right += len(found & paragraph.ends)
        wrong += len(found - paragraph.ends)
        missed += len(paragraph.ends - found)
    return {"f1": 2 * right / (2 * right + wrong + missed), "wrong": wrong, "missed": missed}


def speeds(known: dict[str, Split], texts: list[str], repeats: int) -> dict[str, float]:
    """Thousand characters a second, the median of interleaved turns; new texts each turn, as some splitters cache."""
    found: dict[str, list[float]] = {name: [] for name in known}
    for turn in range(repeats):
        part = texts[turn::repeats]
        for name, split in known.items():
            start = time.perf_counter()
            for text in part:
                split(text)
            found[name].append(sum(map(len, part)) / 1000 / (time.perf_counter() - start))
    return {name: statistics.median(speed) for name, speed in found.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Compare sentence splitters on paragraphs with known ends.")
    parser.add_argument("language")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--inner", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    inner: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for row in read_lines(arguments.inner) if arguments.inner else ():
        name, line, place, kind = row.split("\t")
        inner.setdefault((name, int(line)), []).append((int(place), kind))
    known = splitters(arguments.language)
    rows = []
    print("| file | ends | splitter | F1 | wrong | missed | kchar/s |\n|---|--:|---|--:|--:|--:|--:|")
    for path in arguments.files:
        texts = paragraphs(path, inner)
        speed = speeds(known, [paragraph.text for paragraph in texts], arguments.repeats)
        count = sum(len(paragraph.ends) for paragraph in texts)
        scores = {name: score(split, texts) for name, split in known.items()}
        for name in sorted(known, key=lambda name: -scores[name]["f1"]):
            row = scores[name]
            print(f"| {path.parent.name}/{path.name} | {count} | {name} | {row['f1']:.4f} | {row['wrong']} | "
                  f"{row['missed']} | {speed[name]:.0f} |", flush=True)  # fmt: skip
            rows.append({"file": path.name, "splitter": name, "ends": count, **row, "speed": speed[name]})
    print(json.dumps({"language": arguments.language, "rows": rows}))


if __name__ == "__main__":
    main()
