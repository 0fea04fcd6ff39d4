"""The whole network, plain: attention, layers, encoder, decoder, and the three kinds AT, CMLM and LAT.

Section 2.1 and appendices B and C of the paper. The three kinds share most of their modules:

    AT    Body; a causal decoder writes one token after the other
    CMLM  Body + LengthPredictor; the decoder sees both sides and fills every mask at once
    LAT   CMLM + LocalTranslator; an LSTM writes a piece of K tokens from each decoder state

This file runs as it stands on every device (`--engine plain`) and is the oracle of every faster version. An engine
changes nothing here: it replaces modules of a loaded model (lath/engine) or brings masks of its own, since a mask
knows how to attend.

Shapes in comments: B sentences, S source tokens, T target tokens, D width, H heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from lath.config import NetworkSettings
from lath.text.vocab import BOS, MASK, PAD, SOP

NORM_EPSILON = 1e-12
INITIAL_STD = 0.02
PIECE_LOGIT_SCALE = 8.0
"""Factor on the local translator's states before the output matrix. An LSTM's states lie in (-1, 1) and the table
starts at N(0, 0.02): without the factor all tokens start almost equally likely, and early training is slow."""


# ---- masks and what they attend to ------------------------------------------------------------------------------


class Mask(Protocol):
    """Which queries may see which keys."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Mix the values by the queries' affinity to the keys they may see; all are ... x H x D/H."""


class PaddedMask(NamedTuple):
    """A mask over padded sentences, B x length x H x D/H each."""

    bias: Tensor
    """Added to attention's scores: 0 where a query may look, -inf elsewhere."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """B x T queries, B x S keys and values."""
        query, keys, values = query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        return functional.scaled_dot_product_attention(query, keys, values, attn_mask=self.bias).transpose(1, 2)


def padded_mask(visible: Tensor, like: Tensor) -> PaddedMask:
    """The mask of a boolean tensor that broadcasts to B x H x T x S, in the type of `like`.

    One mask serves every layer; attention would otherwise convert the booleans in each.
    """
    bias = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
    return PaddedMask(bias.masked_fill_(~visible, -torch.inf))


def sentence_mask(queries: Tensor, keys: Tensor, like: Tensor) -> PaddedMask:
    """Every query of a sentence sees all its keys: B x T and B x S booleans, true where there is a token.

    Padded queries compute something that nobody reads.
    """
    return padded_mask(keys[:, None, None, :], like)


class KeyValues(NamedTuple):
    """What one attention layer attends to: keys and values, each B x length x H x D/H."""

    keys: Tensor
    values: Tensor

    def append(self, new: KeyValues) -> KeyValues:
        """These keys and values with new ones behind them."""
        return KeyValues(torch.cat([self.keys, new.keys], dim=1), torch.cat([self.values, new.values], dim=1))


class Past(Protocol):
    """Keys and values of earlier tokens: `KeyValues`, or an engine's cache that never moves."""

    def append(self, new: KeyValues) -> KeyValues:
        """All keys and values, the new ones included."""


@dataclass
class Memory:
    """An encoded source, projected once for every decoder layer and used by every pass and step."""

    layers: list[KeyValues]
    visible: Tensor
    """B x S: true where the decoder may look."""

    def select(self, rows: Tensor) -> Memory:
        """The memory of the given rows, in that order; rows may repeat."""
        return Memory([KeyValues(k[rows], v[rows]) for k, v in self.layers], self.visible[rows])


# ---- layers -----------------------------------------------------------------------------------------------------


class Projection(nn.Linear):
    """A linear layer that can also compute only some of its outputs."""

    def outputs(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Outputs `start` to `stop`."""
        return functional.linear(x, self.weight[start:stop], self.bias[start:stop])


class Table(nn.Embedding):
    """Token vectors; the target's table is the output matrix as well."""

    def logits(self, states: Tensor) -> Tensor:
        """... x D states to ... x V logits."""
        return functional.linear(states, self.weight)

    def best_tokens(self, states: Tensor, size: int, forbidden: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """As the function `best_tokens`, from states."""
        return best_tokens(self.logits(states), size, forbidden)

    def top_tokens(self, states: Tensor, size: int, forbidden: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
        """As the function `top_tokens`, from states."""
        return top_tokens(self.logits(states), size, forbidden, count)


class Attention(nn.Module):
    """Multi-head attention; queries, keys and values come from one matrix."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.project = Projection(width, 3 * width)
        self.output = nn.Linear(width, width)

    def _split(self, x: Tensor, count: int) -> tuple[Tensor, ...]:
        """... x (count D) as `count` tensors of ... x H x D/H."""
        return x.view(*x.shape[:-1], count, self.heads, self.width // self.heads).unbind(-3)

    def self_project(self, x: Tensor) -> tuple[Tensor, KeyValues]:
        """Queries, keys and values of one sequence."""
        query, key, value = self._split(self.project(x), 3)
        return query, KeyValues(key, value)

    def query(self, x: Tensor) -> Tensor:
        """Queries alone."""
        return self._split(self.project.outputs(x, 0, self.width), 1)[0]

    def key_values(self, x: Tensor) -> KeyValues:
        """Keys and values alone."""
        return KeyValues(*self._split(self.project.outputs(x, self.width, 3 * self.width), 2))

    def forward(self, query: Tensor, attended: KeyValues, mask: Mask) -> Tensor:
        """Attend as the mask does, then mix the heads."""
        mixed = mask.attend(query, attended.keys, attended.values)
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
        """The normalised sum of the stream and a sublayer's output."""
        # Under autocast the norm returns float32; the stream stays as narrow as what is added to it.
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
        """x: B x S x D."""
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
        self, x: Tensor, mask: Mask, memory: KeyValues, memory_mask: Mask, past: Past | None
    ) -> tuple[Tensor, KeyValues]:
        """x: B x T x D. The keys and values of `past` come in front of x's own."""
        query, attended = self.attention.self_project(x)
        if past is not None:
            attended = past.append(attended)
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
        for layer in self.layers:
            x = layer(x, mask)
        return x


class Decoder(nn.Module):
    """A stack of decoder layers."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(settings) for _ in range(settings.decoder_layers))

    def project_memory(self, encoded: Tensor) -> list[KeyValues]:
        """Each layer's keys and values of the source, computed once per sentence."""
        return [cast(DecoderLayer, layer).cross.key_values(encoded) for layer in self.layers]

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        memory: Sequence[KeyValues],
        memory_mask: Mask,
        past: Sequence[Past] | None = None,
    ) -> tuple[Tensor, list[KeyValues]]:
        """Embedded target to states, and the keys and values that a later call may take as its past."""
        attended: list[KeyValues] = []
        for index, layer in enumerate(self.layers):
            x, layer_attended = layer(x, mask, memory[index], memory_mask, None if past is None else past[index])
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
        self.make_mask: Callable[[Tensor, Tensor, Tensor], Mask] = sentence_mask
        """An engine may bring masks that attend faster."""

    def embed_source(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Tokens and their positions to vectors, before dropout."""
        embedded: Tensor = self.tables[0](tokens) + self.source_positions(positions)
        return embedded

    def embed_target(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Tokens and their positions to vectors."""
        embedded: Tensor = self.dropout(self.tables[-1](tokens) + self.target_positions(positions))
        return embedded

    def embed_local(self, tokens: Tensor) -> Tensor:
        """Target tokens without positions, for the local translator."""
        embedded: Tensor = self.dropout(self.tables[-1](tokens))
        return embedded

    def decode_both_sides(self, target: Tensor, memory: Memory) -> Tensor:
        """B x T tokens to B x T x D states, each of which sees all tokens of its sentence."""
        there, x = target != PAD, self.embed_target(target, places(target))
        mask, memory_mask = self.make_mask(there, there, x), self.make_mask(there, memory.visible, x)
        states: Tensor = self.decoder(x, mask, memory.layers, memory_mask)[0]
        return states

    def logits(self, states: Tensor) -> Tensor:
        """... x D states to ... x V logits."""
        return self.output_table.logits(states)

    def best_tokens(self, states: Tensor, forbidden: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """The log-probability and id of the likeliest token that may be written, for each of ... x D states."""
        return self.output_table.best_tokens(states, self.target_size, forbidden)

    def top_tokens(self, states: Tensor, forbidden: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities and ids of the `count` likeliest tokens that may be written, best first."""
        return self.output_table.top_tokens(states, self.target_size, forbidden, count)

    @property
    def output_table(self) -> Table:
        """The target's table; its weight is the V x D matrix of the output layer."""
        return cast(Table, self.tables[-1])


def padded_size(size: int) -> int:
    """Table rows for a vocabulary: a multiple of 8, which matrix units like."""
    return (size + 7) // 8 * 8


def places(tokens: Tensor) -> Tensor:
    """The positions of B x T tokens that start a sentence."""
    return torch.arange(tokens.shape[1], device=tokens.device)


# ---- the three kinds --------------------------------------------------------------------------------------------


class AT(nn.Module):
    """The autoregressive transformer: baseline, and teacher of the other two.

    # Departure: the paper's AT is a vanilla transformer; this one shares its siblings' learnt positions and GELU, so
    # that a comparison of the three kinds compares the kinds alone (docs/adr/0005-one-family.md).
    """

    piece_length, output_scale = 1, 1.0

    def __init__(self, settings: NetworkSettings, source_size: int, target_size: int, joint: bool) -> None:
        super().__init__()
        self.settings = settings
        self.body = Body(settings, source_size, target_size, joint)

    def encode(self, source: Tensor) -> Memory:
        """B x S source tokens, each sentence ending in EOS."""
        visible = source != PAD
        embedded = self.body.embed_source(source, places(source))
        encoded = self.body.encoder(self.body.dropout(embedded), self.body.make_mask(visible, visible, embedded))
        return Memory(self.body.decoder.project_memory(encoded), visible)

    def decode(
        self, target: Tensor, memory: Memory, past: list[KeyValues] | None = None
    ) -> tuple[Tensor, list[KeyValues]]:
        """States of B x T target tokens that follow `past`; state i has seen tokens 0 to i."""
        start, length = 0 if past is None else past[0].keys.shape[1], target.shape[1]
        x = self.body.embed_target(target, start + places(target))
        visible = torch.ones(length, start + length, dtype=torch.bool, device=target.device).tril(start)
        memory_mask = self.body.make_mask(target != PAD, memory.visible, x)
        states, attended = self.body.decoder(x, padded_mask(visible, x), memory.layers, memory_mask, past)
        return states, attended

    def output_states(self, source: Tensor, decoder_input: Tensor, targets: Tensor) -> tuple[Tensor, None]:
        """Training: B x T x 1 x D states whose logits predict `targets` (B x T x 1)."""
        states, _ = self.decode(decoder_input, self.encode(source))
        return states.unsqueeze(-2), None


class LengthPredictor(nn.Module):
    """The LENGTH token in front of the source, and target lengths read off its encoding.

    Length classes count BOS and EOS. Row 0 of the table is the LENGTH token itself and never a length.
    """

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.table = nn.Embedding(settings.max_positions, settings.width)

    @property
    def token(self) -> Tensor:
        """The vector of the LENGTH token, which has no position."""
        return self.table.weight[0]

    def encode(self, body: Body, source: Tensor) -> tuple[Memory, Tensor]:
        """The encoded source, and B x max_positions log-probabilities of the target length."""
        batch, visible = source.shape[0], source != PAD
        embedded = torch.cat([self.token.expand(batch, 1, -1), body.embed_source(source, places(source))], dim=1)
        slot = visible.new_ones(batch, 1)
        there = torch.cat([slot, visible], dim=1)
        encoded = body.encoder(body.dropout(embedded), body.make_mask(there, there, embedded))
        # The slot stays in the memory, hidden from the decoder: cutting it off would copy all the rest.
        memory = Memory(body.decoder.project_memory(encoded), torch.cat([~slot, visible], dim=1))
        return memory, self.predict(encoded[:, 0])

    def predict(self, at_slots: Tensor) -> Tensor:
        """Log-probabilities of the length from the encoded LENGTH tokens, B x D."""
        with torch.autocast(at_slots.device.type, enabled=False):
            logits = functional.linear(at_slots.float(), self.table.weight.float())
        return torch.cat([torch.full_like(logits[:, :1], -torch.inf), logits[:, 1:]], dim=1).log_softmax(dim=1)


class CMLM(nn.Module):
    """The conditional masked language model: fills every mask of the target at once."""

    piece_length, output_scale = 1, 1.0

    def __init__(self, settings: NetworkSettings, source_size: int, target_size: int, joint: bool) -> None:
        super().__init__()
        self.settings = settings
        self.body = Body(settings, source_size, target_size, joint)
        self.length = LengthPredictor(settings)

    def encode(self, source: Tensor) -> tuple[Memory, Tensor]:
        """The encoded source, and log-probabilities of the target length."""
        return self.length.encode(self.body, source)

    def decode(self, target: Tensor, memory: Memory) -> Tensor:
        """States of B x T partly masked target tokens; each sees all the others."""
        return self.body.decode_both_sides(target, memory)

    def output_states(self, source: Tensor, decoder_input: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Training: B x T x 1 x D states whose logits predict `targets`, and length log-probabilities."""
        memory, lengths = self.encode(source)
        return self.decode(decoder_input, memory).unsqueeze(-2), lengths


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

    output_scale = PIECE_LOGIT_SCALE  # Departure: the paper has no such factor; it only speeds up early training.

    def __init__(self, settings: NetworkSettings, source_size: int, target_size: int, joint: bool) -> None:
        super().__init__()
        self.settings = settings
        self.piece_length = settings.piece_length
        self.body = Body(settings, source_size, target_size, joint)
        self.length = LengthPredictor(settings)
        self.local = LocalTranslator(settings.width)

    def encode(self, source: Tensor) -> tuple[Memory, Tensor]:
        """The encoded source, and log-probabilities of the target length."""
        return self.length.encode(self.body, source)

    def decode(self, target: Tensor, memory: Memory) -> Tensor:
        """States of B x T partly masked target tokens; each sees all the others."""
        return self.body.decode_both_sides(target, memory)

    def local_states(self, states: Tensor, gold: Tensor) -> Tensor:
        """Teacher forcing: the B x T x K x D states that predict `gold` (B x T x K), each from the gold before it."""
        hidden, cell = self.local.start(states)
        previous, written = self._first_tokens(states), []
        for step in range(gold.shape[-1]):
            hidden, cell = self.local(self.body.embed_local(previous), hidden, cell)
            written.append(hidden)
            previous = gold[..., step]
        return torch.stack(written, dim=-2)

    def pieces(self, states: Tensor) -> Pieces:
        """Greedy pieces: each step reads the token chosen before; PAD, MASK and <sop> are never chosen."""
        hidden, cell = self.local.start(states)
        previous, tokens, scores = self._first_tokens(states), [], []
        for _ in range(self.piece_length):
            hidden, cell = self.local(self.body.embed_local(previous), hidden, cell)
            score, previous = self.body.best_tokens(hidden * self.output_scale, NEVER_WRITTEN)
            tokens.append(previous)
            scores.append(score)
        return Pieces(torch.stack(tokens, dim=-1), torch.stack(scores, dim=-1))

    def _first_tokens(self, states: Tensor) -> Tensor:
        return torch.full(states.shape[:-1], SOP, device=states.device)

    def output_states(self, source: Tensor, decoder_input: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Training: B x T x K x D states whose logits predict `targets`, and length log-probabilities."""
        memory, lengths = self.encode(source)
        return self.local_states(self.decode(decoder_input, memory), targets), lengths


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
    best = allowed_logits(logits, size, forbidden).topk(min(count, size), dim=-1)
    return best.values - logits.float().logsumexp(dim=-1, keepdim=True), best.indices


def best_tokens(logits: Tensor, size: int, forbidden: tuple[int, ...] = NEVER_WRITTEN) -> tuple[Tensor, Tensor]:
    """The log-probability and id of the likeliest token that may be written."""
    best = allowed_logits(logits, size, forbidden).max(dim=-1)
    return best.values - logits.float().logsumexp(dim=-1), best.indices


def build_model(
    settings: NetworkSettings, source_size: int, target_size: int, joint: bool, generator: torch.Generator
) -> Model:
    """A new model on the CPU, initialised as in appendix B: N(0, 0.02), zero biases, unit layer norms.

    The sizes are those of the vocabularies.

    # Departure: as in the authors' program, the fused attention input keeps Xavier-uniform, and the LSTM keeps
    # uniform(-1/sqrt(D), 1/sqrt(D)) for weights and biases.
    """
    model = KINDS[settings.kind](settings, source_size, target_size, joint)
    bound = settings.width**-0.5
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
    return model
