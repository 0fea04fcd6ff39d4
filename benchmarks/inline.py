"""Do inline tags harm a translation? Sentences with one or two of them, against the same sentences without.

    python benchmarks/inline.py de-en test.de --sentences 200

Elements are put around one to four words of each sentence, at random. Prints how many sentences were translated exactly
as without tags, the BLEU of all (tags removed) against those without, sentences that lost a tag, and the ratio
of the times; then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from html import escape, unescape
from itertools import islice
from pathlib import Path

import lath
from lath.files import read_lines


def tagged(sentence: str, draw: random.Random) -> str:
    """The sentence with one or two elements, which have no word in common."""
    words = [escape(word, quote=False) for word in sentence.split()]
    free = set(range(len(words)))
    for _ in range(draw.randint(1, 2)):
        count = min(draw.randint(1, 4), len(words) - 1)
        start = draw.randrange(len(words) - count + 1)
        if free.issuperset(range(start, start + count)):
            free -= set(range(start, start + count))
            name = draw.choice(["b", "i", "em", "a", "span"])
            words[start] = f"<{name}>{words[start]}"
            words[start + count - 1] += f"</{name}>"
    return " ".join(words)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Compare translations of sentences with and without inline tags.")
    parser.add_argument("model")
    parser.add_argument("file", type=Path)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--show", type=int, default=0, help="translations to print")
    arguments = parser.parse_args()
    draw = random.Random(1)
    lines = (line for line in read_lines(arguments.file) if len(line.split()) > 4)
    sentences = list(islice(lines, arguments.sentences))
    documents = [f"<p>{tagged(sentence, draw)}</p>" for sentence in sentences]
    translator = lath.load(arguments.model, "cpu")
    begun = time.perf_counter()
    plain = translator.translate(sentences)
    between = time.perf_counter()
    found = translator.translate("\n".join(documents), format="html").split("\n")
    ratio = (time.perf_counter() - between) / (between - begun)
    for pair in islice(zip(documents, found, strict=True), arguments.show):
        print(*pair, "", sep="\n")
    bare = [unescape(re.sub("<[^>]*>", "", document)) for document in found]
    same = sum(one == other for one, other in zip(bare, plain, strict=True))
    lost = sum(
        sorted(re.findall("<[^>]*>", one)) != sorted(re.findall("<[^>]*>", other))
        for one, other in zip(documents, found, strict=True)
    )
    bleu = lath.evaluate(bare, plain).bleu
    print("| sentences | as without tags | BLEU against those | tags lost | x the time |\n|--:|--:|--:|--:|--:|")
    print(f"| {len(sentences)} | {same} | {bleu.value:.2f} | {lost} | {ratio:.2f} |\n{bleu.signature}")
    print(json.dumps({"sentences": len(sentences), "same": same, "bleu": bleu.value, "lost": lost, "ratio": ratio}))


if __name__ == "__main__":
    main()
