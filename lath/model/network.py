"""The whole network: attention, layers, Encoder, Decoder, and the three kinds AT, CMLM and LAT.

Follows section 2.1 and appendices B and C of the paper. The three kinds are built from the same parts:

    AT    Body, decoder causal, one token after the other through a key-value cache
    CMLM  Body + LengthPredictor, decoder sees both sides, every mask at once
    LAT   CMLM + LocalTranslator: an LSTM writes a piece of K tokens from each decoder state

Shapes in comments: B sentences, S source tokens, T target tokens, D width, H heads, V vocabulary.
Sentences come in one of two forms, and only attention knows the difference:

    padded  a B x T tensor, filled up on the right with PAD; padded keys are masked, so padding never changes a result
    packed  one array of N tokens, sentence behind sentence (packed.py): the same network without the padding
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from lath.config import NetworkSettings
from lath.engine.beam_attention import BeamMask, attend_few, beam_attention, few_queries, store
from lath.engine.packed import Packed, PackedMask, PackedSource, packed_attention, packed_mask
from lath.engine.pointwise import can_fuse, lstm_gates, residual_norm
from lath.engine.top_tokens import has_kernel, top_tokens_by_kernel
from lath.text.vocab import BOS, MASK, PAD, SOP

NORM_EPSILON = 1e-12
INITIAL_STD = 0.02
PIECE_LOGIT_SCALE = 8.0
"""Factor on the local translator's states before the output matrix. An LSTM's states lie in (-1, 1) and the table
starts at N(0, 0.02): without it all tokens would start almost equally likely, and early training would be slow."""


Mask = Tensor | PackedMask | BeamMask
"""Where attention is allowed: a boolean tensor over padded sentences, the bounds of packed ones, or a beam's past."""


class KeyValues(NamedTuple):
    """What one attention layer attends to: keys and values, each B x length x H x D/H, packed N x H x D/H."""

    keys: Tensor
    values: Tensor

    def followed_by(self, new: KeyValues, mask: Mask) -> KeyValues:
        """Earlier keys and values with new ones behind them; of a beam search they go into the cache itself."""
        if isinstance(mask, BeamMask):
            store(self.keys, new.keys, mask)
            store(self.values, new.values, mask)
            return self
        return KeyValues(torch.cat([self.keys, new.keys], dim=1), torch.cat([self.values, new.values], dim=1))


@dataclass
class Memory:
    """An encoded source, projected once for every decoder layer and used by every pass and step."""

    layers: list[KeyValues]
    mask: Tensor
    """B x 1 x 1 x S: true where there is a token; packed: the bounds of the sentences."""

    def select(self, rows: Tensor) -> Memory:
        """The (padded) memory of the given rows, in that order; rows may repeat."""
        return Memory([KeyValues(k[rows], v[rows]) for k, v in self.layers], self.mask[rows])


class Projection(nn.Linear):
    """A linear layer whose outputs can also be asked for in part."""

    def part(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Outputs `start` to `stop` alone."""
        return functional.linear(x, self.weight[start:stop], self.bias[start:stop])


class Table(nn.Embedding):
    """Token vectors; the target's are the output matrix as well."""

    def logits(self, states: Tensor) -> Tensor:
        """... x D states to ... x V logits."""
        return functional.linear(states, self.weight)

    def best_tokens(self, states: Tensor, size: int, forbidden: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """The log-probability and id of the likeliest token that may be written, for each state."""
        return best_tokens(self.logits(states), size, forbidden)


class Attention(nn.Module):
    """Multi-head attention; queries, keys and values come from one fused matrix."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.project = Projection(width, 3 * width)
        self.output = nn.Linear(width, width)

    def _split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        return x.view(*x.shape[:-1], parts, self.heads, self.width // self.heads).unbind(-3)

    def self_project(self, x: Tensor) -> tuple[Tensor, KeyValues]:
        """Queries, and keys with values, of one sequence."""
        query, key, value = self._split(self.project(x), 3)
        return query, KeyValues(key, value)

    def query(self, x: Tensor) -> Tensor:
        """Queries alone."""
        return self._split(self.project.part(x, 0, self.width), 1)[0]

    def key_values(self, x: Tensor) -> KeyValues:
        """Keys and values alone."""
        return KeyValues(*self._split(self.project.part(x, self.width, 3 * self.width), 2))

    def forward(self, query: Tensor, attended: KeyValues, mask: Mask) -> Tensor:
        """Mix the values by the queries' affinity to the keys where `mask` allows it."""
        if isinstance(mask, PackedMask):
            mixed = packed_attention(query, attended.keys, attended.values, mask)
        elif isinstance(mask, BeamMask):
            mixed = beam_attention(query, attended.keys, attended.values, mask)
        elif few_queries(query, mask):
            mixed = attend_few(query, attended.keys, attended.values, mask)
        else:
            query, keys, values = query.transpose(1, 2), attended.keys.transpose(1, 2), attended.values.transpose(1, 2)
            mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask).transpose(1, 2)
        output: Tensor = self.output(mixed.flatten(-2))
        return output


class FeedForward(nn.Module):
    """Two linear layers with an exact GELU between them."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.widen = nn.Linear(width, inner)
        self.narrow = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """Position by position."""
        narrowed: Tensor = self.narrow(functional.gelu(self.widen(x)))
        return narrowed


class Residual(nn.Module):
    """Dropout, add and layer norm around a sublayer (post-norm)."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(settings.width, eps=NORM_EPSILON)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor, added: Tensor) -> Tensor:
        """The normalised sum of the stream and what a sublayer adds to it."""
        if not self.training and can_fuse(x):
            return residual_norm(x, added, self.norm.weight, self.norm.bias, NORM_EPSILON)
        # Under autocast the norm answers in float32; the stream stays as narrow as what is added to it.
        normalised: Tensor = self.norm(x + self.dropout(added)).to(added.dtype)
        return normalised


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.attention = Attention(settings.width, settings.heads)
        self.attention_residual = Residual(settings)
        self.feedforward = FeedForward(settings.width, settings.feedforward)
        self.feedforward_residual = Residual(settings)

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        """x: B x S x D; mask: B x 1 x 1 x S."""
        query, attended = self.attention.self_project(x)
        x = self.attention_residual(x, self.attention(query, attended, mask))
        x = self.feedforward_residual(x, self.feedforward(x))
        return x


class DecoderLayer(nn.Module):
    """Self-attention, attention to the source, and feed-forward."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.attention = Attention(settings.width, settings.heads)
        self.attention_residual = Residual(settings)
        self.cross = Attention(settings.width, settings.heads)
        self.cross_residual = Residual(settings)
        self.feedforward = FeedForward(settings.width, settings.feedforward)
        self.feedforward_residual = Residual(settings)

    def forward(
        self, x: Tensor, mask: Mask, memory: KeyValues, memory_mask: Mask, past: KeyValues | None
    ) -> tuple[Tensor, KeyValues]:
        """x: B x T x D. `past` holds the keys and values of earlier tokens, which come in front of x's own."""
        query, attended = self.attention.self_project(x)
        if past is not None:
            attended = past.followed_by(attended, mask)
        x = self.attention_residual(x, self.attention(query, attended, mask))
        x = self.cross_residual(x, self.cross(self.cross.query(x), memory, memory_mask))
        return self.feedforward_residual(x, self.feedforward(x)), attended


class Encoder(nn.Module):
    """A stack of encoder layers."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.encoder_layers))

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        """Embedded source to contextual states."""
        mask = additive(mask, x)
        for layer in self.layers:
            x = layer(x, mask)
        return x


class Decoder(nn.Module):
    """A stack of decoder layers."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(settings) for _ in range(settings.decoder_layers))

    def project_memory(self, encoded: Tensor, mask: Tensor) -> Memory:
        """Each layer's keys and values of the source, made once a sentence."""
        layers = [cast(DecoderLayer, layer) for layer in self.layers]
        return Memory([layer.cross.key_values(encoded) for layer in layers], mask)

    def forward(
        self, x: Tensor, mask: Mask, memory: Memory, past: list[KeyValues] | None = None
    ) -> tuple[Tensor, list[KeyValues]]:
        """Embedded target to states, and the keys and values a later call may take as its past."""
        attended: list[KeyValues] = []
        mask, memory_mask = additive(mask, x), additive(memory.mask, x)
        if isinstance(mask, PackedMask):
            memory_mask = packed_mask(mask.bounds, len(x), memory.mask, len(memory.layers[0].keys), causal=False)
        for index, layer in enumerate(self.layers):
            layer_past = None if past is None else past[index]
            x, layer_attended = layer(x, mask, memory.layers[index], memory_mask, layer_past)
            attended.append(layer_attended)
        return x, attended


class Body(nn.Module):
    """What the three kinds share: token and position tables, encoder, decoder and the tied output matrix."""

    def __init__(self, settings: NetworkSettings, source_size: int, target_size: int, joint: bool) -> None:
        super().__init__()
        assert not joint or source_size == target_size
        self.target_size = target_size
        # One table serves source, target and output when the vocabulary is joint; else target and output share.
        sizes = [target_size] if joint else [source_size, target_size]
        self.tables = nn.ModuleList(Table(padded_size(size), settings.width) for size in sizes)
        self.source_positions = nn.Embedding(settings.max_positions, settings.width)
        self.target_positions = nn.Embedding(settings.max_positions, settings.width)
        self.dropout = nn.Dropout(settings.dropout)
        self.encoder = Encoder(settings)
        self.decoder = Decoder(settings)

    def embed_source(self, source: Tensor | Packed) -> Tensor:
        """B x S tokens to B x S x D, before dropout."""
        tokens, positions = _tokens_and_positions(source)
        embedded: Tensor = self.tables[0](tokens) + self.source_positions(positions)
        return embedded

    def embed_target(self, target: Tensor | Packed, start: int = 0) -> Tensor:
        """B x T tokens to B x T x D; `start` is the position of the first of padded ones."""
        tokens, positions = _tokens_and_positions(target, start)
        embedded: Tensor = self.dropout(self.tables[-1](tokens) + self.target_positions(positions))
        return embedded

    def embed_step(self, tokens: Tensor, position: Tensor) -> Tensor:
        """B x k tokens that all stand at one position (a tensor of 1) to B x k x D."""
        embedded: Tensor = self.tables[-1](tokens) + self.target_positions(position)
        return embedded

    def embed_local(self, tokens: Tensor) -> Tensor:
        """Target tokens without positions, for the local translator."""
        embedded: Tensor = self.dropout(self.tables[-1](tokens))
        return embedded

    def decode_both_sides(self, target: Tensor | Packed, memory: Memory) -> Tensor:
        """B x T tokens to B x T x D states, each of which sees all the others."""
        states: Tensor = self.decoder(self.embed_target(target), key_mask(target), memory)[0]
        return states

    def logits(self, states: Tensor) -> Tensor:
        """... x D states to ... x V logits, by the target's own table."""
        return cast(Table, self.tables[-1]).logits(states)

    def best_tokens(self, states: Tensor, forbidden: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """The log-probability and id of the likeliest token that may be written, for each of ... x D states."""
        return cast(Table, self.tables[-1]).best_tokens(states, self.target_size, forbidden)

    @property
    def output_matrix(self) -> Tensor:
        """The V x D matrix of the output layer."""
        table = self.tables[-1]
        assert isinstance(table, nn.Embedding)
        return table.weight


def padded_size(size: int) -> int:
    """Table rows for a vocabulary: a multiple of 8, which matrix units like."""
    return (size + 7) // 8 * 8


def _tokens_and_positions(tokens: Tensor | Packed, start: int = 0) -> tuple[Tensor, Tensor]:
    if isinstance(tokens, Packed):
        return tokens.tokens, tokens.positions
    return tokens, torch.arange(start, start + tokens.shape[1], device=tokens.device)


def key_mask(tokens: Tensor | Packed) -> Mask:
    """Every token of a sentence sees all of it: B x 1 x 1 x length, true where there is a token, or bounds."""
    if isinstance(tokens, Packed):
        count = len(tokens.tokens)
        return packed_mask(tokens.bounds, count, tokens.bounds, count, causal=False)
    return (tokens != PAD)[:, None, None, :]


def additive(mask: Mask, x: Tensor) -> Mask:
    """A boolean mask as what is added to attention's scores; on a GPU each layer would make this of it anew."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill_(~mask, -torch.inf)


def memory_mask(source: Tensor | Packed | PackedSource) -> Tensor:
    """What `Memory` keeps of a source's mask."""
    return (source != PAD)[:, None, None, :] if isinstance(source, Tensor) else source.bounds


class AT(nn.Module):
    """The autoregressive transformer: baseline, and teacher of the other two.

    # Departure: the paper's AT is a vanilla transformer; this one shares its siblings' learnt positions and GELU, so
    # that a comparison of the three kinds compares the kinds alone (docs/adr/0005-one-family.md).
    """

    piece_length = 1

    def __init__(self, settings: NetworkSettings, source_size: int, target_size: int, joint: bool) -> None:
        super().__init__()
        self.settings = settings
        self.body = Body(settings, source_size, target_size, joint)

    def encode(self, source: Tensor | Packed) -> Memory:
        """B x S source tokens, each sentence ending in EOS."""
        encoded = self.body.encoder(self.body.dropout(self.body.embed_source(source)), key_mask(source))
        return self.body.decoder.project_memory(encoded, memory_mask(source))

    def decode(
        self, target: Tensor | Packed, memory: Memory, past: list[KeyValues] | None = None
    ) -> tuple[Tensor, list[KeyValues]]:
        """States of B x T target tokens that follow `past`; state i has seen tokens 0 to i."""
        start = 0 if past is None else past[0].keys.shape[1]
        mask: Mask
        if isinstance(target, Packed):
            count = len(target.tokens)
            mask = packed_mask(target.bounds, count, target.bounds, count, causal=True)
        else:
            length = target.shape[1]
            mask = torch.ones(length, start + length, dtype=torch.bool, device=target.device).tril(start)
        states, attended = self.body.decoder(self.body.embed_target(target, start), mask, memory, past)
        return states, attended

    def decode_step(self, tokens: Tensor, memory: Memory, cache: list[KeyValues], mask: BeamMask) -> Tensor:
        """States of the newest tokens of B x k hypotheses, whose past lies in `cache` (B x L x k x H x D/H)."""
        states: Tensor = self.body.decoder(self.body.embed_step(tokens, mask.step), mask, memory, cache)[0]
        return states

    def output_states(
        self, source: Tensor | Packed, decoder_input: Tensor | Packed, targets: Tensor
    ) -> tuple[Tensor, None]:
        """Training: B x T x 1 x D states whose logits predict `targets` (B x T x 1)."""
        states, _ = self.decode(decoder_input, self.encode(source))
        return states.unsqueeze(-2), None

    def before_output(self, states: Tensor) -> Tensor:
        """Output states as the output matrix takes them."""
        return states

    def logits(self, states: Tensor) -> Tensor:
        """Token logits of output states."""
        return self.body.logits(self.before_output(states))


class LengthPredictor(nn.Module):
    """The LENGTH token in front of the source, and target lengths read off its encoding.

    Length classes count BOS and EOS. Row 0 of the table is the LENGTH token itself and never a length.
    """

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.table = nn.Embedding(settings.max_positions, settings.width)

    def encode(self, body: Body, source: Tensor | PackedSource) -> tuple[Memory, Tensor]:
        """The encoded source without the LENGTH slots, and B x max_positions log-probabilities of the length."""
        if isinstance(source, PackedSource):
            slots = source.with_slots
            token = self.table.weight[0].expand(len(slots.tokens), -1)
            embedded = torch.where(source.is_slot[:, None], token, body.embed_source(slots))
            encoded = body.encoder(body.dropout(embedded), key_mask(slots))
            at_slots, memory = encoded[source.slot_places], encoded[source.token_places]
            visible = source.bounds
        else:
            batch = source.shape[0]
            token = self.table.weight[0].expand(batch, 1, -1)
            embedded = torch.cat([token, body.embed_source(source)], dim=1)
            mask = memory_mask(source)
            slot = mask.new_ones(batch, 1, 1, 1)
            encoded = body.encoder(body.dropout(embedded), torch.cat([slot, mask], dim=3))
            # The slot stays where it is, unseen by the decoder: to cut it off would be to copy all the rest.
            at_slots, memory, visible = encoded[:, 0], encoded, torch.cat([~slot, mask], dim=3)
        with torch.autocast(at_slots.device.type, enabled=False):
            logits = functional.linear(at_slots.float(), self.table.weight.float())
        logits = torch.cat([torch.full_like(logits[:, :1], -torch.inf), logits[:, 1:]], dim=1)
        return body.decoder.project_memory(memory, visible), logits.log_softmax(dim=1)


class CMLM(nn.Module):
    """The conditional masked language model: fills every mask of the target at once."""

    piece_length = 1

    def __init__(self, settings: NetworkSettings, source_size: int, target_size: int, joint: bool) -> None:
        super().__init__()
        self.settings = settings
        self.body = Body(settings, source_size, target_size, joint)
        self.length = LengthPredictor(settings)

    def encode(self, source: Tensor | PackedSource) -> tuple[Memory, Tensor]:
        """The encoded source, and log-probabilities of the target length."""
        return self.length.encode(self.body, source)

    def decode(self, target: Tensor | Packed, memory: Memory) -> Tensor:
        """States of B x T partly masked target tokens; each sees all the others."""
        return self.body.decode_both_sides(target, memory)

    def output_states(
        self, source: Tensor | PackedSource, decoder_input: Tensor | Packed, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Training: B x T x 1 x D states whose logits predict `targets`, and length log-probabilities."""
        memory, lengths = self.encode(source)
        return self.decode(decoder_input, memory).unsqueeze(-2), lengths

    def before_output(self, states: Tensor) -> Tensor:
        """Output states as the output matrix takes them."""
        return states

    def logits(self, states: Tensor) -> Tensor:
        """Token logits of output states."""
        return self.body.logits(self.before_output(states))


class LocalTranslator(nn.Module):
    """One LSTM cell that writes a piece from a decoder state (section 2.1).

    The state sets h and c and is not fed again; each step reads the token before it, the first reads <sop>.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.initial_hidden = nn.Linear(width, width, bias=False)
        self.initial_cell = nn.Linear(width, width, bias=False)
        self.input = nn.Linear(width, 4 * width)
        self.recurrent = nn.Linear(width, 4 * width)

    def start(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """h and c before the first step."""
        return self.initial_hidden(states), self.initial_cell(states)

    def forward(self, embedded: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the cell."""
        if can_fuse(cell):
            return lstm_gates(self.input(embedded), self.recurrent(hidden), cell)
        gates = self.input(embedded) + self.recurrent(hidden)
        enter, forget, candidate, leave = gates.chunk(4, dim=-1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
        return leave.sigmoid() * cell.tanh(), cell


class Pieces(NamedTuple):
    """A piece for each decoder position: B x T x K tokens with log-probabilities."""

    tokens: Tensor
    scores: Tensor


class LAT(nn.Module):
    """CMLM with a local translator: each decoder state becomes a piece of K tokens."""

    def __init__(self, settings: NetworkSettings, source_size: int, target_size: int, joint: bool) -> None:
        super().__init__()
        self.settings = settings
        self.piece_length = settings.piece_length
        self.body = Body(settings, source_size, target_size, joint)
        self.length = LengthPredictor(settings)
        self.local = LocalTranslator(settings.width)

    def encode(self, source: Tensor | PackedSource) -> tuple[Memory, Tensor]:
        """The encoded source, and log-probabilities of the target length."""
        return self.length.encode(self.body, source)

    def decode(self, target: Tensor | Packed, memory: Memory) -> Tensor:
        """States of B x T partly masked target tokens; each sees all the others."""
        return self.body.decode_both_sides(target, memory)

    def local_states(self, states: Tensor, gold: Tensor) -> Tensor:
        """Teacher forcing: the B x T x K x D states that predict `gold` (B x T x K), each from the gold before it."""
        return torch.stack(self._write(states, gold)[0], dim=-2)

    def pieces(self, states: Tensor) -> Pieces:
        """Greedy pieces: each step reads the token it chose before; PAD, MASK and <sop> are never chosen."""
        _, tokens, scores = self._write(states, None)
        return Pieces(torch.stack(tokens, dim=-1), torch.stack(scores, dim=-1))

    def _write(self, states: Tensor, gold: Tensor | None) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """The K states of each position, and where no tokens are given those chosen, with log-probabilities."""
        hidden, cell = self.local.start(states)
        previous = torch.full(states.shape[:-1], SOP, device=states.device)
        outputs, tokens, scores = [], [], []
        for step in range(self.piece_length):
            hidden, cell = self.local(self.body.embed_local(previous), hidden, cell)
            outputs.append(hidden)
            if gold is not None:
                previous = gold[..., step]
                continue
            score, previous = self.body.best_tokens(self.before_output(hidden), NEVER_WRITTEN)
            tokens.append(previous)
            scores.append(score)
        return outputs, tokens, scores

    def output_states(
        self, source: Tensor | PackedSource, decoder_input: Tensor | Packed, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Training: B x T x K x D states whose logits predict `targets`, and length log-probabilities."""
        memory, lengths = self.encode(source)
        return self.local_states(self.decode(decoder_input, memory), targets), lengths

    def before_output(self, states: Tensor) -> Tensor:
        """Output states as the output matrix takes them."""
        # Departure: the paper has no such factor; it only changes the speed of early training.
        return states * PIECE_LOGIT_SCALE

    def logits(self, states: Tensor) -> Tensor:
        """Token logits of output states."""
        return self.body.logits(self.before_output(states))


Model = AT | CMLM | LAT
KINDS: dict[str, type[AT] | type[CMLM] | type[LAT]] = {"AT": AT, "CMLM": CMLM, "LAT": LAT}


# Departure: the authors' program may write these; a PAD inside a sentence would shift every later position.
NEVER_WRITTEN = (PAD, MASK, SOP)
NEVER_WRITTEN_AFTER_BEGIN = (*NEVER_WRITTEN, BOS)


def allowed_logits(logits: Tensor, size: int, forbidden: tuple[int, ...]) -> Tensor:
    """float32 logits in which no forbidden token, and no row beyond the vocabulary's size, can win."""
    ids = torch.arange(logits.shape[-1], device=logits.device)
    out = ids >= size
    for id in forbidden:
        out = out | (ids == id)
    return logits.float().masked_fill(out, -torch.inf)


def top_tokens(logits: Tensor, size: int, forbidden: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
    """The log-probabilities and ids of the `count` likeliest tokens that may be written, best first.

    The probabilities are those of the whole softmax: what is forbidden cannot win, but keeps its share.
    """
    if has_kernel(logits, forbidden):
        return top_tokens_by_kernel(logits, size, forbidden, min(count, size))
    best = allowed_logits(logits, size, forbidden).topk(min(count, size), dim=-1)
    return best.values - logits.float().logsumexp(dim=-1, keepdim=True), best.indices


def best_tokens(logits: Tensor, size: int, forbidden: tuple[int, ...] = NEVER_WRITTEN) -> tuple[Tensor, Tensor]:
    """The log-probability and id of the likeliest token that may be written."""
    if has_kernel(logits, forbidden):
        values, ids = top_tokens_by_kernel(logits, size, forbidden, 1)
        return values[..., 0], ids[..., 0]
    best = allowed_logits(logits, size, forbidden).max(dim=-1)
    return best.values - logits.float().logsumexp(dim=-1), best.indices


def build_model(
    settings: NetworkSettings, source_size: int, target_size: int, joint: bool, generator: torch.Generator
) -> Model:
    """A freshly initialised model on the CPU; the sizes are those of the vocabularies."""
    model = KINDS[settings.kind](settings, source_size, target_size, joint)
    initialise(model, generator)
    return model


def initialise(model: Model, generator: torch.Generator) -> None:
    """Appendix B: N(0, 0.02), zero biases, unit layer norms.

    # Departure: as in the authors' program, the fused attention input keeps Xavier-uniform, and the LSTM keeps
    # uniform(-1/sqrt(D), 1/sqrt(D)) for weights and biases.
    """
    bound = model.settings.width**-0.5
    for name, parameter in model.named_parameters():
        owner = name.split(".")
        if owner[0] == "local" and owner[1] in ("input", "recurrent"):
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
        elif owner[-2] == "project" and owner[-1] == "weight":
            nn.init.xavier_uniform_(parameter, generator=generator)
        elif "norm" in owner:
            nn.init.constant_(parameter, 1.0 if owner[-1] == "weight" else 0.0)
        elif owner[-1] == "bias":
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=INITIAL_STD, generator=generator)


def count_parameters(model: Model) -> int:
    """Trainable numbers in the model."""
    return sum(parameter.numel() for parameter in model.parameters())
