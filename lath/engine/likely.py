"""LAT in int8 on a CPU, approximate: only the likely tokens of a sentence can be written.

    LikelyDecoder(quantise(model)).decode(source, settings)

The oracle is `decode_pieces` (decoding/pieces.py): with every token among the candidates, this is the same up to
rounding. Pieces overlap, so what one position would write in second place another writes in first place. The candidates
of a sentence are therefore the `LIKELY` best first tokens of all its positions in the first pass, among those of its
shortlist if there is one, and the special tokens. Everything else is chosen among them, in every pass, and
log-probabilities are those among them. Of K output rows for each position in each pass, one for each position in the
first pass remains: on a CPU most of the time went into the others.

What is not arithmetic costs as much as some of the arithmetic, so there is no padding: sentences stand end to end,
N x D, and a mask knows where each begins. No number of a sentence depends on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from lath.config import DecodeSettings
from lath.decoding.lengths import best_candidates, length_candidates
from lath.decoding.merge import merge_pieces
from lath.decoding.pieces import MergedPass, MergeStep, merge_row
from lath.decoding.results import Decoded, Pass
from lath.engine.int8 import Int8Linear, Int8Table, Rows, quantised_rows
from lath.engine.shortlist import Shortlist
from lath.model.network import LAT, NEVER_WRITTEN, KeyValues, Pieces
from lath.model.padding import row_lengths
from lath.text.vocab import MASK, PAD, SOP, SPECIALS

LIKELY = 8
"""First tokens of each position that become candidates of the whole sentence."""
FORBIDDEN = torch.tensor(NEVER_WRITTEN)
"""Where the tokens that are never written stand: special tokens come first among all candidates."""

Ids = NDArray[np.int64]
"""Token ids, or places of tokens in an array."""


# ---- sentences end to end -----------------------------------------------------------------------------------------


class SpanMask(NamedTuple):
    """A mask over sentences that stand end to end: N x H x D/H queries, M x H x D/H keys and values."""

    spans: list[tuple[slice, slice]]
    """Of each sentence its queries, and the keys that they see."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Sentence by sentence."""
        query, keys, values = (part.transpose(0, 1).unsqueeze(0) for part in (query, keys, values))
        mixed = [
            functional.scaled_dot_product_attention(query[:, :, own], keys[:, :, seen], values[:, :, seen])
            for own, seen in self.spans
        ]
        return (mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=2)).squeeze(0).transpose(0, 1)


class Encoded(NamedTuple):
    """Encoded sentences."""

    memory: list[KeyValues]
    """What each decoder layer attends to, all sentences end to end."""
    seen: list[slice]
    """Where the tokens of each sentence stand there."""
    length_scores: Tensor
    """B x max_positions log-probabilities of the target lengths."""


def spans(lengths: Sequence[int]) -> list[slice]:
    """The places of sentences that stand end to end."""
    ends = np.cumsum(lengths).tolist()
    return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def end_to_end(sentences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """The tokens of all sentences, and their positions."""
    tokens = [id for sentence in sentences for id in sentence]
    return torch.tensor(tokens), torch.tensor([place for sentence in sentences for place in range(len(sentence))])


def encode(model: LAT, sentences: Sequence[Sequence[int]]) -> Encoded:
    """As `LAT.encode`, of sentences that end in EOS."""
    body, own = model.body, spans([len(sentence) + 1 for sentence in sentences])
    tokens, positions = end_to_end([[PAD, *sentence] for sentence in sentences])
    # The LENGTH token in front takes no position, so the first word has position 0.
    embedded = body.embed_source(tokens, (positions - 1).clamp_min_(0))
    slots = torch.tensor([span.start for span in own])
    embedded[slots] = model.length.token
    encoded = body.encoder(embedded, SpanMask([(span, span) for span in own]))
    seen = [slice(span.start + 1, span.stop) for span in own]
    return Encoded(body.decoder.project_memory(encoded), seen, model.length.predict(encoded[slots]))


def decode(model: LAT, inputs: Sequence[Sequence[int]], own: list[slice], encoded: Encoded) -> Tensor:
    """As `LAT.decode`: N x D states of inputs, of which several in a row may belong to one sentence."""
    candidates = len(own) // len(encoded.seen)
    seen = [span for span in encoded.seen for _ in range(candidates)]
    mask = SpanMask([(span, span) for span in own])
    states: Tensor = model.body.decoder(
        model.body.embed_target(*end_to_end(inputs)), mask, encoded.memory, SpanMask(list(zip(own, seen, strict=True)))
    )[0]
    return states


# ---- the likely tokens --------------------------------------------------------------------------------------------


class Candidates:
    """The likely tokens of one sentence, and their rows of the output matrix."""

    WHOLE = 64
    """The rows are filled up to a multiple: a product of a new shape takes several times as long at first."""

    def __init__(self, output: Int8Linear, ids: Tensor) -> None:
        self.ids = ids
        weight = torch.zeros((-(-len(ids) // self.WHOLE) * self.WHOLE, output.weight.shape[1]), dtype=torch.int8)
        weight[: len(ids)] = output.weight.index_select(0, ids)
        self._weight, self._scale = weight.t(), output.scale[ids] * (LAT.output_scale / output.levels)

    def logits(self, integers: Tensor, ranges: Tensor) -> Tensor:
        """N x C, of states in levels and their ranges."""
        products = torch._int_mm(integers, self._weight)[:, : len(self.ids)]
        return (products * self._scale).mul_(ranges)

    def best(self, integers: Tensor, ranges: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probability and id of the likeliest candidate, for each state."""
        scores = self.logits(integers, ranges).log_softmax(dim=1)  # what is forbidden keeps its share
        best = scores.index_fill_(1, FORBIDDEN, -torch.inf).max(dim=1)
        return best.values, self.ids[best.indices]


def in_levels(rows: Rows, levels: int) -> Tensor:
    """Quantised rows as integers, for `torch._int_mm`."""
    return rows.numbers.mul(levels).round_().to(torch.int8)


class PieceWriter:
    """Writes the pieces of a batch, pass after pass, from the likely tokens of each sentence."""

    def __init__(self, model: LAT, sources: Sequence[Sequence[int]], shortlist: Shortlist | None, likely: int) -> None:
        self.model, self.sources, self.shortlist, self.likely = model, sources, shortlist, likely
        self._output = cast(Int8Table, model.body.output_table).output
        self._candidates: list[Candidates] = []
        self._gates = TokenGates(model)

    def write(self, states: Tensor, own: list[slice]) -> Pieces:
        """As `LAT.pieces`: N x K tokens and scores, of N x D states."""
        each = len(own) // len(self.sources)
        sentences = [slice(own[row].start, own[row + each - 1].stop) for row in range(0, len(own), each)]
        start = quantised_rows(states)
        rows, cell = quantised_rows(self._layer("initial_hidden").of(start)), self._layer("initial_cell").of(start)
        recurrent, previous = self._layer("recurrent"), torch.tensor([SOP])
        tokens, scores = [], []
        for _ in range(self.model.piece_length):
            rows, cell = next_state(recurrent.of(rows, self._gates.of(previous)), cell)
            if not self._candidates:
                self._candidates = self._choose(rows, sentences)
            integers = in_levels(rows, self._output.levels)
            pairs = zip(self._candidates, sentences, strict=True)
            best = [likely.best(integers[span], rows.ranges[span]) for likely, span in pairs]
            score, previous = (torch.cat(column) for column in zip(*best, strict=True))
            tokens.append(previous)
            scores.append(score)
        return Pieces(torch.stack(tokens, dim=1), torch.stack(scores, dim=1))

    def _layer(self, name: str) -> Int8Linear:
        return cast(Int8Linear, getattr(self.model.local, name))

    def _choose(self, rows: Rows, sentences: list[slice]) -> list[Candidates]:
        """The candidates of each sentence, by its first tokens in the first pass."""
        if self.shortlist is None:
            best = likeliest(self._output, rows.numbers, self.model.body.target_size, self.likely).numpy()
            found = [best[span] for span in sentences]
        else:
            integers = in_levels(rows, self._output.levels)
            found = []
            for source, span in zip(self.sources, sentences, strict=True):
                short = self.shortlist.candidates(torch.tensor(source))
                logits = Candidates(self._output, short).logits(integers[span], rows.ranges[span])
                logits.index_fill_(1, FORBIDDEN, -torch.inf)
                found.append(short[logits.topk(min(self.likely, len(short) - len(NEVER_WRITTEN)), dim=1).indices].numpy())
        ids = (np.unique(np.append(each, range(len(SPECIALS)))) for each in found)
        return [Candidates(self._output, torch.from_numpy(chosen)) for chosen in ids]


BLOCK = 32
"""States whose logits are made at a time."""
GROUP = 64
"""Logits of which only the largest is looked at first."""


def likeliest(output: Int8Linear, states: Tensor, size: int, count: int) -> Tensor:
    """N x `count` ids of the likeliest tokens that may be written, in any order; `states` are quantised rows.

    As in `top_tokens_by_kernel` (top_tokens.py): they lie in the groups with the largest maxima.
    """
    product, columns = output.product(0, len(output.weight))[0], len(output.weight)
    out = torch.tensor([*NEVER_WRITTEN, *range(size, columns)])
    group = int(np.gcd(columns, GROUP))
    groups, inside = min(count, columns // group), []
    for block in states.split(BLOCK):
        logits = product(block)
        logits.index_fill_(1, out, -torch.inf)
        grouped = logits.view(len(block), -1, group)
        first = grouped.amax(dim=2).topk(groups, dim=1, sorted=False).indices
        members = grouped.gather(1, first[:, :, None].expand(-1, -1, group)).flatten(1)
        best = members.topk(min(count, size - len(NEVER_WRITTEN)), dim=1, sorted=False).indices
        inside.append(first.gather(1, best // group) * group + best % group)
    return torch.cat(inside)


# ---- the local translator -----------------------------------------------------------------------------------------


class TokenGates:
    """What a token adds to the gates of the local translator, with all biases.

    Most tokens are read several times: in the next place of the piece before, and in other passes.
    """

    def __init__(self, model: LAT) -> None:
        self._model = model
        self._places: Ids = np.full(len(model.body.output_table.weight), -1)
        self._rows = torch.empty((0, 4 * model.settings.width))
        self._count = 0

    def of(self, tokens: Tensor) -> Tensor:
        """N x 4D, of N tokens."""
        ids = tokens.numpy()
        new = np.unique(ids[self._places[ids] < 0])
        if len(new):
            self._add(new)
        return self._rows.index_select(0, torch.from_numpy(self._places[ids]))

    def _add(self, new: Ids) -> None:
        count = self._count + len(new)
        if count > len(self._rows):
            larger = self._rows.new_empty((2 * count, self._rows.shape[1]))
            larger[: self._count] = self._rows[: self._count]
            self._rows = larger
        local = self._model.local
        gates = local.input(self._model.body.embed_local(torch.from_numpy(new)))
        self._rows[self._count : count] = gates + local.recurrent.bias
        self._places[new] = np.arange(self._count, count)
        self._count = count


def next_state(gates: Tensor, cell: Tensor) -> tuple[Rows, Tensor]:
    """The rest of `LocalTranslator.forward`: the next hidden state, quantised, and cell. Overwrites its arguments.

    tanh(x) is 2 sigmoid(2x) - 1 here: torch's sigmoid takes an eighth of the time of its tanh.
    """
    enter, forget, candidate, leave = gates.chunk(4, dim=-1)
    candidate.mul_(2)
    gates.sigmoid_()
    cell.mul_(forget).addcmul_(enter, candidate.mul_(2).sub_(1))
    return quantised_rows((2 * cell).sigmoid_().mul_(2).sub_(1).mul_(leave)), cell


# ---- decoding -----------------------------------------------------------------------------------------------------


@torch.inference_mode()
def decode_likely(
    model: LAT,
    source: Tensor,
    settings: DecodeSettings,
    shortlist: Shortlist | None = None,
    trace: bool = False,
    likely: int = LIKELY,
) -> list[Decoded]:
    """Translate B x S source tokens (each sentence ends in EOS) with a model in int8."""
    sentences = [row[:length] for row, length in zip(source.tolist(), row_lengths(source), strict=True)]
    encoded = encode(model, sentences)
    lengths, length_scores = length_candidates(
        encoded.length_scores, settings.length_candidates, settings.extra_length
    )
    inputs = [[MASK] * length for length in cast(list[int], lengths.tolist())]
    passes: list[list[Pass]] = [[] for _ in inputs]
    writer = PieceWriter(model, sentences, shortlist, likely)
    for iteration in range(1, settings.iterations + 1):
        own = spans([len(shown) for shown in inputs])
        written = writer.write(decode(model, inputs, own, encoded), own)
        step = MergeStep(settings.merge_rules, iteration, settings.iterations, model.settings.max_positions)
        merged = merge_spans(inputs, written, own, step, trace)
        inputs = [merged_pass.next_input for merged_pass in merged]
        for traced, merged_pass in zip(passes, merged, strict=True):
            if merged_pass.trace is not None:
                traced.append(merged_pass.trace)
    certain = certainties(written.scores, own, length_scores)
    decoded = [
        Decoded(ids := last.sentence.ids[1:-1], score if ids else -torch.inf, settings.iterations, traced)
        for last, score, traced in zip(merged, certain, passes, strict=True)
    ]
    return best_candidates(decoded, settings.length_candidates)


def certainties(scores: Tensor, own: list[slice], length_scores: Tensor) -> list[float]:
    """As `certainty` (decoding/pieces.py), of sentences that stand end to end."""
    sums, lengths = scores.double().sum(dim=1).numpy(), length_scores.tolist()
    rows = zip(own, lengths, strict=True)
    return [
        (float(sums[span].sum()) + length) / ((span.stop - span.start) * scores.shape[1] + 1) for span, length in rows
    ]


def merge_spans(
    inputs: list[list[int]], written: Pieces, own: list[slice], step: MergeStep, trace: bool
) -> list[MergedPass]:
    """As `merge_rows` (decoding/pieces.py), of sentences that stand end to end."""
    tokens, scores = written.tokens.tolist(), written.scores.double().tolist()
    return [
        merge_row(shown, tokens[span], scores[span], step, merge_pieces, trace)
        for shown, span in zip(inputs, own, strict=True)
    ]


class LikelyDecoder:
    """`PlainDecoder` for a LAT in int8 on a CPU, with the shortlist that `settings.shortlist` switches on."""

    engine = "likely"

    def __init__(self, model: LAT, shortlist: Shortlist | None = None) -> None:
        self.model, self.shortlist = model, shortlist

    @property
    def has_shortlist(self) -> bool:
        """Whether `settings.shortlist` may be true."""
        return self.shortlist is not None

    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """Translate B x S source tokens (each sentence ends in EOS)."""
        return decode_likely(self.model, source, settings, self.shortlist if settings.shortlist else None, trace)
