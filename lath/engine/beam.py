"""Twin of `beam_search` of decoding/beam.py in fixed shapes, recorded as CUDA graphs.

The cache never moves (beam_attention.py) and every step replays the same recording (graphs.py). Finished sentences
leave by halves: when half of the batch is done, the rest moves to the front and a smaller recording takes over. Shapes
come from a small ladder, so a sentence may be searched with padding and fillers; neither changes its result.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lath.decoding.beam import CHECK_EVERY, Beams, Best, grow
from lath.decoding.lengths import length_limit, length_limits
from lath.decoding.results import Decoded
from lath.engine.beam_attention import BeamCache, BeamMask
from lath.engine.graphs import recorded, tensors_of
from lath.model.network import AT, NEVER_WRITTEN_AFTER_BEGIN, KeyValues, Memory
from lath.model.padding import row_lengths
from lath.text.vocab import EOS, PAD

SLOTS = 1 << 18
"""Sentences times steps that the cache holds at most: a batch of long sentences is cut into smaller ones."""
HALVINGS = 5
"""How often a batch can become smaller by half."""
MOST_SHAPES = 64
"""Recorded shapes kept; the oldest is forgotten first."""


def source_width(length: int) -> int:
    """The ladder of source widths: a longer sentence bears more padding.

    >>> [source_width(length) for length in (1, 9, 65, 130)]
    [8, 16, 80, 192]
    """
    step = 8 if length <= 64 else 16 if length <= 128 else 64
    return -(-length // step) * step


def batch_size(sentences: int) -> int:
    """The ladder of batches: powers of two."""
    return 1 << (sentences - 1).bit_length()


def filled_up(source: Tensor, batch: int, width: int) -> Tensor:
    """Sentences in a fixed shape: rows without one hold only EOS; one more row holds their number."""
    rows = np.full((batch + 1, width), PAD)  # numpy: a sentence may take little longer than a dozen tensor operations
    rows[:, 0] = EOS
    rows[: source.shape[0], : source.shape[1]] = source.numpy()
    rows[batch, 0] = source.shape[0]
    return torch.from_numpy(rows)


def cut_to_fit(lengths: list[int], fits: Callable[[int, int], bool]) -> Iterator[tuple[slice, int]]:
    """Slices of the rows whose size, in the ladder, and longest sentence fit; with each slice its longest.

    >>> list(cut_to_fit([2, 3, 9, 9, 4], lambda size, longest: size * longest <= 20))
    [(slice(0, 2, None), 3), (slice(2, 4, None), 9), (slice(4, 5, None), 4)]
    """
    start = 0
    while start < len(lengths):
        size = batch_size(len(lengths) - start)
        while size > 1 and not fits(size, max(lengths[start : start + size])):
            size //= 2
        rows = slice(start, min(start + size, len(lengths)))
        yield rows, max(lengths[rows])
        start += size


@dataclass
class _Search:
    """The tensors of one shape, B sentences of S source tokens in W steps, and the recorded work on them."""

    inputs: Tensor
    """(B + 1) x S, as `filled_up` makes it."""
    length: Tensor
    """The number of the next token, from 1."""
    beams: Beams
    ancestors: Tensor
    memory: Memory
    cache: list[KeyValues]
    begin: Callable[[], None]
    steps: dict[int, Callable[[], None]]
    """One for each batch size, the whole one first."""


class BeamSearch:
    """Beam search with one model, beam and length penalty."""

    def __init__(self, model: AT, beam: int, length_penalty: float) -> None:
        self.model, self.beam, self.length_penalty = model, beam, length_penalty
        self.device, self.dtype = model.body.output_table.weight.device, model.body.output_table.weight.dtype
        self._searches: dict[tuple[int, int], _Search] = {}
        self._storage: dict[str, list[Tensor]] = {}
        self._pool: object = None
        self._alone = threading.Lock()

    @torch.inference_mode()
    def decode(self, source: Tensor) -> list[Decoded]:
        """Translate B x S source tokens (on the CPU; each sentence ends in EOS), best sorted by length."""
        slices = cut_to_fit(
            row_lengths(source), lambda size, longest: size * self._most_steps(self.width(longest)) <= SLOTS
        )
        return [
            result
            for rows, longest in slices
            for result in self._decode_batch(source[rows, :longest], self.width(longest))
        ]

    @torch.inference_mode()
    def prepare(self, batch: int, width: int) -> None:
        """Record a shape before a sentence needs it."""
        with self._alone:
            self._search(batch, width)

    def decode_many(self, sources: Iterable[Tensor]) -> Iterator[list[Decoded]]:
        """Translate batch after batch."""
        return map(self.decode, sources)

    def width(self, length: int) -> int:
        """The source's width in the ladder."""
        return min(source_width(length), self.model.settings.max_positions)

    def _most_steps(self, width: int) -> int:
        return length_limit(width, self.model.settings.max_positions)

    def _decode_batch(self, source: Tensor, width: int) -> list[Decoded]:
        size, steps = batch_size(len(source)), self._most_steps(width)
        best = Best.empty(size, steps, self.device)
        with self._alone:
            search = self._search(size, width)
            search.inputs.copy_(filled_up(source, size, width))
            search.begin()
            for length in range(1, steps + 1):
                search.steps[size]()
                if length % CHECK_EVERY and length < steps:
                    continue
                beams = Beams(*(field[:size] for field in search.beams))
                best.keep(beams)
                going_on = int((~beams.done).sum())
                if going_on == 0:
                    break
                while going_on <= size // 2 and size // 2 in search.steps:
                    _halve(search, size, length)
                    size //= 2
        return best.decoded()[: len(source)]

    def _search(self, batch: int, width: int) -> _Search:
        """The tensors and recordings of a shape, made at its first use."""
        if (batch, width) not in self._searches:
            views = self._views(batch, width)
            while len(self._searches) >= MOST_SHAPES:
                del self._searches[next(iter(self._searches))]
            self._searches[batch, width] = self._record(batch, width, views)
        return self._searches[batch, width]

    def _views(self, batch: int, width: int) -> tuple[list[KeyValues], list[KeyValues]]:
        """Room for memory and cache of a shape. All shapes use the same room, for only one is at work at a time."""
        settings = self.model.settings
        head = (settings.heads, settings.width // settings.heads)
        memory, cache = (batch, width, *head), (batch, self._most_steps(width), self.beam, *head)
        return self._rooms("memory", memory), self._rooms("cache", cache)

    def _rooms(self, name: str, shape: tuple[int, ...]) -> list[KeyValues]:
        """Keys and values of every layer in a room that grows to the largest shape."""
        size = math.prod(shape)
        if size > len(self._storage.get(name, [torch.empty(0)])[0]):
            self._searches.clear()  # recordings know addresses
            self._pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
            self._storage[name] = [
                torch.zeros(size, dtype=self.dtype, device=self.device)
                for _ in range(2 * self.model.settings.decoder_layers)
            ]
        tensors = [room[:size].view(shape) for room in self._storage[name]]
        return [KeyValues(*pair) for pair in zip(tensors[::2], tensors[1::2], strict=True)]

    def _record(self, batch: int, width: int, views: tuple[list[KeyValues], list[KeyValues]]) -> _Search:
        inputs = filled_up(torch.zeros((0, 0), dtype=torch.long), batch, width).to(self.device)
        limits = length_limits(inputs[:-1], self.model.settings.max_positions)
        steps = self._most_steps(width)
        search = _Search(
            inputs=inputs,
            length=torch.ones((), dtype=torch.long, device=self.device),
            beams=Beams.start(limits, self.beam, steps),
            ancestors=torch.zeros((batch, self.beam, steps), dtype=torch.int32, device=self.device),
            memory=Memory(views[0], torch.ones((batch, width), dtype=torch.bool, device=self.device)),
            cache=views[1],
            begin=lambda: None,
            steps={},
        )
        search.begin = recorded(lambda: self._begin(search), self.device, self._pool)
        for halvings in range(HALVINGS + 1):
            size = batch >> halvings
            if size:
                search.begin()  # the warm-up before a recording does steps, which must start somewhere
                search.steps[size] = recorded(lambda size=size: self._step(search, size), self.device, self._pool)  # type: ignore[misc]
        return search

    def _begin(self, search: _Search) -> None:
        """Encode the source and start with empty hypotheses; rows that only fill the shape are done at once."""
        source, real = search.inputs[:-1], search.inputs[-1, 0]
        encoded = self.model.encode(source)
        limits = length_limits(source, self.model.settings.max_positions)
        beams = Beams.start(limits, self.beam, search.beams.tokens.shape[2])
        fills = torch.arange(len(limits), device=self.device) >= real
        beams = beams._replace(ended=beams.ended.masked_fill(fills, self.beam))
        for kept, new in zip(tensors_of((search.memory, search.beams)), tensors_of((encoded, beams)), strict=True):
            kept.copy_(new)
        search.ancestors.zero_()  # at the first step every hypothesis but the first is impossible
        search.length.fill_(1)

    def _step(self, search: _Search, size: int) -> None:
        """Write the next token of every hypothesis of the first `size` sentences."""
        beams = Beams(*(field[:size] for field in search.beams))
        ancestors = search.ancestors[:size]
        memory = [KeyValues(keys[:size], values[:size]) for keys, values in search.memory.layers]
        slots = torch.arange(self.beam, dtype=torch.int32, device=self.device)[:, None]
        places = torch.arange(ancestors.shape[2], device=self.device)
        step = (search.length - 1).view(1)
        ancestors.copy_(torch.where(places == step, slots, ancestors))
        cache = [BeamCache(keys[:size], values[:size], step) for keys, values in search.cache]
        body = self.model.body
        tokens = beams.last_tokens(search.length)
        x = body.embed_target(tokens, step)
        memory_mask = body.make_mask(torch.ones_like(tokens, dtype=torch.bool), search.memory.visible[:size], x)
        states, _ = body.decoder(x, BeamMask(step, ancestors), memory, memory_mask, cache)
        likeliest = body.top_tokens(states, NEVER_WRITTEN_AFTER_BEGIN, 2 * self.beam)
        grown, parents = grow(beams, likeliest, search.length, self.length_penalty)
        for kept, new in zip(beams, grown, strict=True):
            if new is not kept:
                kept.copy_(new)
        ancestors.copy_(ancestors.gather(1, parents[:, :, None].expand_as(ancestors)))
        search.length.add_(1)


def _halve(search: _Search, size: int, length: int) -> None:
    """Move the sentences that go on to the first half; done ones fill it up."""
    rows = search.beams.done[:size].to(torch.int8).argsort(stable=True)[: size // 2]
    for tensor in tensors_of((search.beams, search.ancestors, search.memory)):
        tensor[: size // 2] = tensor[:size].index_select(0, rows)
    for tensor in tensors_of(search.cache):
        tensor[: size // 2, :length] = tensor[:size, :length].index_select(0, rows)
