"""The tables that need the passes of models: agreement, conflicts, quality by pass, calibration, lengths, collapse.

All are over the traced lines alone, and each names how many those are.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lath.analysis.analysis import Cell, Table, Trace
from lath.analysis.scores import evaluate, repeat_rates, token_lines
from lath.config import DecodeSettings, MergeRules
from lath.decoding.merge import Decision, longest_common_subsequence, merge_pieces
from lath.decoding.results import Pass
from lath.text.vocab import BOS, EOS, MASK, Vocab

BINS = 10
"""Of the calibration."""
VERIFIED_OUT = "Left out are verified systems: their passes draft parts of a text, which another model corrects."
NO_TRACES = "Left out: it needs the passes of a CMLM or LAT model, and {}."
NO_PIECES = "Left out: it needs the pieces of a LAT model, and {}."


@dataclass(frozen=True)
class Traced:
    """A CMLM or LAT model and the passes of some lines."""

    name: str
    kind: str
    settings: DecodeSettings
    vocab: Vocab
    traces: list[Trace]
    references: list[str]
    """Of the traced lines."""
    oracle: list[str]
    """Translations with the reference's length given, of the lines that were decoded in one fragment."""

    def passes(self) -> Iterator[tuple[int, Pass]]:
        """Every pass of every fragment, with its number from 1."""
        for trace in self.traces:
            for fragment in trace.passes:
                yield from enumerate(fragment, 1)

    def whole(self) -> Iterator[tuple[Trace, list[Pass], str]]:
        """The traces of lines that were decoded in one fragment, with passes and reference."""
        for trace, reference in zip(self.traces, self.references, strict=True):
            if len(trace.passes) == 1:
                yield trace, trace.passes[0], reference


def trace_tables(traced: Sequence[Traced], tokenised: bool, window: int) -> list[Table]:
    """All tables of this file; those that no system has passes for say why."""
    own = [system for system in traced if not system.settings.verify]
    lat = [system for system in own if system.kind == "LAT"]
    tables = [
        passes_table(own, tokenised),
        agreement_table(lat),
        conflicts_table(lat),
        collapse_table(lat, tokenised, window),
        lengths_table(own, tokenised),
        calibration_table(own),
    ]
    verified = [system for system in traced if system.settings.verify]
    if not verified:
        return tables
    out = [dataclasses.replace(table, note=f"{table.note} {VERIFIED_OUT}") for table in tables]
    return [*out, checks_table(verified)]


def _table(
    name: str, title: str, columns: dict[str, int], rows: list[list[Cell]], note: str, pieces: bool = False
) -> Table:
    """A table, or the reason why it has no rows; `columns` are headings with their decimals."""
    missing = (NO_PIECES if pieces else NO_TRACES).format("no system has them")
    return Table(name, title, list(columns), list(columns.values()), rows, note if rows else missing)


def _lines(system: Traced) -> str:
    return str(len(system.traces))


def passes_table(traced: Sequence[Traced], tokenised: bool) -> Table:
    """Quality by pass, and how much each pass changes."""
    rows: list[list[Cell]] = []
    for system in traced:
        for turn in range(1, max((number for number, _ in system.passes()), default=0) + 1):
            texts = [trace.pass_texts[turn - 1] if trace.passes else "" for trace in system.traces]
            scores = evaluate(texts, system.references, tokenised)
            now = [found for number, found in system.passes() if number == turn]
            written = sum(len(found.output) - 2 for found in now)
            masked = sum(len(found.masked) for found in now)
            rows.append([
                system.name, str(turn), _lines(system), scores.bleu.value, scores.chrf.value,
                _share(changed_tokens(system, turn), written) if turn > 1 else None,
                _share(masked, written), sum(found.length_change for found in now) / len(now),
            ])  # fmt: skip
    columns = {"system": 0, "pass": 0, "lines": 0, "BLEU": 2, "chrF2": 2, "tokens changed %": 1, "masked next %": 1,
               "masks inserted": 2}  # fmt: skip
    note = (
        "The text after each pass of one decoding. Changed: tokens that are not in a longest common subsequence with "
        "the pass before. Masks inserted: mean a sentence, negative for deleted."
    )
    return _table("passes", "Quality by pass", columns, rows, note)


def changed_tokens(system: Traced, turn: int) -> int:
    """Tokens of a pass that are not in a longest common subsequence with the pass before."""
    changed = 0
    for trace in system.traces:
        for fragment in trace.passes:
            if len(fragment) >= turn:
                before, after = fragment[turn - 2].output, fragment[turn - 1].output
                changed += len(after) - len(longest_common_subsequence(before, after))
    return changed


def agreement_table(traced: Sequence[Traced]) -> Table:
    """How often pieces agree, and how they are joined."""
    rows: list[list[Cell]] = []
    for system, turn, passes in _by_pass(traced):
        pairs = [pair for found in passes for pair in itertools.pairwise(found.pieces)]
        equal = sum(left[1:] == right[:-1] for left, right in pairs)
        firsts = sum(left[1] == right[0] for left, right in pairs if len(left) > 1)
        joins = Counter(step for found in passes for step in joined(found.decisions))
        total = sum(joins.values())
        shares = [_share(joins[step], total) for step in ("overlap", "match", "concatenate")]
        rows.append(
            [system.name, str(turn), _lines(system), _share(equal, len(pairs)), _share(firsts, len(pairs)), *shares]
        )
    columns = {"system": 0, "pass": 0, "lines": 0, "same overlap %": 1, "same next token %": 1, "joined exactly %": 1,
               "aligned %": 1, "appended %": 1}  # fmt: skip
    note = (
        "Neighbouring pieces: same overlap means that the K - 1 tokens which both should predict are equal; same next "
        "token, that the second of one is the first of the next. Then how pieces were joined to the text before: by "
        "an exact overlap, by alignment (Algorithm 1), or appended because nothing is shared."
    )
    return _table("agreement", "How often pieces agree", columns, rows, note, pieces=True)


def joined(decisions: Sequence[Decision]) -> list[str]:
    """How each piece was joined: overlap, concatenate, or match for an alignment."""
    steps = ((piece, {decision.step for decision in some}) for piece, some in
             itertools.groupby(decisions, key=lambda decision: decision.piece))  # fmt: skip
    return [
        next(step for step in ("overlap", "concatenate", "match", "conflict") if step in found) for _, found in steps
    ]


def conflicts_table(traced: Sequence[Traced]) -> Table:
    """Which side wins where two pieces contradict each other."""
    rows: list[list[Cell]] = []
    for system, turn, passes in _by_pass(traced):
        conflicts = [decision for found in passes for decision in found.decisions if decision.step == "conflict"]
        left = [decision for decision in conflicts if decision.kept == "left"]
        empty = [decision for decision in conflicts if not decision.left or not decision.right]
        shorter = [decision for decision in empty if not (decision.left if decision.kept == "left" else decision.right)]
        apart = [abs(decision.left_score - decision.right_score) for decision in conflicts]
        rows.append([
            system.name, str(turn), _lines(system), len(conflicts) / len(passes),
            _share(len(left), len(conflicts)), _share(len(conflicts) - len(left), len(conflicts)),
            _share(len(empty), len(conflicts)), _share(len(shorter), len(empty)),
            statistics.median(apart) if apart else None,
        ])  # fmt: skip
    columns = {"system": 0, "pass": 0, "lines": 0, "conflicts a sentence": 2, "left wins %": 1, "right wins %": 1,
               "with an empty side %": 1, "empty wins %": 1, "median score gap": 2}  # fmt: skip
    note = (
        "Left is the text so far, right the piece that is merged into it. An empty side has a fixed score. The "
        "gap is of mean log-probabilities."
    )
    return _table("conflicts", "Which side wins conflicts", columns, rows, note, pieces=True)


def collapse_table(traced: Sequence[Traced], tokenised: bool, window: int) -> Table:
    """Repeats of the last pass with and without the collapse of repeats inside a piece."""
    rows: list[list[Cell]] = []
    for system in traced:
        lasts = [(fragment[-1], reference) for _, fragment, reference in system.whole()]
        repeated = sum(has_repeat(piece) for found, _ in lasts for piece in found.pieces)
        for collapse in (True, False):
            rules = dataclasses.replace(system.settings.merge_rules, collapse_repeats=collapse)
            texts = [system.vocab.decode([id for id, _ in merged_tokens(found, rules)]) for found, _ in lasts]
            tokens = token_lines(texts, tokenised)
            adjacent = repeat_rates(tokens, window=1, orders=(1,))
            bleu = evaluate(texts, [reference for _, reference in lasts], tokenised).bleu.value if lasts else None
            label = "yes" if collapse else "no"
            rows.append(
                [
                    system.name,
                    label,
                    str(len(lasts)),
                    _share(repeated, sum(len(one.pieces) for one, _ in lasts)),
                    *adjacent,
                    *repeat_rates(tokens, window, (1, 2)),
                    bleu,
                ]
            )
    columns = {
        "system": 0,
        "collapse": 0,
        "lines": 0,
        "pieces with a repeat %": 1,
        "adjacent %": 2,
        "n = 1 %": 2,
        "n = 2 %": 2,
        "BLEU": 2,
    }
    note = (
        f"The pieces of the last pass, merged with and without collapse of equal neighbours inside a piece; earlier "
        f"passes are as they were. Repeats up to {window} positions back. Lines in one fragment."
    )
    return _table("collapse", "Repeats with and without the collapse of repeats", columns, rows, note, pieces=True)


def has_repeat(piece: Sequence[int]) -> bool:
    """Whether a token equals the one before it; the filling after the end does not count.

    >>> has_repeat([7, 7, 8]), has_repeat([7, 2, 2])
    (True, False)
    """
    return any(left == right != EOS for left, right in itertools.pairwise(piece))


def lengths_table(traced: Sequence[Traced], tokenised: bool) -> Table:
    """How good the predicted lengths are, and what the reference's length would bring."""
    rows: list[list[Cell]] = []
    for system in traced:
        found = list(system.whole())
        if not found:
            continue
        extra = system.settings.extra_length if system.kind == "LAT" else 0
        right = [len(system.vocab.encode(reference)) + 2 for _, _, reference in found]
        predicted = [len(passes[0].input) - extra for _, passes, _ in found]
        off = [one - other for one, other in zip(predicted, right, strict=True)]
        within = [abs(one) <= other / 10 for one, other in zip(off, right, strict=True)]
        references = [reference for _, _, reference in found]
        own = evaluate([trace.text for trace, _, _ in found], references, tokenised).bleu.value
        known = evaluate(system.oracle, references, tokenised).bleu.value
        rows.append([
            system.name, str(len(found)), statistics.mean(off), statistics.mean(map(abs, off)),
            _share(off.count(0), len(off)), _share(sum(abs(one) <= 1 for one in off), len(off)),
            _share(sum(within), len(off)), own, known, known - own,
        ])  # fmt: skip
    columns = {"system": 0, "lines": 0, "mean error": 2, "mean distance": 2, "exact %": 1, "off by 1 at most %": 1,
               "by 10 % at most %": 1, "BLEU": 2, "BLEU, oracle length": 2, "gain": 2}  # fmt: skip
    note = (
        "The length of the first decoder input, less extra positions, against the tokens of the reference; with "
        "several candidates that of the winner. Oracle: decoded again with the reference's length alone. "
        "Lines in one fragment."
    )
    return _table("lengths", "Predicted length and oracle length", columns, rows, note)


def calibration_table(traced: Sequence[Traced]) -> Table:
    """Confidence against correctness of the tokens of the last pass."""
    rows: list[list[Cell]] = []
    for system in traced:
        bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
        for _, passes, reference in system.whole():
            for probability, right in judged(system, passes, reference):
                bins[min(int(probability * BINS), BINS - 1)].append((probability, right))
        total = sum(map(len, bins))
        for number, found in enumerate(bins):
            if found:
                confidence, correct = (100 * statistics.mean(figures) for figures in zip(*found, strict=True))
                span = f"{number * 100 // BINS}-{(number + 1) * 100 // BINS} %"
                rows.append([system.name, span, _share(len(found), total), confidence, correct, confidence - correct])
    columns = {"system": 0, "probability": 0, "tokens %": 1, "mean confidence %": 1, "correct %": 1, "gap": 1}
    note = (
        "Tokens of the last pass by the probability that they won with. Correct: the reference has the token too, each "
        "of its tokens counted once. Wrong words that are good translations count as wrong, so a gap is expected; its "
        "change over the rows is what matters. "
        + "; ".join(
            f"{system.name}: expected calibration error {error:.1f} %"
            for system in traced
            if (error := calibration_error([row for row in rows if row[0] == system.name])) is not None
        )
    )
    return _table("calibration", "Confidence against correctness", columns, rows, note)


def calibration_error(rows: Sequence[Sequence[Cell]]) -> float | None:
    """The mean distance of confidence and correctness, weighted by the share of tokens."""
    return sum(float(row[2] or 0) * abs(float(row[5] or 0)) for row in rows) / 100 if rows else None


def judged(system: Traced, passes: Sequence[Pass], reference: str) -> Iterator[tuple[float, bool]]:
    """The probability of each token of a translation, and whether the reference has it."""
    left = Counter(system.vocab.encode(reference))
    rules = system.settings.merge_rules
    tokens = merged_tokens(passes[-1], rules) if system.kind == "LAT" else filled_tokens(passes)
    for id, score in tokens:
        yield math.exp(score), left[id] > 0
        left[id] -= 1


def merged_tokens(found: Pass, rules: MergeRules) -> list[tuple[int, float]]:
    """The words of a LAT pass with their scores."""
    merged = merge_pieces(found.pieces, found.scores, rules)
    return [(token.id, token.score) for token in merged.tokens if token.id not in (BOS, EOS, MASK)]


def filled_tokens(passes: Sequence[Pass]) -> list[tuple[int, float]]:
    """The words that CMLM filled in, each with its score in the pass that wrote it."""
    scores = [0.0] * len(passes[-1].output)
    for found in passes:
        for place, id in enumerate(found.input):
            if id == MASK:
                scores[place] = found.scores[place][0]
    return list(zip(passes[-1].output, scores, strict=True))[1:-1]


def checks_table(verified: Sequence[Traced]) -> Table:
    """How much of what LAT drafts its verifier accepts."""
    rows: list[list[Cell]] = []
    for system in verified:
        settings = system.settings
        fragments = [fragment for trace in system.traces for fragment in trace.passes]
        checked = [one for fragment in fragments for one in fragment if one.check is not None]
        checks = [one.check for one in checked if one.check is not None]
        accepted = sum(check.accepted for check in checks)
        written = accepted + sum(check.correction is not None for check in checks)
        drafted = sum(len(one.output) - 1 for one in checked)
        rule = f" ({settings.verify_top} best, {settings.verify_nats:g} nats)" if settings.verify == "relaxed" else ""
        verifications = len(checks) if checks else len(fragments)
        rows.append([
            system.name, settings.verify + rule, _lines(system), _mean(verifications, len(fragments)),
            _mean(sum(map(len, fragments)), len(fragments)), _share(accepted, drafted), _mean(written, len(checks)),
        ])  # fmt: skip
    columns = {"system": 0, "mode": 0, "lines": 0, "checks": 2, "passes": 2, "accepted %": 1, "tokens a check": 2}
    note = (
        "Means of a sentence: passes of the verifier (checks) and of the model. Accepted: of all drafted tokens. "
        "A check writes the tokens that it accepts, and one of its own. In rerank it only chooses a length."
    )
    return _table("checks", "What verifiers accept", columns, rows, note)


def _mean(total: int, count: int) -> float | None:
    return total / count if count else None


def _by_pass(traced: Sequence[Traced]) -> Iterator[tuple[Traced, int, list[Pass]]]:
    for system in traced:
        for turn in range(1, max((number for number, _ in system.passes()), default=0) + 1):
            yield system, turn, [found for number, found in system.passes() if number == turn]


def _share(some: int, all_: int) -> float | None:
    return 100 * some / all_ if all_ else None
