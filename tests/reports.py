"""A small analysis with every kind of system and hostile text, for the tests of the report."""

from __future__ import annotations

from dataclasses import replace

from lath.analysis.analysis import Analysis, Plot, System, Table, Trace
from lath.analysis.scores import evaluate
from lath.config import RULE_SETS
from lath.decoding.merge import merge_pieces
from lath.decoding.pieces import token_sources
from lath.decoding.results import Check, Pass
from lath.text.vocab import BOS, EOS, MASK, SPECIALS

LINES = 400
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'> <!-- @script@ @data@"
WORDS = ["the", "old", "dog", "cat", "barks"]
THE, OLD, DOG, CAT, BARKS = range(len(SPECIALS), len(SPECIALS) + len(WORDS))
TOKENS = dict(enumerate([*SPECIALS, *WORDS]))
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><style>rect{fill:red}</style><rect width="9"/></svg>'
)


def lat_passes() -> list[Pass]:
    """Two passes: one conflict, one concatenation, a masked token; then all pieces agree."""
    pieces = [[BOS, THE], [THE, OLD], [DOG, BARKS], [CAT, BARKS], [EOS, EOS]]
    scores = [[0.0, -0.1], [-0.2, -0.3], [-0.5, -0.6], [-0.9, -0.7], [-0.01, -0.02]]
    first = _merged([MASK] * 5, pieces, scores, masked=[3], change=1)
    pieces = [[BOS, THE], [THE, OLD], [OLD, CAT], [CAT, BARKS], [BARKS, EOS], [EOS, EOS]]
    return [first, _merged([BOS, THE, OLD, MASK, BARKS, EOS], pieces, [[-0.1, -0.1]] * 6, masked=[], change=0)]


def _merged(
    given: list[int], pieces: list[list[int]], scores: list[list[float]], masked: list[int], change: int
) -> Pass:
    merged = merge_pieces(pieces, scores, RULE_SETS["official"])
    output = [BOS, *(id for id in merged.ids if id not in (BOS, EOS)), EOS]
    return Pass(given, pieces, scores, merged.decisions, output, masked, change, token_sources(merged))


def checked_passes() -> list[Pass]:
    """A draft of which one token is accepted, and a redraft of which all are."""
    draft = replace(lat_passes()[0], masked=[], length_change=0, check=Check(1, CAT))
    pieces, scores = [[BOS, BARKS], [BARKS, EOS]], [[-0.1, -0.1]] * 2
    redraft = _merged([BOS, MASK], pieces, scores, masked=[], change=0)
    return [draft, replace(redraft, prefix=[THE, CAT], check=Check(2, None))]


def cmlm_pass() -> Pass:
    """All places predicted, of which two were masks."""
    given, written = [BOS, MASK, OLD, MASK, EOS], [BOS, THE, DOG, CAT, EOS]
    return Pass(given, [[id] for id in written], [[-0.5]] * 5, [], [BOS, THE, OLD, CAT, EOS], [1])


def small_analysis() -> Analysis:
    """Line n has n % 40 + 1 words. `near` errs in each seventh line, `far` in all, `lat` and `cmlm` have passes."""
    reference = [" ".join(f"word{n}" for n in range(line % 40 + 1)) for line in range(LINES)]
    source = [f"Zeile {line}" for line in range(LINES)]
    reference[3] = source[4] = HOSTILE
    near = [f"wrong {text}" if line % 7 == 0 else text for line, text in enumerate(reference)]
    far = [text.replace("word0", "nothing at all") + " extra" for text in reference]
    lat = [Trace(line, "the old cat barks", -0.2, [lat_passes()], ["the old dog barks", HOSTILE]) for line in (0, 2, 5)]
    cmlm = [Trace(0, "the old cat", -0.5, [[cmlm_pass()], [cmlm_pass()]], ["the old cat the old cat"])]
    table = Table("bleu", f"BLEU {HOSTILE}", ["system", "BLEU"], [0, 2], [["near", 51.234], [HOSTILE, None]], "A note.")
    tokens = TOKENS | {OLD: "old<b>"}
    systems = [
        _system("near", near, reference),
        _system("far", far, reference),
        _system("lat", reference, reference, lat, tokens),
        _system("cmlm", reference, reference, cmlm, tokens),
    ]
    return Analysis(
        "test.de", f"{HOSTILE}.en", source, reference, systems, [table], [Plot("p", "Plot", SVG, b"")], ["A"]
    )


def _system(
    name: str,
    texts: list[str],
    reference: list[str],
    traces: list[Trace] | None = None,
    tokens: dict[int, str] | None = None,
) -> System:
    chrf = [
        100.0 if text == right else 100 - len(text) % 50 - 1.5 for text, right in zip(texts, reference, strict=True)
    ]
    return System(name, f"{name}.en", texts, evaluate(texts, reference), chrf, traces=traces or [], tokens=tokens or {})
