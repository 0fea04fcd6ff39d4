"""Check the numbers of docs/results.md.

    python docs/check_results.py                              against scores, logs and analyses stored in docs/runs
    python docs/check_results.py RUN TEST REFERENCE FOLDER    stored scores against translations

The first form computes every number outside the generated tables (docs/generate.py) from stored files, and refuses a
decimal that `statements` does not explain. The second scores the files of FOLDER as `lath analyse` does; they are named
as docs/runs/RUN/scores.json names the systems of TEST (`teacher.beam5`, `lat.it4`). Translations are not stored here.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lath.analysis.scores import measure
from lath.files import read_lines

RUNS = Path(__file__).parent / "runs"
PAGE = RUNS.parent / "results.md"
GENERATED = re.compile(r"<!-- scores: .*?<!-- end -->", re.DOTALL)
SETTINGS = re.compile(
    r"label smoothing 0\.1|dropout 0\.[123]|`[^`]*`|The aim for \"close\" was 1\.5 BLEU on Europarl and 1\.0 elsewhere"
)
"""Numbers that are settings or aims; what was measured must be in `statements`."""
DECIMAL = re.compile(r"\d+\.\d+")
NEWS, EUROPARL = "wmt_newstest", "europarl"
LENGTHS = {
    "teacher.beam5": "AT 6-6, beam 5 (the teacher)", "cmlm.it1": "CMLM-1", "cmlm.it4": "CMLM-4", "cmlm.it10": "CMLM-10",
    "lat.it1": "LAT-1", "lat.it4": "LAT-4",
}  # fmt: skip
"""The rows of the table of BLEU by length."""


def scores(run: str, test: str = "") -> dict[str, Any]:
    """The stored scores of a run's test, by system."""
    tests = json.loads((RUNS / run / "scores.json").read_text(encoding="utf-8"))
    [found] = [some for name, some in tests.items() if name.startswith(test)]
    return dict(found["scores"])


def bleu(run: str, system: str, test: str = "") -> float:
    """The stored BLEU of a system."""
    return float(scores(run, test)[system]["bleu"]["value"])


def behind(run: str, system: str, other: str, test: str = "") -> float:
    """How far a system's BLEU is below another's."""
    return bleu(run, other, test) - bleu(run, system, test)


def token_loss(run: str, system: str, step: int) -> str:
    """A validation loss of a training log."""
    lines = (RUNS / run / f"{system}.jsonl").read_text(encoding="utf-8").splitlines()
    entries = (json.loads(line) for line in lines)
    [loss] = [entry["valid_token_loss"] for entry in entries if entry["step"] == step and "valid_token_loss" in entry]
    return f"{loss:.3f}"


def spread(*figures: float) -> str:
    """Mean and standard deviation."""
    return f"{statistics.mean(figures):.2f} ± {statistics.stdev(figures):.2f}"


def analysed(system: str, what: str, test: str = "newstest2014") -> list[str]:
    """The figures of a system in the stored analysis of Europarl de-en."""
    text = (RUNS / "europarl-de-en" / "analysis.txt").read_text(encoding="utf-8")
    part = next(part for part in text.split("\n\n") if part.startswith(test))
    [line] = [line for line in part.splitlines() if line.split()[0] == system]
    return DECIMAL.findall(line.partition(what)[2])


def statements() -> Iterator[str]:
    """What the page says outside its generated tables, with numbers from stored files."""
    run, lat, ten, teacher = "europarl-de-en", "lat.it4", "cmlm.it10", "teacher.beam5"
    yield f"LAT-4 is {behind('mixed-en-de', ten, lat, EUROPARL):.2f} above CMLM-10"
    off = [behind("mixed-de-en", one, other, NEWS) for one in (lat, "lat.it4-lengths5") for other in (teacher, ten)]
    yield f"LAT-4 is {off[0]:.2f} BLEU below its teacher and {off[1]:.2f} below CMLM-10 (newstest2014)"
    yield f"with five lengths {off[2]:.2f} and {off[3]:.2f} ("
    early = [behind(name, lat, ten, NEWS) for name in ("europarl-32k", "europarl-noise-de-en")]
    yield f"have LAT-4 {early[0]:.2f} and {early[1]:.2f} below CMLM-10 on newstest2014"
    chrf = [scores(run, NEWS)[system]["chrf"]["value"] for system in (ten, lat)]
    yield f"CMLM-10 is {chrf[0] - chrf[1]:.1f} chrF2 above LAT-4 (newstest2014)"
    kept = [analysed(system, system, "Rare names")[0] for system in (lat, ten, teacher)]
    yield f"LAT-4 produces {kept[0]} % of the rare names of newstest2014, CMLM-10 {kept[1]} %, the teacher {kept[2]} %"
    setup = "iwslt14-paper-setup"
    seeds = [spread(*(bleu(setup, f"{name}{seed}.{how}") for seed in ("", "-seed2", "-seed3")))
             for name, how in (("lat", "it4"), ("cmlm", "it10"))]  # fmt: skip
    teachers = [bleu(setup, teacher), bleu(setup, "teacher-seed2.beam5"), bleu("iwslt14-k6", "teacher-seed3.beam5")]
    yield f"three seeds give LAT-4 {seeds[0]}, CMLM-10 {seeds[1]} and the teacher {spread(*teachers)}"
    apart = max(bleu(setup, f"lat{seed}.it4") for seed in ("", "-seed2", "-seed3")) - bleu(setup, lat)
    yield f"Seeds differ by {apart:.1f}"
    yield (
        f"LAT-4 is {behind(setup, lat, teacher):.2f} below its teacher and {behind(setup, ten, lat):.2f} above CMLM-10"
    )
    raw = bleu("iwslt14-k4", "cmlm-raw.it10") - bleu(setup, "lat-raw.it4")
    yield f"LAT-4 is {raw:.1f} below CMLM-10, so the second claim needs distillation"
    yield f"Length noise alone brings {behind('tatoeba', 'lat-baseline.it4', lat):.2f} BLEU"
    older = [bleu("tatoeba-first", system) for system in ("at-12-1.beam5", teacher, lat)]
    yield f"it reached {older[0]:.2f}, its teacher {older[1]:.2f}, LAT-4 without length noise {older[2]:.2f}"
    losses = [token_loss(run, system, step) for system in ("lat", "cmlm") for step in (7500, 9000)]
    yield f"fell from {losses[0]} to {losses[1]} (LAT) and from {losses[2]} to {losses[3]} (CMLM)"
    older = [bleu("europarl-de-en-first", system, test) for system in (lat, "at-12-1.beam5", teacher)
             for test in (NEWS, EUROPARL)]  # fmt: skip
    yield (
        f"gave LAT-4 {older[0]:.2f} and {older[1]:.2f}, and AT 12-1 {older[2]:.2f} and {older[3]:.2f} (its teacher "
        f"{older[4]:.2f} and {older[5]:.2f})"
    )
    yield f"repeated unigrams (reference {analysed('reference', 'reference')[0]} %)"
    for system, name in LENGTHS.items():
        yield f"| {' | '.join([name, *analysed(system, 'length'), analysed(system, 'repeats')[0]])} % |"
    losses = [token_loss("europarl-en-de", "lat", step) for step in (6000, 7500, 9000)]
    yield f"token loss {', '.join(losses)} at 6,000, 7,500 and 9,000 updates"
    yield f"LAT output is too long here ({scores('europarl-en-de', NEWS)[lat]['length_ratio']:.3f})"
    gaps = {test: behind("bundled", lat, teacher, test) for test in ("tatoeba", NEWS, EUROPARL)}
    tests = json.loads((RUNS / "bundled" / "scores.json").read_text(encoding="utf-8"))
    interval = tests["tatoeba_deen-test.de"]["claims"][f"{lat} against {teacher}"]["bleu"]
    yield (
        f"LAT-4 is {gaps['tatoeba']:.2f} BLEU ({-interval['high']:.2f} to {-interval['low']:.2f}) below its teacher, "
        f"on newstest2014 {gaps[NEWS]:.2f} and on the Europarl test {gaps[EUROPARL]:.2f}"
    )


def mistakes(page: str) -> list[str]:
    """Statements that the page does not make, and decimals on it that no statement explains."""
    text = " ".join(SETTINGS.sub("", GENERATED.sub("", page)).split())
    wrong = []
    for statement in statements():
        if statement not in text:
            wrong.append(f"stored files say: {statement}")
        text = text.replace(statement, "")
    return wrong + [f"nothing explains: {number}" for number in DECIMAL.findall(re.sub(r"\]\([^)]*\)", "", text))]


def differences(
    stored: dict[str, Any], reference: list[str], texts: dict[str, list[str]], tokenised: bool
) -> list[str]:
    """Where the scores of some translations differ from the stored ones of a test, by more than its last digit."""
    found = dict(zip(texts, measure(list(texts.values()), reference, tokenised, samples=1000), strict=True))
    wrong = []

    def compare(what: str, before: float, now: float) -> None:
        digits = len(str(before).partition(".")[2])
        if abs(before - now) > 0.5 * 10 ** -min(digits, 9):
            wrong.append(f"{what}: stored {before}, computed {now}")

    for name, measured in found.items():
        before, now = stored["scores"][name], measured.scores
        compare(f"{name} BLEU", before["bleu"]["value"], now.bleu.value)
        compare(f"{name} chrF2", before["chrf"]["value"], now.chrf.value)
        compare(f"{name} length", before["length_ratio"], now.length_ratio)
    for pair, claim in stored["claims"].items():
        one, other = pair.split(" against ")
        if {one, other} <= set(found):
            for bound, now in zip(("low", "high"), found[one].gain_over(found[other]), strict=True):
                compare(f"{pair} {bound}", claim["bleu"][bound], now)
    return wrong


def main(arguments: list[str]) -> int:
    """Print what differs; the exit code is 1 if something does."""
    if not arguments:
        wrong = mistakes(PAGE.read_text(encoding="utf-8"))
    else:
        run, test, reference, folder = arguments
        stored = json.loads((RUNS / run / "scores.json").read_text(encoding="utf-8"))[test]
        paths = {path.stem if path.suffix == ".txt" else path.name: path for path in sorted(Path(folder).iterdir())}
        texts = {name: list(read_lines(path)) for name, path in paths.items() if name in stored["scores"]}
        tokenised = "tokenised" in next(iter(stored["scores"].values()))["bleu"]["metric"]
        wrong = differences(stored, list(read_lines(Path(reference))), texts, tokenised)
        print(f"{len(texts)} systems scored again: {', '.join(texts)}")
    print("\n".join(wrong) if wrong else "no difference")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
