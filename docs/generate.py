"""Write the generated parts of the documentation.

    python docs/generate.py     (or: make docs)

- docs/cli.md, all of it, from the command line's own help;
- the tables of settings in docs/formats.md, from the dataclasses: `<!-- settings: SECTION -->` up to `<!-- end -->`;
- the tables of scores in docs/results.md and in the card of the bundled model, from docs/runs/NAME/scores.json:
  `<!-- scores: NAME -->` up to `<!-- end -->`;
- style and script of docs/report.html; its data is that of the analysis that docs/analysis.md names.

tests/test_docs.py fails when a page is out of date.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import statistics
import typing
from pathlib import Path
from typing import Any, NamedTuple

from lath.analysis.report import build_page
from lath.analysis.reproduce import System, Task
from lath.cli import reference
from lath.config import Recipe

FOLDER = Path(__file__).parent
SECTIONS: dict[str, type[Any]] = {**typing.get_type_hints(Recipe), "task": Task, "system": System}
TABLE = re.compile(r"(<!-- settings: (\S+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
SCORES = re.compile(r"(<!-- scores: (\S+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
REPORT = re.compile(r"<title>(.*?)</title>.*<script[^>]* id=\"data\">(.*?)</script>", re.DOTALL)
SCORE_PAGES = (FOLDER / "results.md", FOLDER.parent / "models" / "de-en" / "README.md")

TESTS = {"iwslt14": "IWSLT'14", "tatoeba": "Tatoeba", "wmt_newstest": "newstest2014", "europarl": "Europarl"}
"""How a test is named on a page, by how its name starts in scores.json."""
SYSTEMS = {
    "teacher.beam5": "AT 6-6, beam 5 (the teacher)",
    "at-12-1.beam5": "AT 12-1, beam 5",
    "cmlm.it1": "CMLM-1, five lengths",
    "cmlm.it10": "CMLM-10, five lengths",
    "lat-baseline.it4": "LAT-4, trained without length noise",
    "lat.it1": "LAT-1",
    "lat.it2": "LAT-2",
    "lat.it4": "LAT-4",
    "lat.it10": "LAT-10",
    "lat.it4-lengths1": "LAT-4, one length",
    "lat.it4-lengths3": "LAT-4, three lengths",
    "lat.it4-lengths5": "LAT-4, five lengths",
    "lat.it1-longer": "LAT-1, one extra position",
    "lat.it4-longer": "LAT-4, one extra position",
    "lat.it4-longer-lengths3": "LAT-4, one extra position, three lengths",
    "lat-10-2.it1": "LAT-1 10-2",
    "lat-10-2.it4": "LAT-4 10-2",
    "lat-10-2.it4-lengths5": "LAT-4 10-2, five lengths",
    "lat-10-2-glancing.it1": "LAT-1 10-2, glancing",
    "lat-10-2-glancing.it4": "LAT-4 10-2, glancing",
    "pair-12-1.relaxed": "LAT 10-2, glancing, checked by AT 12-1 (relaxed)",
    "pair-6-6.relaxed": "LAT 10-2, glancing, checked by AT 6-6 (relaxed)",
}
"""How a system and its decoding options are named on a page."""
COMPARED = ("teacher.beam5", "at-12-1.beam5", "cmlm.it1", "cmlm.it10", "lat.it1", "lat.it4", "lat.it4-lengths5")
ROWS = {
    "iwslt14-shapes": ("teacher.beam5", "at-12-1.beam5", "lat.it1", "lat.it4", "lat-10-2.it1", "lat-10-2.it4",
                       "lat-10-2.it4-lengths5", "lat-10-2-glancing.it1", "lat-10-2-glancing.it4", "pair-12-1.relaxed",
                       "pair-6-6.relaxed"),
    "bundled": ("teacher.beam5", "lat.it1", "lat.it2", "lat.it4", "lat.it4-lengths1"),
    "tatoeba": ("teacher.beam5", "cmlm.it1", "cmlm.it10", "lat-baseline.it4", "lat.it1-longer", "lat.it4-longer",
                "lat.it4-longer-lengths3"),
}  # fmt: skip
"""The rows of a run's table where they are not COMPARED."""


class ClaimRow(NamedTuple):
    """A row of the table of the paper's claims."""

    label: str
    run: str
    test: str
    option: str = ""
    """Of LAT's decoding, as scores.json names it."""


CLAIMS = (
    ClaimRow("IWSLT'14-53k de-en", "iwslt14", "iwslt14"),
    ClaimRow("Tatoeba de-en, one extra position", "tatoeba", "tatoeba", "-longer"),
    ClaimRow("Europarl de-en, newstest2014", "europarl-de-en", "wmt_newstest"),
    ClaimRow("Europarl de-en, Europarl test", "europarl-de-en", "europarl"),
    ClaimRow("Europarl en-de, newstest2014", "europarl-en-de", "wmt_newstest"),
    ClaimRow("Europarl en-de, Europarl test", "europarl-en-de", "europarl"),
    ClaimRow("Tatoeba + Europarl en-de, newstest2014", "mixed-en-de", "wmt_newstest"),
)


def pages() -> dict[Path, str]:
    """Each generated page and what it should say."""
    formats, example = FOLDER / "formats.md", FOLDER / "report.html"
    text, report = formats.read_text(encoding="utf-8"), REPORT.search(example.read_text(encoding="utf-8"))
    assert report is not None
    return {
        FOLDER / "cli.md": reference(),
        example: build_page(report[1], report[2]),
        formats: TABLE.sub(lambda found: found[1] + settings_table(SECTIONS[found[2]]), text),
        **{page: with_scores(page.read_text(encoding="utf-8")) for page in SCORE_PAGES},
    }


def settings_table(settings: type[Any]) -> str:
    """The settings of one section with their defaults and sentences, and what they may be."""
    sentences, hints = field_sentences(settings), typing.get_type_hints(settings, include_extras=True)
    rows = ["| setting | default | |", "|---|---|---|"]
    for field in dataclasses.fields(settings):
        sentence, hint = sentences[field.name], hints[field.name]
        if typing.get_origin(hint) is typing.Literal:
            sentence += f" One of {'; '.join(f'`{json.dumps(choice)}`' for choice in typing.get_args(hint))}."
        if typing.get_origin(hint) is typing.Annotated:
            allowed = str(typing.get_args(hint)[1])
            sentence += f" {allowed[0].upper()}{allowed[1:]}."
        rows.append(f"| `{field.name}` | `{json.dumps(field.default)}` | {sentence} |")
    return "\n".join(rows) + "\n"


def field_sentences(settings: type[Any]) -> dict[str, str]:
    """The sentence below each field of a dataclass, in one line."""
    tree = ast.parse(inspect.getsource(settings)).body[0]
    assert isinstance(tree, ast.ClassDef)
    sentences: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(below, ast.Expr), field.target.id
            assert isinstance(below.value, ast.Constant), field.target.id
            sentences[field.target.id] = " ".join(str(below.value.value).split())
    return sentences


def with_scores(text: str) -> str:
    """A page with its tables of scores up to date."""
    return SCORES.sub(lambda found: found[1] + (claims() if found[2] == "claims" else scores(found[2])), text)


def load_scores(run: str) -> dict[str, Any]:
    """What a run's scores.json holds, by test."""
    found: dict[str, Any] = json.loads((FOLDER / "runs" / run / "scores.json").read_text(encoding="utf-8"))
    return found


def scores(run: str) -> str:
    """BLEU, chrF2 and length ratio of a run's systems on each of its tests, with the signatures of both metrics.

    Of a system that was trained with several seeds it is the mean.
    """
    columns = {
        test: name
        for test in load_scores(run)
        for start, name in TESTS.items()
        if test.startswith(start) and "valid" not in test
    }
    tests, names = {test: load_scores(run)[test] for test in columns}, list(columns.values())
    rows = [
        "| system | " + " | ".join(f"{name}: BLEU | chrF2 | length" for name in names) + " |",
        "|---|" + "--:|--:|--:|" * len(tests),
    ]
    found = [test["scores"] for test in tests.values()]
    texts = FOLDER / "runs" / run / "translations"
    marked = False
    for system in ROWS.get(run, COMPARED):
        if all(system in test for test in found):
            lost = texts.is_dir() and not all((texts / test / f"{system}.txt.xz").is_file() for test in tests)
            marked |= lost
            several = ", three seeds" * (len(seeds(found[0], system)) == 3)
            cells = [
                f"| {SYSTEMS[system]}{several}{' *' * lost}",
                *(score_cells(seeds(test, system)) for test in found),
            ]
            rows.append(" | ".join(cells) + " |")
    metrics = [found[0]["teacher.beam5"][metric] for metric in ("bleu", "chrf")]
    signatures = ", ".join(f"`{metric['metric']}|{metric['signature']}`" for metric in metrics)
    note = ["", "\\* Stored scores; the translations were not kept."] * marked
    return "\n".join([*rows, "", signatures, *note]) + "\n"


def seeds(scored: dict[str, Any], system: str) -> list[dict[str, Any]]:
    """The scores of a system and of its variants with another seed."""
    name, _, decoding = system.partition(".")
    return [scored[key] for key in scored if re.fullmatch(rf"{re.escape(name)}(-seed\d)?\.{re.escape(decoding)}", key)]


def score_cells(found: list[dict[str, Any]]) -> str:
    """One system on one test, the mean over its seeds."""
    bleu, chrf = (statistics.fmean(score[metric]["value"] for score in found) for metric in ("bleu", "chrf"))
    return f"{bleu:.2f} | {chrf:.1f} | {statistics.fmean(score['length_ratio'] for score in found):.3f}"


def claims() -> str:
    """The paper's three claims as differences of BLEU with their 95 % intervals, each row from one run."""
    rows = ["| task and test | LAT-1 over CMLM-1 | LAT-4 over CMLM-10 | LAT-4 over its teacher |", "|---|--:|--:|--:|"]
    for row in CLAIMS:
        [found] = [found for test, found in load_scores(row.run).items() if test.startswith(row.test)]
        pairs = (("lat.it1", "cmlm.it1"), ("lat.it4", "cmlm.it10"), ("lat.it4", "teacher.beam5"))
        cells = [difference(found, one + row.option, other) for one, other in pairs]
        rows.append(f"| [{row.label}](runs/{row.run}/scores.json) | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def difference(found: dict[str, Any], one: str, other: str) -> str:
    """By how much BLEU one system is above another; nothing where a run does not have both."""
    if f"{one} against {other}" not in found["claims"]:
        return ""
    interval = found["claims"][f"{one} against {other}"]["bleu"]
    higher = found["scores"][one]["bleu"]["value"] - found["scores"][other]["bleu"]["value"]
    return f"{higher:+.2f} ({interval['low']:+.2f} to {interval['high']:+.2f})"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
