"""The picture of a pass keeps what the merge decided, whatever the pieces are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lath.analysis.picture import draw
from lath.config import RULE_SETS
from lath.decoding.merge import merge_pieces
from lath.decoding.pieces import token_sources
from lath.decoding.results import Pass
from lath.text.vocab import BOS, EOS, MASK, SPECIALS

TOKENS = [BOS, EOS, MASK, *range(len(SPECIALS), len(SPECIALS) + 4)]
SCORES = st.floats(-4, 0)


@st.composite
def passes(draw_from: st.DrawFn) -> Pass:
    size = draw_from(st.integers(1, 4))
    piece = st.lists(st.sampled_from(TOKENS), min_size=size, max_size=size)
    pieces = draw_from(st.lists(piece, min_size=1, max_size=9))
    scores = [draw_from(st.lists(SCORES, min_size=size, max_size=size)) for _ in pieces]
    merged = merge_pieces(pieces, scores, RULE_SETS[draw_from(st.sampled_from(sorted(RULE_SETS)))])
    output = [BOS, *(id for id in merged.ids if id not in (BOS, EOS, MASK)), EOS]
    masked = draw_from(st.lists(st.sampled_from(range(len(output))), unique=True))
    return Pass([MASK] * len(pieces), pieces, scores, merged.decisions, output, masked, 0, token_sources(merged))


@given(passes())
def test_every_proposal_is_drawn_once_and_where_it_went(traced: Pass) -> None:
    picture = draw(traced)
    assert [[cell.id for cell in row.cells] for row in picture.rows] == traced.pieces
    assert [[cell.score for cell in row.cells] for row in picture.rows] == traced.scores
    assert [placed.id for placed in picture.output] == traced.output
    assert [n for n, placed in enumerate(picture.output) if placed.state == "masked"] == sorted(traced.masked)
    columns = {placed.column: place for place, placed in enumerate(picture.output)}
    assert len(columns) == len(traced.output)
    for number, row in enumerate(picture.rows):
        taken = [cell.column for cell in row.cells]
        assert taken == sorted(set(taken))
        assert 0 <= taken[0] <= taken[-1] < picture.columns
        for inner, cell in enumerate(row.cells):
            aligned = [place for place, sources in enumerate(traced.sources) if (number, inner) in sources]
            lost = [n for n, conflict in enumerate(picture.decisions) if (number, inner) in conflict.lost]
            if cell.state == "kept":
                assert aligned == [columns[cell.column]]
                assert traced.output[aligned[0]] == cell.id
            else:
                assert (cell.state == "lost") == bool(lost)
                repeat = inner > 0 and row.cells[inner - 1].id == cell.id
                assert lost or repeat or cell.id in (BOS, EOS, MASK)
            assert cell.conflict == (lost[-1] if lost else None)
            assert not (lost and aligned)
