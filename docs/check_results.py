"""Check the numbers of docs/results.md.

    python docs/check_results.py                   the page, and every stored run
    python docs/check_results.py RUN...            some runs: docs/runs/TASK, or runs/TASK/evidence before it is copied
    python docs/check_results.py --write RUN...    computes the scores of all stored translations again and stores them

A run is checked from its translations: `lath.analysis.scores.measure`, which is what `lath analyse` uses, must give the
stored scores and intervals to the last digit; or from the counts of its translations, where these must not be
published. Where a run stores neither, or the reference is not here, that is printed.
Every number outside the generated tables (docs/generate.py) is computed from stored files, and a decimal that
`statements` does not explain is refused.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lath.analysis.counts import read_counts
from lath.analysis.scores import Measured, Score, measure, measure_counts
from lath.analysis.settings import EvaluateSettings
from lath.errors import UserError
from lath.files import read_lines, whole_file

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "docs" / "runs"
PAGE = ROOT / "docs" / "results.md"
GENERATED = re.compile(r"<!-- scores: .*?<!-- end -->", re.DOTALL)
SETTINGS = re.compile(
    r"label smoothing 0\.1|dropout 0\.[123]|`[^`]*`|The aim for \"close\" was 1\.5 BLEU on Europarl and 1\.0 elsewhere"
)
"""Numbers that are settings or aims; what was measured must be in `statements`."""
SAMPLED = re.compile(r"(bs|seed):\w+\|")
"""What the paired test adds to the signature of a score."""
DECIMAL = re.compile(r"\d+\.\d+")
NEWS, EUROPARL = "wmt_newstest", "europarl"
LENGTHS = {
    "teacher.beam5": "AT 6-6, beam 5 (the teacher)", "cmlm.it1": "CMLM-1", "cmlm.it4": "CMLM-4", "cmlm.it10": "CMLM-10",
    "lat.it1": "LAT-1", "lat.it4": "LAT-4",
}  # fmt: skip
"""The rows of the table of BLEU by length."""


def scores(run: str, test: str = "") -> dict[str, Any]:
    """The stored scores of a run's test, by system."""
    tests = load_scores(RUNS / run)
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


def over_seeds(run: str, system: str) -> list[float]:
    """BLEU of a system and of its variants with another seed."""
    name, _, decoding = system.partition(".")
    return [bleu(run, f"{name}{seed}.{decoding}", "iwslt14_deen_53k-test") for seed in ("", "-seed2", "-seed3")]


def above(system: str, other: str) -> list[float]:
    """How far a system is above another in iwslt14-shapes, seed by seed."""
    return [
        one - two
        for one, two in zip(over_seeds("iwslt14-shapes", system), over_seeds("iwslt14-shapes", other), strict=True)
    ]


def milliseconds(row: str) -> str:
    """The median latency of a row of the measurement in iwslt14-shapes."""
    text = (RUNS / "iwslt14-shapes" / "bench.txt").read_text(encoding="utf-8")
    [report] = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    [found] = [one["p50_ms"] for one in report["rows"] if one["name"] == row]
    return f"{found:.2f}"


def verified(section: str, row: str) -> list[str]:
    """The figures of a row of the tables of verifiers."""
    text = (RUNS / "iwslt14-shapes" / "verify.txt").read_text(encoding="utf-8")
    [part] = [part for part in text.split("\n## ") if part.startswith(section)]
    [line] = [line for line in part.splitlines() if line.startswith(f"| {row} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def claimed(pair: str) -> list[float]:
    """A tested difference of iwslt14-shapes and its interval."""
    [found] = [test for name, test in load_scores(RUNS / "iwslt14-shapes").items() if name.endswith("test.de")]
    one, other = (found["scores"][name]["bleu"]["value"] for name in pair.split(" against "))
    interval = found["claims"][pair]["bleu"]
    return [one - other, interval["low"], interval["high"]]


def shapes() -> Iterator[str]:
    """What the page says of iwslt14-shapes outside its table."""
    one, low, high = claimed("pair-12-1.relaxed against at-12-1.beam5")
    yield f"({one:+.2f} BLEU; 95 % interval {low:+.2f} to {high:+.2f})"
    yield f"{milliseconds('pair-12-1/relaxed')} ms a sentence instead of {milliseconds('at-12-1/beam:5')}"
    one, low, high = claimed("pair-12-1.relaxed against teacher.beam5")
    yield f"It is {-one:.2f} below AT 6-6 with beam 5 ({low:+.2f} to {high:+.2f})"
    yield f"which takes {milliseconds('teacher/beam:5')} ms"
    shape = [-statistics.fmean(above(f"lat-10-2.{how}", f"lat.{other}"))
             for how, other in (("it4", "it4"), ("it4-lengths5", "it4"), ("it1", "it1"))]  # fmt: skip
    yield f"after four passes 10-2 is {shape[0]:.2f} below 6-6, mean of three seeds"
    yield f"with five lengths {shape[1]:.2f} below"
    yield f"After one pass it is {shape[2]:.2f} below"
    first, last = (above(f"lat-10-2-glancing.{how}", f"lat-10-2.{how}") for how in ("it1", "it4"))
    seeds = "{:+.2f}, {:+.2f} and {:+.2f}".format(*first)
    yield f"{statistics.fmean(first):+.2f} after one pass ({seeds}), {statistics.fmean(last):+.2f} after four"
    text = (RUNS / "iwslt14-shallow" / "scores.txt").read_text(encoding="utf-8")
    rows = (line.split() for line in text.splitlines() if re.match(r"lat-10-2\S* +\d pass(es)? +\d", line))
    short = {(system, passes): float(score) for system, passes, *_, score, _ in rows}
    gains = [short["lat-10-2-glancing", passes] - short["lat-10-2", passes] for passes in ("1", "4")]
    yield f"was {gains[0]:+.2f} and {gains[1]:+.2f} ([log]"
    yield f"A sentence takes {float(verified('verifier AT 12-1, test', 'LAT-1, relaxed 5 2')[2]):.1f} checks"
    exact = verified("verifier AT 6-6, first 3,000 lines of the test, fp32", "LAT-1, exact")[1]
    half = verified("verifier AT 6-6, test", "LAT-1, exact")[1]
    yield f"all of {int(exact):,} sentences equal in fp32, {int(half):,} of 6,750 in fp16"
    yield f"{milliseconds('pair-6-6/exact')} ms instead of {milliseconds('teacher/greedy')} with AT 6-6"


def analysed(system: str, what: str, test: str = "newstest2014") -> list[str]:
    """The figures of a system in the stored analysis of Europarl de-en."""
    text = (RUNS / "europarl-de-en" / "analysis.txt").read_text(encoding="utf-8")
    part = next(part for part in text.split("\n\n") if part.startswith(test))
    [line] = [line for line in part.splitlines() if line.split()[0] == system]
    return DECIMAL.findall(line.partition(what)[2])


def statements() -> Iterator[str]:
    """What the page says outside its generated tables, with numbers from stored files."""
    yield from shapes()
    run, lat, ten, teacher = "europarl-de-en", "lat.it4", "cmlm.it10", "teacher.beam5"
    yield f"LAT-4 is {behind('mixed-en-de', ten, lat, EUROPARL):.2f} above CMLM-10"
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
    gaps = {test: behind("bundled", lat, teacher, test) for test in ("tatoeba", NEWS, EUROPARL)}
    yield (
        f"On Tatoeba LAT-4 is {gaps['tatoeba']:.2f} BLEU below its teacher's stored score, on newstest2014 "
        f"{gaps[NEWS]:.2f} and on the Europarl test {gaps[EUROPARL]:.2f}"
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


def load_scores(run: Path) -> dict[str, Any]:
    """What a run's scores.json holds, by test."""
    found: dict[str, Any] = json.loads((run / "scores.json").read_text(encoding="utf-8"))
    return found


def files(run: Path, kind: str, test: str) -> dict[str, Path]:
    """The stored `translations` or `counts` of a test, by system."""
    return {re.sub(r"\.(txt|tsv)\.xz$", "", path.name): path for path in sorted((run / kind / test).glob("*.xz"))}


def measured(run: Path, test: str, stored: dict[str, Any]) -> dict[str, Measured]:
    """The scores of a test by system, with the samples of the paired test, of all that is stored and can be scored."""
    tokenised = any("tokenised" in scores["bleu"]["metric"] for scores in stored["scores"].values())
    counts = {name: read_counts(path) for name, path in files(run, "counts", test).items()}
    texts, reference = files(run, "translations", test), ROOT / stored.get("reference", "")
    if texts and reference.is_file():
        systems = [list(read_lines(path, keep_mark=True)) for path in texts.values()]
        found = measure(systems, list(read_lines(reference, keep_mark=True)), tokenised)
        counts |= {name: one.counts for name, one in zip(texts, found, strict=True)}
    if not counts:
        return {}
    samples = EvaluateSettings.samples if len(counts) > 1 else 0
    return dict(zip(counts, measure_counts(list(counts.values()), tokenised, samples=samples), strict=True))


def differences(stored: dict[str, Any], found: dict[str, Measured]) -> list[str]:
    """Where scores differ from the stored ones of a test, by more than their last digit."""
    wrong = []

    def compare(what: str, before: float, now: float) -> None:
        digits = len(str(before).partition(".")[2])
        if abs(before - now) > 0.5 * 10 ** -min(digits, 9):
            wrong.append(f"{what}: stored {before}, computed {now}")

    for name in set(found) - set(stored["scores"]):
        wrong.append(f"{name}: no scores are stored of it; run this with --write")
    for name in set(found) & set(stored["scores"]):
        before, now = stored["scores"][name], found[name].scores
        compare(f"{name} BLEU", before["bleu"]["value"], now.bleu.value)
        compare(f"{name} chrF2", before["chrf"]["value"], now.chrf.value)
        compare(f"{name} length", before["length_ratio"], now.length_ratio)
    for pair, claim in stored["claims"].items():
        one, other = pair.split(" against ")
        if not claim:
            wrong.append(f"{pair}: no interval is stored; run this with --write")
        elif {one, other} <= set(found):
            for bound, now in zip(("low", "high"), found[one].gain_over(found[other]), strict=True):
                compare(f"{pair} {bound}", claim["bleu"][bound], now)
    return sorted(wrong)


def check(run: Path, write: bool = False) -> list[str]:
    """Print what a run is checked from, and first store what its translations give if asked; returns what differs."""
    wrong, document = [], load_scores(run)
    for test, stored in document.items():
        label = f"{run.name if run.parent == RUNS else run}, {test}"
        found = measured(run, test, stored)
        if write:
            store(found, stored)
        rest = len(set(stored["scores"]) - set(found))
        counted = set(files(run, "counts", test))
        absent = set(files(run, "translations", test)) - set(found)
        why = f"{stored.get('reference')} is not here" if absent else "no translations stored"
        parts = [f"{len(set(found) - counted)} systems from translations"] * bool(set(found) - counted)
        parts += [f"{len(counted)} systems from counts of their translations"] * bool(counted)
        parts += [f"{rest} from stored scores alone ({why})"] * bool(rest)
        print(f"{label}: {', '.join(parts)}")
        wrong += [f"{label}: {line}" for line in differences(stored, found)]
    if write:
        with whole_file(run / "scores.json") as partial:
            partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return wrong


def store(found: dict[str, Measured], stored: dict[str, Any]) -> None:
    """Put the scores of a test in the place of the stored ones and, of the pairs in `claims`, the intervals."""
    for name, measured in found.items():
        stored["scores"][name] = asdict(measured.scores) | {
            what: asdict(Score(score.metric, score.value, SAMPLED.sub("", score.signature)))
            for what, score in (("bleu", measured.scores.bleu), ("chrf", measured.scores.chrf))
        }
    for pair in stored["claims"]:
        one, other = pair.split(" against ")
        if {one, other} <= set(found):
            low, high = found[one].gain_over(found[other])
            stored["claims"][pair] = {"bleu": {"low": low, "high": high, "signature": found[one].scores.bleu.signature}}


def main(arguments: list[str] | None = None) -> int:
    """Print what differs; the exit code is 1 if something does."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="*", help="folders with scores.json (default: the page and all of it)")
    parser.add_argument("--write", action="store_true", help="store the scores of the stored translations")
    given = parser.parse_args(arguments)
    wrong = [] if given.runs else mistakes(PAGE.read_text(encoding="utf-8"))
    if not given.runs:
        print("BLEU by length, repeats and rare names: from the stored analysis of europarl-de-en alone")
    for run in given.runs or sorted(path.parent for path in RUNS.glob("*/scores.json")):
        wrong += check(run, given.write)
    print("\n".join(wrong) if wrong else "no difference")
    return bool(wrong)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"check_results: error: {error}", file=sys.stderr)
        sys.exit(2)
