"""What a text loses when its sentences come in one line: BLEU of joined sentences and of the same one by one.

    python benchmarks/paragraphs.py de-en test.de test.en --paragraphs 200 --sentences 5

Lines of the two files are joined to paragraphs. Both versions are translated as texts and scored by paragraph.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path

import lath
from lath.files import chunks, read_pairs


def main() -> None:
    """Print both scores, their difference, and one line of JSON."""
    parser = argparse.ArgumentParser(description="Compare joined sentences with the same one by one.")
    parser.add_argument("model")
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--paragraphs", type=int, default=200)
    parser.add_argument("--sentences", type=int, default=5)
    arguments = parser.parse_args()
    wanted = arguments.paragraphs * arguments.sentences
    pairs = list(islice(read_pairs(arguments.source, arguments.reference), wanted))
    sides = zip(*pairs, strict=True)
    source, reference = ([" ".join(lines) for lines in chunks(side, arguments.sentences)] for side in sides)
    translator = lath.load(arguments.model, "cpu")
    joined = translator.translate(source)
    single = translator.translate([line for line, _ in pairs])
    one_by_one = [" ".join(lines) for lines in chunks(single, arguments.sentences)]
    first, second = (lath.evaluate(texts, reference).bleu for texts in (one_by_one, joined))
    same = sum(one == other for one, other in zip(one_by_one, joined, strict=True))
    print(f"| text | {first.metric}, {first.signature} |\n|---|--:|")
    print(
        f"| one by one | {first.value:.2f} |\n| joined | {second.value:.2f} |\n{same} of {len(source)} paragraphs alike"
    )
    print(json.dumps({"paragraphs": len(source), "one_by_one": first.value, "joined": second.value, "alike": same}))


if __name__ == "__main__":
    main()
