"""Translate ten everyday sentences with the bundled model, print the time of each, and show one step by step.

Run by `make demo`.
"""

from __future__ import annotations

import time
from pathlib import Path

import lath
from lath.analysis.show import explain

SENTENCES = Path(__file__).with_name("everyday.de").read_text(encoding="utf-8").splitlines()
STEP_BY_STEP = SENTENCES[0]


def main() -> None:
    """Translate one sentence at a time, like an interactive user."""
    translator = lath.load("de-en")
    translator.translate(SENTENCES[-1:])  # the first call includes one-time set-up
    taken = []
    for sentence in SENTENCES[:10]:
        begin = time.perf_counter()
        [translation] = translator.translate([sentence])
        taken.append(1000 * (time.perf_counter() - begin))
        print(f"  de  {sentence}\n  en  {translation}  ({taken[-1]:.0f} ms)\n")
    where = f"{translator.device.type}, {translator.precision}"
    print(f"{sum(taken) / len(taken):.0f} ms per sentence ({where}). One of them in two passes, step by step:\n")
    [hypothesis] = translator.hypotheses([STEP_BY_STEP], trace=True, iterations=2)
    print(explain(hypothesis, translator.target_vocab))


if __name__ == "__main__":
    main()
