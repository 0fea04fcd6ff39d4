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

import functools
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
from lath.engine.int8 import Int8DecoderLayer, Int8Linear, Int8Table, Rows, quantised_rows
from lath.engine.shortlist import Shortlist
from lath.model.network import LAT, NEVER_WRITTEN, KeyValues, Pieces
from lath.model.padding import row_lengths
from lath.text.vocab import MASK, PAD, SOP, SPECIALS

LIKELY = 32
"""First tokens of each position that become candidates of the whole sentence. 8 would save 5 % of the time, and cost up
to 0.3 BLEU on validation text where 32 cost up to 0.1 (docs/log.md)."""
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
        mixed = [attend(query[own], keys[seen], values[seen]) for own, seen in self.spans]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


NOTHING = torch.empty(())


def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Scaled dot-product attention of one sentence; torch's own takes a third longer for one of 27 tokens."""
    scale = query.shape[-1] ** -0.5
    scores = torch.baddbmm(NOTHING, query.transpose(0, 1), keys.permute(1, 2, 0), beta=0, alpha=scale)
    return torch.bmm(scores.softmax(dim=-1), values.transpose(0, 1)).transpose(0, 1)


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
    # One by one: a product of several rows in float32 adds up in another order.
    lengths = torch.cat([model.length.predict(encoded[span.start : span.start + 1]) for span in own])
    return Encoded(body.decoder.project_memory(encoded), seen, lengths)


class MaskedStates:
    """What the decoder's first layer makes of nothing but masks before it looks at the source.

    Every first pass begins with it. It depends on the number of masks alone, and is kept.
    """

    LONGEST = 128
    """Longer ones are rare and not kept: all that is kept takes at most 17 MB at width 512."""

    def __init__(self, model: LAT) -> None:
        self._model = model
        self._kept: dict[int, Tensor] = {}

    def of(self, length: int) -> Tensor:
        """T x D."""
        found = self._kept.get(length)
        if found is None:
            embedded = self._model.body.embed_target(*end_to_end([[MASK] * length]))
            layer = cast(Int8DecoderLayer, self._model.body.decoder.layers[0])
            found = layer.attend_itself(embedded, SpanMask([(slice(0, length), slice(0, length))]))[0]
            if length <= self.LONGEST:
                self._kept[length] = found
        return found


def first_states(masked: MaskedStates, model: LAT, own: list[slice], encoded: Encoded) -> Tensor:
    """As `later_states`, of inputs that are nothing but masks."""
    seen = memory_mask(own, encoded)
    x = torch.cat([masked.of(span.stop - span.start) for span in own])
    first, *others = cast(list[Int8DecoderLayer], list(model.body.decoder.layers))
    x = first.attend_memory(x, encoded.memory[0], seen)
    mask = SpanMask([(span, span) for span in own])
    for layer, memory in zip(others, encoded.memory[1:], strict=True):
        x = layer(x, mask, memory, seen, None)[0]
    return x


def later_states(model: LAT, inputs: Sequence[Sequence[int]], own: list[slice], encoded: Encoded) -> Tensor:
    """As `LAT.decode`: N x D states of inputs, of which several in a row may belong to one sentence."""
    mask, embedded = SpanMask([(span, span) for span in own]), model.body.embed_target(*end_to_end(inputs))
    states: Tensor = model.body.decoder(embedded, mask, encoded.memory, memory_mask(own, encoded))[0]
    return states


def memory_mask(own: list[slice], encoded: Encoded) -> SpanMask:
    """Each input sees the tokens of its sentence."""
    candidates = len(own) // len(encoded.seen)
    return SpanMask(list(zip(own, [span for span in encoded.seen for _ in range(candidates)], strict=True)))


# ---- the likely tokens --------------------------------------------------------------------------------------------


class Candidates:
    """The likely tokens of one sentence, and their rows of the output matrix."""

    WHOLE = 64
    """The rows are filled up to a multiple: a product of a new shape takes several times as long at first."""

    def __init__(self, output: Int8Linear, ids: Tensor) -> None:
        self.ids = ids
        filled = functional.pad(ids, (0, -len(ids) % self.WHOLE))
        self._weight = output.weight.index_select(0, filled).t()
        self._scale = output.scale.index_select(0, ids).mul_(LAT.output_scale / output.levels)

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

    def __init__(self, model: LAT, begin: Tensor, each: int, likely: int, short: list[Tensor] | None) -> None:
        """`begin` are the gates of <sop>, `each` the length candidates of a sentence, `short` the shortlists."""
        self.model, self.each, self.likely, self.short = model, each, likely, short
        self._output = cast(Int8Table, model.body.output_table).output
        self._candidates: list[Candidates] = []
        self._gates = TokenGates(model, begin)

    def write(self, states: Tensor, own: list[slice]) -> Pieces:
        """As `LAT.pieces`: N x K tokens and scores, of N x D states."""
        sentences = [
            slice(first.start, last.stop)
            for first, last in zip(own[:: self.each], own[self.each - 1 :: self.each], strict=True)
        ]
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
        if self.short is None:
            best = likeliest(self._output, rows.numbers, self.model.body.target_size, self.likely)
            found = [best[span] for span in sentences]
        else:
            integers = in_levels(rows, self._output.levels)
            found = []
            for short, span in zip(self.short, sentences, strict=True):
                logits = Candidates(self._output, short).logits(integers[span], rows.ranges[span])
                count = min(self.likely, len(short) - len(NEVER_WRITTEN))
                best = logits.index_fill_(1, FORBIDDEN, -torch.inf).topk(count, dim=1, sorted=False).indices
                found.append(short[best])
        ids = (np.unique(np.append(best.numpy(), range(len(SPECIALS)))) for best in found)
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
    for block in torch.split(states, BLOCK):
        logits = product(block)
        logits.index_fill_(1, out, -torch.inf)
        grouped = logits.view(len(block), -1, group)
        first = grouped.amax(dim=2).topk(groups, dim=1, sorted=False).indices
        members = grouped.gather(1, first[:, :, None].expand(-1, -1, group)).flatten(1)
        best = members.topk(min(count, size - len(NEVER_WRITTEN)), dim=1, sorted=False).indices
        inside.append(first.gather(1, best // group) * group + best % group)
    return torch.cat(inside)


# ---- the local translator -----------------------------------------------------------------------------------------


def token_gates(model: LAT, tokens: Tensor) -> Tensor:
    """N x 4D: what tokens add to the gates of the local translator, with all biases."""
    gates: Tensor = model.local.input(model.body.embed_local(tokens))
    return gates.add_(model.local.recurrent.bias)


class TokenGates:
    """`token_gates` of a batch, each token's computed once.

    Most tokens are read several times: in the next place of the piece before, and in other passes.
    """

    ROOM = 64
    """Tokens at first; the room doubles."""

    def __init__(self, model: LAT, begin: Tensor) -> None:
        self._model, self._count = model, 1
        self._places: Ids = np.full(len(model.body.output_table.weight), -1)
        self._places[SOP] = 0
        self._rows = begin.new_empty((self.ROOM, begin.shape[1]))
        self._rows[:1] = begin

    def of(self, tokens: Tensor) -> Tensor:
        """N x 4D, of N tokens."""
        ids = tokens.numpy()
        places = self._places[ids]
        if places.min() < 0:
            self._add(np.unique(ids[places < 0]))
            places = self._places[ids]
        return self._rows.index_select(0, torch.from_numpy(places))

    def _add(self, new: Ids) -> None:
        count, room = self._count + len(new), len(self._rows)
        if count > room:
            larger = self._rows.new_empty((2 * max(count, room), self._rows.shape[1]))
            larger[: self._count] = self._rows[: self._count]
            self._rows = larger
        self._rows[self._count : count] = token_gates(self._model, torch.from_numpy(new))
        self._places[new] = np.arange(self._count, count)
        self._count = count


def next_state(gates: Tensor, cell: Tensor) -> tuple[Rows, Tensor]:
    """The rest of `LocalTranslator.forward`: the next hidden state, quantised, and cell. Overwrites its arguments.

    tanh(x) is 2 sigmoid(2x) - 1 here: torch's sigmoid takes an eighth of the time of its tanh.
    """
    enter, forget, candidate, leave = gates.chunk(4, dim=-1)
    candidate.mul_(2)
    gates.sigmoid_()
    # `addcmul_` would round otherwise where there is a single row; twice a number is exact.
    cell.mul_(forget).add_(candidate.sub_(0.5).mul_(enter), alpha=2)
    return quantised_rows((2 * cell).sigmoid_().mul_(2).sub_(1).mul_(leave)), cell


# ---- decoding -----------------------------------------------------------------------------------------------------


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
    """A LAT in int8 on a CPU, with a shortlist if `settings.shortlist` switches it on."""

    engine = "likely"

    def __init__(self, model: LAT, shortlist: Shortlist | None = None, likely: int = LIKELY) -> None:
        self.model, self.shortlist, self.likely = model, shortlist, likely
        self._masked = MaskedStates(model)

    @property
    def has_shortlist(self) -> bool:
        """Whether `settings.shortlist` may be true."""
        return self.shortlist is not None

    @functools.cached_property
    def _begin(self) -> Tensor:
        """What every piece reads first."""
        return token_gates(self.model, torch.tensor([SOP]))

    @torch.inference_mode()
    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """Translate B x S source tokens (each sentence ends in EOS)."""
        model, candidates = self.model, settings.length_candidates
        sentences = [row[:length] for row, length in zip(source.tolist(), row_lengths(source), strict=True)]
        encoded = encode(model, sentences)
        lengths, length_scores = length_candidates(encoded.length_scores, candidates, settings.extra_length)
        inputs = [[MASK] * length for length in cast(list[int], lengths.tolist())]
        passes: list[list[Pass]] = [[] for _ in inputs]
        shortlist = self.shortlist if settings.shortlist else None
        short = None if shortlist is None else [shortlist.candidates(torch.tensor(ids)) for ids in sentences]
        writer = PieceWriter(model, self._begin, candidates, self.likely, short)
        for iteration in range(1, settings.iterations + 1):
            own = spans([len(shown) for shown in inputs])
            if iteration == 1:
                states = first_states(self._masked, model, own, encoded)
            else:
                states = later_states(model, inputs, own, encoded)
            written = writer.write(states, own)
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
        return best_candidates(decoded, candidates)
