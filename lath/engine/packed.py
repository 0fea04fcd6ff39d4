"""Twin of padded batches in training: sentences end to end in one array, without padding.

    Examples -> pack_examples -> PackedExamples -> packed_loss_share

A packed array has a fixed size whatever its sentences, so one compiled network serves every update. The padded form is
the oracle: `tests/engine/test_packed.py` holds both to the same loss and gradient.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from lath.config import ObjectiveSettings
from lath.devices import HAS_TRITON
from lath.engine.cross_entropy import chunked_cross_entropy
from lath.engine.packed_attention import attend_in_sentences
from lath.model.network import AT, LAT, Model
from lath.text.vocab import EOS, PAD
from lath.training.objective import NO_TARGET, Examples, Losses, Totals, first_tokens, length_loss, token_weights


@dataclass(frozen=True)
class Packed:
    """Sentences end to end in one array of fixed size; what is left over at the end belongs to empty sentences."""

    tokens: Tensor
    """N."""
    positions: Tensor
    """N: the place of each token in its own sentence."""
    bounds: Tensor
    """R + 1, int32: sentence r is tokens[bounds[r]:bounds[r + 1]]; the last bound is N."""


@dataclass(frozen=True)
class LengthSlots:
    """Where the LENGTH tokens stand that CMLM and LAT put in front of each packed source sentence."""

    with_slots: Packed
    """Slots and tokens; tokens and positions of a slot are not read."""
    is_slot: Tensor
    """For each entry of `with_slots`, whether it is a slot."""
    slot_places: Tensor
    """R: where each sentence's slot is in `with_slots` (for an empty sentence, anywhere)."""
    token_places: Tensor
    """N: where each token is in `with_slots`."""


class PackedMask(NamedTuple):
    """Which queries of one packed array may attend to which keys of another: those of the same sentence."""

    key_spans: Tensor
    """2 x N: where the keys of each query's sentence begin and end."""
    query_spans: Tensor
    """2 x M: where the queries of each key's sentence do."""
    causal: bool

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention inside each sentence, N x H x D/H: by kernels where they run, else in plain quadratic form."""
        if HAS_TRITON and query.is_cuda:
            return attend_in_sentences(query, keys, values, self.key_spans, self.query_spans, self.causal)
        places = torch.arange(len(keys), device=keys.device)
        first, stop = self.key_spans
        allowed = (places >= first[:, None]) & (places < stop[:, None])
        if self.causal:
            allowed = allowed.tril()
        query, keys, values = query.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1)
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=allowed)
        # A sentence without keys has nothing to mix: its rows are all forbidden, and zero as by the kernels.
        return mixed.nan_to_num().transpose(0, 1)


def packed_mask(queries: Packed, keys: Packed, causal: bool = False) -> PackedMask:
    """The mask of two packed arrays with the same sentences; made once, it serves every layer."""
    key_spans = spans(queries.bounds, len(queries.tokens), keys.bounds)
    query_spans = key_spans if keys is queries else spans(keys.bounds, len(keys.tokens), queries.bounds)
    return PackedMask(key_spans, query_spans, causal)


def spans(bounds: Tensor, size: int, others: Tensor) -> Tensor:
    """For each of `size` tokens where its sentence begins and ends in another packed array: 2 x size.

    >>> spans(torch.tensor([0, 1, 3]), 3, torch.tensor([0, 4, 6])).tolist()
    [[0, 4, 4], [4, 6, 6]]
    """
    numbers = sentence_numbers(bounds, size)
    return torch.stack([others[numbers], others[numbers + 1]])


def sentence_numbers(bounds: Tensor, size: int) -> Tensor:
    """For each of `size` packed tokens the number of its sentence."""
    places = torch.arange(size, device=bounds.device, dtype=bounds.dtype)
    return torch.searchsorted(bounds, places, right=True) - 1


@dataclass(frozen=True)
class PackSizes:
    """The fixed sizes of packed arrays."""

    source: int
    """Source tokens, EOS included, LENGTH slots not."""
    target: int
    """Decoder positions."""
    sentences: int
    """Sentences, the empty ones that hold the leftover tokens included."""
    longest: int
    """Tokens of the longest sentence that can occur, with begin, end and slot."""


def make_bounds(lengths: Tensor, size: int, sentences: int, longest: int) -> Tensor:
    """Bounds of sentences of these lengths, and behind them of empty ones that share what is left of `size`.

    >>> make_bounds(torch.tensor([3, 2]), 12, 5, 4).tolist()
    [0, 3, 5, 9, 12, 12]
    """
    real = lengths.cumsum(0)
    spare = torch.arange(1, sentences - len(lengths) + 1, device=lengths.device) * longest + real[-1]
    return functional.pad(torch.cat([real, spare]).clamp(max=size), (1, 0)).to(torch.int32)


def pack_rows(rows: Tensor, lengths: Tensor, bounds: Tensor, size: int, fill: int) -> Tensor:
    """The first `lengths` entries of each row of a padded tensor, end to end, in an array of `size` filled with `fill`.

    Works without asking the device for a count: what does not belong anywhere, or no longer fits, is written to a
    place that is cut off.
    """
    width = rows.shape[1]
    places = torch.arange(width, device=rows.device)
    inside = places < lengths[:, None]
    goals = torch.where(inside, bounds[: len(rows), None].long() + places, size).clamp(max=size)
    packed = torch.full((size + 1, *rows.shape[2:]), fill, dtype=rows.dtype, device=rows.device)
    return packed.index_put((goals.flatten(),), rows.flatten(0, 1))[:size]


def unpack_rows(packed: Tensor, bounds: Tensor, rows: Tensor) -> Tensor:
    """Packed entries as rows again, in the shape of the padded tensor `rows`; on its padding stands anything."""
    count, width = rows.shape
    places = bounds[:count, None].long() + torch.arange(width, device=rows.device)
    return packed[places.clamp(max=len(packed) - 1)]


def pack_places(bounds: Tensor, size: int) -> Tensor:
    """The place of each packed token in its own sentence."""
    numbers = sentence_numbers(bounds, size).clamp(max=len(bounds) - 2)
    return torch.arange(size, device=bounds.device) - bounds[numbers]


# ---- examples ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackedExamples:
    """Examples end to end in arrays of fixed size. N decoder positions, K tokens a piece, R sentences."""

    source: Packed
    slots: LengthSlots | None
    """None for AT, which predicts no length."""
    decoder_input: Packed
    targets: Tensor
    """N x K."""
    groups: Tensor
    """N x K: MASKED, VISIBLE or NO_TARGET."""
    lengths: Tensor
    """R: the whole target's length; 0 for an empty sentence."""


def pack_examples(examples: Examples, sizes: PackSizes, kind: str) -> PackedExamples:
    """The same examples without padding, on the same device and without waiting for it."""
    source_lengths = (examples.source != PAD).sum(dim=1)
    target_lengths = (examples.decoder_input != PAD).sum(dim=1)
    bounds = make_bounds(target_lengths, sizes.target, sizes.sentences, sizes.longest)

    def packed(rows: Tensor, fill: int) -> Tensor:
        return pack_rows(rows, target_lengths, bounds, sizes.target, fill)

    decoder_input = Packed(packed(examples.decoder_input, EOS), pack_places(bounds, sizes.target), bounds)
    spare = sizes.sentences - len(examples.lengths)
    source_bounds = make_bounds(source_lengths, sizes.source, sizes.sentences, sizes.longest)
    source_tokens = pack_rows(examples.source, source_lengths, source_bounds, sizes.source, EOS)
    source = Packed(source_tokens, pack_places(source_bounds, sizes.source), source_bounds)
    return PackedExamples(
        source,
        None if kind == "AT" else _length_slots(source, sizes.sentences),
        decoder_input,
        packed(examples.targets, EOS),
        packed(examples.groups, NO_TARGET),
        functional.pad(examples.lengths, (0, spare)),
    )


def _length_slots(source: Packed, sentences: int) -> LengthSlots:
    """Every sentence, empty ones too, gets a slot in front: sentence r then starts r places later."""
    count, device = len(source.tokens), source.tokens.device
    wider = source.bounds + torch.arange(sentences + 1, device=device, dtype=torch.int32)
    size = count + sentences
    token_numbers = sentence_numbers(source.bounds, count).clamp(max=sentences - 1)
    token_places = torch.arange(count, device=device) + token_numbers + 1
    slot_places = wider[:-1].long()
    is_slot = torch.zeros(size, dtype=torch.bool, device=device).index_fill(0, slot_places, True)
    tokens = torch.full((size,), EOS, device=device).index_put((token_places,), source.tokens)
    positions = torch.zeros(size, dtype=torch.long, device=device).index_put((token_places,), source.positions)
    return LengthSlots(Packed(tokens, positions, wider), is_slot, slot_places, token_places)


# ---- the network on packed arrays -------------------------------------------------------------------------------


def packed_output_states(model: Model, examples: PackedExamples) -> tuple[Tensor, Tensor | None]:
    """Twin of `output_states`: N x K x D states whose logits predict the targets, and length log-probabilities."""
    body, source, target, slots = model.body, examples.source, examples.decoder_input, examples.slots
    lengths = None
    if isinstance(model, AT):
        encoded = body.encoder(
            body.dropout(body.embed_source(source.tokens, source.positions)), packed_mask(source, source)
        )
    else:
        assert slots is not None
        wider = slots.with_slots
        embedded = torch.where(
            slots.is_slot[:, None], model.length.token, body.embed_source(wider.tokens, wider.positions)
        )
        with_slots = body.encoder(body.dropout(embedded), packed_mask(wider, wider))
        encoded, lengths = with_slots[slots.token_places], model.length.predict(with_slots[slots.slot_places])
    states, _ = body.decoder(
        body.embed_target(target.tokens, target.positions),
        packed_mask(target, target, causal=isinstance(model, AT)),
        body.decoder.project_memory(encoded),
        packed_mask(target, source),
    )
    return model.local_states(states, examples.targets) if isinstance(model, LAT) else states.unsqueeze(-2), lengths


def packed_loss_share(
    model: Model, examples: PackedExamples, totals: Totals, objective: ObjectiveSettings, chunk_rows: int
) -> Losses:
    """What `loss_share` computes, on packed examples, with the logits of `chunk_rows` targets in memory at a time."""
    states, length_scores = packed_output_states(model, examples)
    weights = token_weights(examples.groups, totals, model.settings.kind, objective)
    token = chunked_cross_entropy(
        (states * model.output_scale).flatten(0, 1),
        model.body.output_table.weight,
        examples.targets.flatten(),
        weights.flatten(),
        objective.label_smoothing,
        chunk_rows,
    )
    if length_scores is None:
        return Losses(token, torch.zeros_like(token))
    return Losses(token, length_loss(length_scores, examples.lengths, totals, objective))


def packed_first_tokens(model: Model, examples: PackedExamples, chunk_rows: int) -> Tensor:
    """N: the likeliest first token of each position's piece. Twin of `first_tokens` on the plain network's states."""
    states, _ = packed_output_states(model, dataclasses.replace(examples, targets=examples.targets[:, :1]))
    chunks = [first_tokens(model, states[start : start + chunk_rows]) for start in range(0, len(states), chunk_rows)]
    return torch.cat(chunks)
