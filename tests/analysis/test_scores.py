"""Scores against hand-worked numbers, sacrebleu as a package that may be missing, and the paired test."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from lath.analysis.scores import (
    Score,
    bleu_gain,
    bucket_bleu,
    bucket_lines,
    compare,
    evaluate,
    measure,
    repeat_rates,
)
from lath.errors import UserError

VERSION = sacrebleu.__version__

# Each: hypotheses, references, tokenised, BLEU worked by hand.
BLEU_TABLE = {
    "equal": (["the cat sat on the mat ."], ["the cat sat on the mat ."], True, 100.0),
    # 5 of 6 words, 3 of 5 pairs, 2 of 4 triples, 1 of 3 quadruples
    "one word wrong": (
        ["the cat sat on a mat"],
        ["the cat sat on the mat"],
        True,
        100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25,
    ),
    # All precisions 1; four words for a reference of six: brevity penalty exp(1 - 6/4)
    "too short": (["the cat sat on"], ["the cat sat on the mat"], True, 100 * math.exp(1 - 6 / 4)),
    # Not one word in common is zero, smoothed or not
    "nothing right": (["a b c d"], ["e f g h"], True, 0.0),
    # 13a splits the full stop off; as tokens "down." is a wrong word, and the missing quadruple is smoothed to 1/2
    "raw text": (["the cat sat down."], ["the cat sat down."], False, 100.0),
    "tokens as they are": (
        ["the cat sat down."],
        ["the cat sat down ."],
        True,
        100 * math.exp(1 - 5 / 4) * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25,
    ),
    "counts are summed over the corpus": (
        ["a b c d", "e f g x"],
        ["a b c d", "e f g h"],
        True,
        100 * (7 / 8 * 5 / 6 * 3 / 4 * 1 / 2) ** 0.25,
    ),
    "upper case counts": (["A b c d e"], ["a b c d e"], True, 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25),
}


@pytest.mark.parametrize("name", BLEU_TABLE)
def test_bleu_of_the_table(name: str) -> None:
    hypotheses, references, tokenised, expected = BLEU_TABLE[name]
    assert evaluate(hypotheses, references, tokenised).bleu.value == pytest.approx(expected, abs=1e-9)


def test_chrf_by_hand() -> None:
    # "abc" for "abd": 2/3 of the letters, 1/2 of the pairs, no triple; longer ones do not exist and do not count.
    # Precision and recall are equal for each order, so F is too: (2/3 + 1/2 + 0) / 3
    assert evaluate(["abc"], ["abd"]).chrf.value == pytest.approx(100 * (2 / 3 + 1 / 2) / 3)


def test_ter_by_hand_and_only_when_asked_for() -> None:
    assert evaluate(["a b c d"], ["a b c e"]).ter is None
    report = evaluate(["a b c d"], ["a b c e"], ter=True)
    assert report.ter is not None
    assert report.ter.value == pytest.approx(25.0)  # one of four words replaced
    assert report.ter.metric == "TER"


def test_a_number_carries_its_signature() -> None:
    report = evaluate(["the cat sat down."], ["the cat sat down."], ter=True)
    assert str(report) == (
        f"BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{VERSION} = 100.00\n"
        f"chrF2|nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{VERSION} = 100.00\n"
        f"TER|nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no|version:{VERSION} = 0.00\n"
        "length ratio|tok:13a = 1.000\n"
        "adjacent repeats|tok:13a = 0.00 %"
    )


def test_tokenised_bleu_has_its_own_name() -> None:
    report = evaluate(["a b"], ["a b"], tokenised=True)
    assert str(report.bleu).startswith("tokenised BLEU|nrefs:1|case:mixed|eff:no|tok:none|")
    assert report.tokens == "none"


def test_score_prints_two_decimals() -> None:
    assert str(Score("BLEU", 27.3456, "tok:13a")) == "BLEU|tok:13a = 27.35"
    assert str(Score("BLEU", 27.3456, "x", 27.2, 0.512, 0.0123)) == "BLEU|x = 27.35 (27.20 ± 0.51), p = 0.0123"


def test_length_and_repeats_are_counted_in_the_tokens_of_bleu() -> None:
    # 13a: "no no, no." is no no , no . (5 tokens, one equal to its predecessor); the reference has 4.
    report = evaluate(["no no, no."], ["no, no."])
    assert report.length_ratio == pytest.approx(5 / 4)
    assert report.repeat_rate == pytest.approx(100 / 5)
    # As they are: no | no, | no. (3 tokens, none equal) for 2.
    report = evaluate(["no no, no."], ["no, no."], tokenised=True)
    assert report.length_ratio == pytest.approx(3 / 2)
    assert report.repeat_rate == 0


@pytest.mark.parametrize(
    ("line", "window", "expected"),
    [
        ("a a a a", 1, [75.0, 200 / 3, 50.0, 0.0]),
        ("a b a b", 1, [0.0, 0.0, 0.0, 0.0]),
        ("a b a b", 2, [50.0, 100 / 3, 0.0, 0.0]),
        ("a b c a", 2, [0.0, 0.0, 0.0, 0.0]),
        ("a b c a", 3, [25.0, 0.0, 0.0, 0.0]),
        ("", 3, [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_repeat_rates_of_the_table(line: str, window: int, expected: list[float]) -> None:
    assert repeat_rates([line], window) == pytest.approx(expected)


def test_repeats_do_not_cross_sentences_and_are_pooled() -> None:
    assert repeat_rates(["a", "a"], window=5, orders=(1,)) == [0.0]
    assert repeat_rates(["a a", "b c d e f g"], window=5, orders=(1,)) == [12.5]


@given(st.lists(st.text("ab ", max_size=12), max_size=4))
def test_a_wider_look_never_finds_less(lines: list[str]) -> None:
    for narrow, wide in zip(repeat_rates(lines, 1), repeat_rates(lines, 4), strict=True):
        assert 0 <= narrow <= wide <= 100


def test_line_counts_must_agree() -> None:
    with pytest.raises(UserError, match=r"line counts differ: hypotheses 2, references 1; line n of each"):
        evaluate(["a", "b"], ["a"])
    with pytest.raises(UserError, match=r"line counts differ: system 2 2, references 1"):
        compare([["a"], ["a", "b"]], ["a"])


def test_empty_input_is_refused() -> None:
    with pytest.raises(UserError, match="nothing to evaluate: hypotheses and references are empty; give text"):
        evaluate([], [])
    with pytest.raises(UserError, match="nothing to evaluate"):
        compare([[], []], [])
    for blank in ("", "<skipped>"):  # which 13a leaves out
        with pytest.raises(UserError, match="references: no words in any line"):
            evaluate(["a", "b"], [blank, " "])


def test_empty_translations_score_nothing() -> None:
    report = evaluate(["", ""], ["a b c d", "e"])
    assert (report.bleu.value, report.chrf.value, report.length_ratio, report.repeat_rate) == (0, 0, 0, 0)


def test_without_sacrebleu_the_import_works_and_the_call_names_the_remedy() -> None:
    program = (
        "import sys; sys.modules['sacrebleu'] = None\n"
        "from lath.analysis.scores import evaluate, repeat_rates\n"
        "from lath.errors import UserError\n"
        "print(repeat_rates(['a a'], 1, (1,)))\n"
        "try: evaluate(['a'], ['a'])\n"
        "except UserError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == ("[50.0]\nscoring needs the package sacrebleu: pip install sacrebleu\n")


def _systems(sentences: int) -> tuple[list[str], list[str], list[str]]:
    """A reference of letters, a system with about a third of them wrong, one with about a tenth."""
    random = np.random.default_rng(7)
    letters = np.array(list("abcdefgh"))
    references = [letters[random.integers(8, size=random.integers(5, 12))] for _ in range(sentences)]

    def spoil(rate: float) -> list[str]:
        return [" ".join(np.where(random.random(len(words)) < rate, "x", words)) for words in references]

    return spoil(0.35), spoil(0.1), [" ".join(words) for words in references]


def test_the_interval_of_the_gain_is_that_of_scoring_every_draw() -> None:
    first, second, references = _systems(20)
    draws = np.random.default_rng(12345).choice(20, size=(40, 20), replace=True)
    metric, gains = BLEU(tokenize="none", force=True), []
    for draw in draws:
        drawn = [references[place] for place in draw]
        scores = [metric.corpus_score([text[p] for p in draw], [drawn]).score for text in (first, second)]
        gains.append(scores[1] - scores[0])
    found = bleu_gain(first, second, references, tokenised=True, samples=40)
    assert found == pytest.approx(list(np.quantile(gains, [0.025, 0.975])))


def test_the_interval_of_the_gain_turns_round_with_the_systems() -> None:
    first, second, references = _systems(30)
    low, high = bleu_gain(first, second, references, samples=100)
    assert 0 < low < high
    assert bleu_gain(second, first, references, samples=100) == pytest.approx((-high, -low))
    assert bleu_gain(first, first, references, samples=100) == (0, 0)


def test_a_better_system_is_found_better_than_the_first() -> None:
    first, second, references = _systems(60)
    baseline, better, equal = compare([first, second, first], references, tokenised=True, ter=True, samples=200)
    for scores in (baseline, better, equal):
        assert [score.value for score in scores.scores] == [
            score.value for score in evaluate(second if scores is better else first, references, True, ter=True).scores
        ]
    assert [score.p_value for score in baseline.scores] == [None] * 3
    assert all(score.p_value == pytest.approx(1 / 201) for score in better.scores)
    assert str(better.bleu).startswith("tokenised BLEU|nrefs:1|bs:200|seed:12345|")


def test_samples_are_bounded() -> None:
    for samples in (0, -1, 10**20):
        with pytest.raises(UserError, match=f"samples: {samples} is not between 1 and 1000000; 1000 is usual"):
            compare([["a"], ["a"]], ["a"], samples=samples)


@pytest.mark.parametrize("seed", ["12345", "7"])
def test_the_bootstrap_in_blocks_is_sacrebleus_own_to_the_last_digit(
    seed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    monkeypatch.setattr("lath.analysis.bootstrap.LINES", 17)
    monkeypatch.setattr("lath.analysis.bootstrap.DRAWN", 1000)
    first, second, references = _systems(60)
    found = compare([first, second], references, ter=True, samples=101)
    metrics = {"BLEU": BLEU(references=[references]), "chrF2": CHRF(references=[references]),
               "TER": TER(references=[references])}  # fmt: skip
    signatures, table = PairedTest([("a", first), ("b", second)], metrics, None, "bs", n_samples=101)()
    for place, (name, signature) in enumerate(signatures.items()):
        for system, right in zip(found, table[name], strict=True):
            score = system.scores[place]
            assert (score.value, score.mean, score.margin, score.p_value) == (
                right.score, right.mean, right.ci, right.p_value
            )  # fmt: skip
            assert score.signature == str(signature)


def test_processes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lath.analysis.bootstrap.LINES", 7)
    first, second, references = _systems(40)
    alone, forked = (measure([first, second], references, ter=True, samples=20, workers=workers) for workers in (1, 3))
    for one, other in zip(alone, forked, strict=True):
        assert one.scores == other.scores
        assert one.sentence_chrf == other.sentence_chrf
        assert np.array_equal(one.counts.bleu, other.counts.bleu)


def test_sentence_scores_are_sacrebleus() -> None:
    first, _, references = _systems(20)
    [found] = measure([first], references)
    chrf = CHRF()
    scores = [chrf.sentence_score(line, [right]).score for line, right in zip(first, references, strict=True)]
    assert found.sentence_chrf == scores


def test_bleu_of_each_bucket_is_that_of_its_lines_alone() -> None:
    first, _, references = _systems(40)
    buckets = bucket_lines(references, edges=(6, 8, 20))
    lengths = [[len(references[number].split()) for number in lines] for lines in buckets]
    assert sum(map(len, buckets)) == 40
    assert max(lengths[0]) == 6
    assert (min(lengths[1]), max(lengths[1]), min(lengths[2])) == (7, 8, 9)
    found = bucket_bleu(first, references, buckets, tokenised=True)
    assert found[3] is None  # no line of more than 20 words
    for lines, score in zip(buckets[:3], found, strict=False):
        alone = evaluate([first[n] for n in lines], [references[n] for n in lines], tokenised=True)
        assert score == alone.bleu.value
