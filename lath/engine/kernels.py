"""Triton kernels of the modules that import them (attention, token choice, sums, checks). Imported only where they run.

Apart from their callers because importing Triton takes a while, and because there may be none.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("triton"):
    import triton
    from triton import language as tl

    @triton.jit
    def attend_kernel(
        query, keys, values, ancestors, step, out, query_stride, length, beam, scale,
        HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """One program for each hypothesis and head: softmax in one pass over the past, in blocks."""
        row, head = tl.program_id(0), tl.program_id(1)
        sentence = row // beam
        dims = tl.arange(0, SIZE)
        asked = tl.load(query + row * query_stride + head * SIZE + dims).to(tl.float32) * scale
        last = tl.load(step)
        top = tl.full((), float("-inf"), tl.float32)
        total = tl.zeros((), tl.float32)
        mixed = tl.zeros((SIZE,), tl.float32)
        start = tl.zeros((), tl.int64)
        while start <= last:
            places = start + tl.arange(0, BLOCK)
            seen = places <= last
            slots = tl.load(ancestors + row.to(tl.int64) * length + places, mask=seen, other=0)
            where = ((sentence.to(tl.int64) * length + places) * beam + slots) * (HEADS * SIZE) + head * SIZE
            key = tl.load(keys + where[:, None] + dims[None, :], mask=seen[:, None], other=0.0).to(tl.float32)
            score = tl.where(seen, tl.sum(key * asked[None, :], axis=1), float("-inf"))
            higher = tl.maximum(top, tl.max(score, axis=0))
            weight = tl.exp(score - higher)
            value = tl.load(values + where[:, None] + dims[None, :], mask=seen[:, None], other=0.0).to(tl.float32)
            shrink = tl.exp(top - higher)
            mixed = mixed * shrink + tl.sum(weight[:, None] * value, axis=0)
            total = total * shrink + tl.sum(weight, axis=0)
            top = higher
            start += BLOCK
        tl.store(out + (row.to(tl.int64) * HEADS + head) * SIZE + dims, (mixed / total).to(out.dtype.element_ty))

    @triton.jit
    def few_queries_kernel(
        query, keys, values, bias, out, queries, length, scale,
        query_batch, query_row, key_batch, key_row, value_batch, value_row, bias_batch,
        HEADS: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
    ):  # fmt: skip
        """One program for some queries of a sentence and a head, against blocks of its keys: softmax in one pass."""
        sentence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
        row, dims = tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.arange(0, SIZE)
        there = row < queries
        place = query + sentence * query_batch + row[:, None] * query_row + head * SIZE + dims[None, :]
        asked = tl.load(place, mask=there[:, None], other=0.0)
        top = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        mixed = tl.zeros((ROWS, SIZE), tl.float32)
        start = tl.zeros((), tl.int32)
        while start < length:
            column = start + tl.arange(0, BLOCK)
            inside = column < length
            key_place = keys + sentence * key_batch + column[:, None] * key_row + head * SIZE + dims[None, :]
            key = tl.load(key_place, mask=inside[:, None], other=0.0)
            added = tl.load(bias + sentence * bias_batch + column, mask=inside, other=float("-inf")).to(tl.float32)
            score = tl.dot(asked, tl.trans(key), input_precision="ieee") * scale + added[None, :]
            if CAUSAL:
                score = tl.where(column[None, :] <= row[:, None], score, float("-inf"))
            # A block whose keys are all hidden must not make -inf minus -inf of a row that has seen none yet.
            higher = tl.maximum(tl.maximum(top, tl.max(score, axis=1)), -1e30)
            weight = tl.exp(score - higher[:, None])
            value_place = values + sentence * value_batch + column[:, None] * value_row + head * SIZE + dims[None, :]
            value = tl.load(value_place, mask=inside[:, None], other=0.0)
            shrink = tl.exp(top - higher)
            mixed = mixed * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
            total = total * shrink + tl.sum(weight, axis=1)
            top = higher
            start += BLOCK
        out_place = out + ((sentence * queries + row[:, None]) * HEADS + head) * SIZE + dims[None, :]
        tl.store(out_place, (mixed / total[:, None]).to(out.dtype.element_ty), mask=there[:, None])

    @triton.jit
    def _head_tile(base, row, there, row_stride, head_stride, head, SIZE: tl.constexpr, WIDTH: tl.constexpr):
        """The numbers of one head for some tokens, zero where there is none."""
        dims = tl.arange(0, WIDTH)
        place = base + row[:, None].to(tl.int64) * row_stride + head * head_stride + dims[None, :]
        return tl.load(place, mask=there[:, None] & (dims < SIZE)[None, :], other=0.0)

    @triton.jit
    def _store_head_tile(
        base, tile, row, there, head, HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr
    ):  # fmt: skip
        """The opposite, into a contiguous tensor."""
        dims = tl.arange(0, WIDTH)
        place = base + (row[:, None].to(tl.int64) * HEADS + head) * SIZE + dims[None, :]
        tl.store(place, tile.to(base.dtype.element_ty), mask=there[:, None] & (dims < SIZE)[None, :])

    @triton.jit
    def _span(spans, row, there, count):
        """Where the other side of each token's sentence begins and ends; nowhere for a token that is not there."""
        first = tl.load(spans + row, mask=there, other=2147483647)
        stop = tl.load(spans + count + row, mask=there, other=0)
        return first, stop

    @triton.jit
    def _scores(tile, other, column, first, stop, scale):
        """How much each token of a tile has to do with some of the other side; -inf outside of its span."""
        score = tl.dot(tile, tl.trans(other), input_precision="ieee") * (scale * 1.4426950408889634)  # log2(e): exp2
        return tl.where((column[None, :] >= first[:, None]) & (column[None, :] < stop[:, None]), score, float("-inf"))

    @triton.jit
    def attend_in_sentences_kernel(
        query, keys, values, spans, out, sums, count, scale,
        query_row, query_head, key_row, key_head, value_row, value_head,
        HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr,
        ROWS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """One program for some tokens and a head: softmax in one pass over the keys of their sentences."""
        head = tl.program_id(1)
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        there = row < count
        first, stop = _span(spans, row, there, count)
        if CAUSAL:
            stop = tl.minimum(stop, row + 1)
        asked = _head_tile(query, row, there, query_row, query_head, head, SIZE, WIDTH)
        top = tl.full((ROWS,), -1e30, tl.float32)  # not -inf: minus itself it must not be nan
        total = tl.zeros((ROWS,), tl.float32)
        mixed = tl.zeros((ROWS, WIDTH), tl.float32)
        end = tl.max(stop, axis=0)
        for start in range(tl.min(first, axis=0), end, BLOCK):
            column = start + tl.arange(0, BLOCK)
            key = _head_tile(keys, column, column < end, key_row, key_head, head, SIZE, WIDTH)
            score = _scores(asked, key, column, first, stop, scale)
            higher = tl.maximum(top, tl.max(score, axis=1))
            weight = tl.exp2(score - higher[:, None])
            shrink = tl.exp2(top - higher)
            value = _head_tile(values, column, column < end, value_row, value_head, head, SIZE, WIDTH)
            mixed = mixed * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
            total = total * shrink + tl.sum(weight, axis=1)
            top = higher
        total = tl.where(total > 0, total, 1.0)  # a sentence without keys: nothing to mix
        _store_head_tile(out, mixed / total[:, None], row, there, head, HEADS, SIZE, WIDTH)
        tl.store(sums + head * count + row, top + tl.log2(total), mask=there)

    @triton.jit
    def query_gradients_kernel(
        query, keys, values, spans, mixed, sums, gradient, query_gradient, inner, count, scale,
        query_row, query_head, key_row, key_head, value_row, value_head,
        HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr,
        ROWS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """One program for some tokens and a head: the gradient of their queries, and what the keys' needs too."""
        head = tl.program_id(1)
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        there = row < count
        first, stop = _span(spans, row, there, count)
        if CAUSAL:
            stop = tl.minimum(stop, row + 1)
        asked = _head_tile(query, row, there, query_row, query_head, head, SIZE, WIDTH)
        outer = _head_tile(gradient, row, there, HEADS * SIZE, SIZE, head, SIZE, WIDTH)
        mixed_out = _head_tile(mixed, row, there, HEADS * SIZE, SIZE, head, SIZE, WIDTH)
        product = tl.sum(outer.to(tl.float32) * mixed_out.to(tl.float32), axis=1)
        tl.store(inner + head * count + row, product, mask=there)
        log_total = tl.load(sums + head * count + row, mask=there, other=0.0)
        found = tl.zeros((ROWS, WIDTH), tl.float32)
        end = tl.max(stop, axis=0)
        for start in range(tl.min(first, axis=0), end, BLOCK):
            column = start + tl.arange(0, BLOCK)
            key = _head_tile(keys, column, column < end, key_row, key_head, head, SIZE, WIDTH)
            value = _head_tile(values, column, column < end, value_row, value_head, head, SIZE, WIDTH)
            weight = tl.exp2(_scores(asked, key, column, first, stop, scale) - log_total[:, None])
            change = weight * (tl.dot(outer, tl.trans(value), input_precision="ieee") - product[:, None])
            found += tl.dot(change.to(key.dtype), key, input_precision="ieee")
        _store_head_tile(query_gradient, found * scale, row, there, head, HEADS, SIZE, WIDTH)

    @triton.jit
    def key_gradients_kernel(
        query, keys, values, spans, sums, gradient, inner, key_gradient, value_gradient, query_count, count, scale,
        query_row, query_head, key_row, key_head, value_row, value_head,
        HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr,
        ROWS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """One program for some tokens and a head: the gradients of their keys and values, over blocks of queries."""
        head = tl.program_id(1)
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        there = row < count
        first, stop = _span(spans, row, there, count)
        if CAUSAL:
            first = tl.maximum(first, row)
        key = _head_tile(keys, row, there, key_row, key_head, head, SIZE, WIDTH)
        value = _head_tile(values, row, there, value_row, value_head, head, SIZE, WIDTH)
        of_key = tl.zeros((ROWS, WIDTH), tl.float32)
        of_value = tl.zeros((ROWS, WIDTH), tl.float32)
        end = tl.max(stop, axis=0)
        for start in range(tl.min(first, axis=0), end, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < end
            asked = _head_tile(query, column, inside, query_row, query_head, head, SIZE, WIDTH)
            outer = _head_tile(gradient, column, inside, HEADS * SIZE, SIZE, head, SIZE, WIDTH)
            log_total = tl.load(sums + head * query_count + column, mask=inside, other=0.0)
            product = tl.load(inner + head * query_count + column, mask=inside, other=0.0)
            weight = tl.exp2(_scores(key, asked, column, first, stop, scale) - log_total[None, :])
            of_value += tl.dot(weight.to(outer.dtype), outer, input_precision="ieee")
            change = weight * (tl.dot(value, tl.trans(outer), input_precision="ieee") - product[None, :])
            of_key += tl.dot(change.to(asked.dtype), asked, input_precision="ieee")
        _store_head_tile(key_gradient, of_key * scale, row, there, head, HEADS, SIZE, WIDTH)
        _store_head_tile(value_gradient, of_value, row, there, head, HEADS, SIZE, WIDTH)

    @triton.jit
    def _allowed(ids, size, b0, b1, b2, b3, b4):
        """Which tokens may be written."""
        return (ids < size) & (ids != b0) & (ids != b1) & (ids != b2) & (ids != b3) & (ids != b4)

    @triton.jit
    def survey_kernel(
        logits, maxima, shares, columns, size, groups, b0, b1, b2, b3, b4, BLOCK: tl.constexpr, GROUP: tl.constexpr
    ):
        """One block of one row: its largest logit, its sum of exponentials, and the best allowed one of each group."""
        row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
        group = block * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
        ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        found = tl.load(logits + row * columns + ids, mask=ids < columns, other=float("-inf")).to(tl.float32)
        top = tl.max(tl.max(found, axis=1), axis=0)
        total = tl.sum(tl.sum(tl.exp(found - top), axis=1), axis=0)
        place = shares + (row * tl.num_programs(1) + block) * 2
        tl.store(place, top)
        tl.store(place + 1, total)
        allowed = tl.where(_allowed(ids, size, b0, b1, b2, b3, b4), found, float("-inf"))
        tl.store(maxima + row * groups + group, tl.max(allowed, axis=1), mask=group < groups)

    @triton.jit
    def choose_kernel(
        logits, maxima, shares, scores, ids_out, columns, size, groups, blocks, b0, b1, b2, b3, b4,
        COUNT: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, CHOSEN: tl.constexpr,
    ):  # fmt: skip
        """One row: the groups that hold the best tokens, then the tokens."""
        row = tl.program_id(0).to(tl.int64)
        block = tl.arange(0, BLOCKS)
        place = shares + (row * blocks + block) * 2
        tops = tl.load(place, mask=block < blocks, other=float("-inf"))
        totals = tl.load(place + 1, mask=block < blocks, other=0.0)
        top = tl.max(tops, axis=0)
        normaliser = top + tl.log(tl.sum(totals * tl.exp(tops - top), axis=0))

        group = tl.arange(0, GROUPS)
        best = tl.load(maxima + row * groups + group, mask=group < groups, other=float("-inf"))
        slot = tl.arange(0, CHOSEN)
        chosen = tl.zeros((CHOSEN,), tl.int32) + GROUPS
        for number in tl.static_range(COUNT):
            winner = tl.argmax(best, axis=0)
            chosen = tl.where(slot == number, winner, chosen)
            best = tl.where(group == winner, float("-inf"), best)

        ids = chosen[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        found = tl.load(logits + row * columns + ids, mask=ids < columns, other=float("-inf")).to(tl.float32)
        found = tl.where(_allowed(ids, size, b0, b1, b2, b3, b4), found, float("-inf"))
        for number in tl.static_range(COUNT):
            value = tl.max(tl.max(found, axis=1), axis=0)
            id = tl.min(tl.min(tl.where(found == value, ids, GROUPS * GROUP), axis=1), axis=0)
            tl.store(scores + row * COUNT + number, value - normaliser)
            tl.store(ids_out + row * COUNT + number, id.to(tl.int64))
            found = tl.where(ids == id, float("-inf"), found)

    @triton.jit
    def judge_kernel(
        best, ids, lines, counts, totals, nats, shown, bias, places, asked, top, columns, width,
        KEPT: tl.constexpr, DRAFTED: tl.constexpr, LIMIT: tl.constexpr, CHECKS: tl.constexpr,
        OUTGROWN: tl.constexpr, DONE: tl.constexpr, COUNTS: tl.constexpr,
        EOS: tl.constexpr, MASK: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """One text: how much of its draft is accepted, the token behind it, and what is asked next."""
        row = tl.program_id(0).to(tl.int64)
        line, first, count = lines + row * width, row * width * columns, counts + row * COUNTS
        kept = tl.minimum(tl.load(count + KEPT).to(tl.int32), width - 1)  # more has only a text that is outgrown
        end = tl.minimum(kept + tl.load(count + DRAFTED).to(tl.int32), width - 1)
        limit = tl.load(count + LIMIT).to(tl.int32)
        checks, outgrown, done = tl.load(count + CHECKS), tl.load(count + OUTGROWN), tl.load(count + DONE)
        before, most = tl.load(totals + row), tl.load(nats)
        going = done == 0

        # The state at a place predicts the token at the next one.
        place = tl.arange(0, BLOCK)
        drafted = (place >= kept) & (place < end)
        token = tl.load(line + place + 1, mask=drafted, other=-1)
        likeliest = tl.load(best + first + place * columns, mask=drafted, other=0.0).to(tl.float64)
        value, found = likeliest, place < 0
        for rank in range(0, top):
            same = tl.load(ids + first + place * columns + rank, mask=drafted, other=-2) == token
            ranked = tl.load(best + first + place * columns + rank, mask=drafted, other=0.0).to(tl.float64)
            value = tl.where(same, ranked, value)
            found = found | same
        refused = drafted & ((found == 0) | (value < likeliest - most))
        reached = tl.min(tl.where(refused, place, end), axis=0)
        total = before + tl.sum(tl.where(drafted & (place < reached), value, 0.0), axis=0)

        last = tl.load(line + reached)
        corrects = (last != EOS) & (reached < limit)
        correction = tl.load(ids + first + reached * columns)
        total += tl.where(corrects, tl.load(best + first + reached * columns).to(tl.float64), 0.0)
        last = tl.where(corrects, correction, last)
        again = tl.min(tl.where(drafted & (place >= reached) & (token == correction), place, end), axis=0)
        rest = end - 1 - tl.where(again < end, again, reached)
        old = tl.load(line + place, mask=(place <= reached) & (place < width), other=PAD)

        behind = tl.where(going, reached + tl.where(corrects, 1, 0), kept)
        complete = (last == EOS) | (behind == limit)
        masks = tl.where(complete | (done != 0), 0, tl.maximum(tl.minimum(rest, limit - behind), 1))
        grown = going & (behind + masks >= width)
        tl.store(count + KEPT, behind.to(tl.int64))
        tl.store(count + DRAFTED, tl.where(going, 0, end - kept).to(tl.int64))
        tl.store(count + CHECKS, tl.where(going, checks + 1, checks))
        tl.store(count + OUTGROWN, tl.where(grown, 1, outgrown))
        tl.store(count + DONE, tl.where(grown | (going & complete), 1, done))
        tl.store(totals + row, tl.where(going, total, before))
        token = tl.where((place == behind) & corrects & going, correction, old)
        tl.store(line + place, token, mask=(place == behind) & corrects & going & (place < width))

        token = tl.where(place <= behind, token, tl.where(place <= behind + masks, MASK, PAD))
        inside = place < width
        tl.store(shown + row * width + place, token, mask=inside)
        hidden = tl.where(place <= behind + masks, 0.0, float("-inf"))
        tl.store(bias + row * width + place, hidden.to(bias.dtype.element_ty), mask=inside)
        tl.store(places + row * width + place, row * width + tl.minimum(behind + place, width - 1), mask=inside)
        tl.store(asked + row, (masks + 1).to(tl.int64))

    @triton.jit
    def extend_kernel(
        ids, sizes, lines, counts, ids_row, sizes_row, width,
        KEPT: tl.constexpr, DRAFTED: tl.constexpr, LIMIT: tl.constexpr, OUTGROWN: tl.constexpr, DONE: tl.constexpr,
        COUNTS: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """One text: put a draft behind what is kept."""
        row = tl.program_id(0).to(tl.int64)
        count = counts + row * COUNTS
        kept, limit = tl.load(count + KEPT).to(tl.int32), tl.load(count + LIMIT).to(tl.int32)
        drafted, outgrown, done = tl.load(count + DRAFTED), tl.load(count + OUTGROWN), tl.load(count + DONE)
        going = done == 0
        length = tl.minimum(tl.load(sizes + row * sizes_row).to(tl.int32) - 1, limit - kept)
        grown = going & (kept + length >= width)
        place = tl.arange(0, BLOCK)
        behind = going & (place > kept) & (place < width)
        token = tl.load(ids + row * ids_row + place - kept, mask=behind & (place <= kept + length), other=PAD)
        tl.store(lines + row * width + place, token, mask=behind)
        tl.store(count + DRAFTED, tl.where(going, length.to(tl.int64), drafted))
        tl.store(count + OUTGROWN, tl.where(grown, 1, outgrown))
        tl.store(count + DONE, tl.where(grown, 1, done))

    @triton.jit
    def residual_norm_kernel(x, added, weight, bias, out, columns, epsilon, BLOCK: tl.constexpr):
        """One program a row: add, then normalise in float32."""
        start = tl.program_id(0).to(tl.int64) * columns
        place = tl.arange(0, BLOCK)
        inside = place < columns
        total = tl.load(x + start + place, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(added + start + place, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(total, axis=0) / columns
        apart = tl.where(inside, total - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(apart * apart, axis=0) / columns + epsilon)
        gain = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(bias + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + start + place, (apart * scale * gain + shift).to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _tanh(x):
        """Through the exponential of a negative number, which cannot overflow."""
        small = tl.exp(-2.0 * tl.abs(x))
        positive = (1.0 - small) / (1.0 + small)
        return tl.where(x < 0, -positive, positive)

    @triton.jit
    def lstm_gates_kernel(first, second, cell, hidden, new_cell, width, BLOCK: tl.constexpr):
        """One program a row: the gates enter, forget, candidate and leave stand side by side."""
        row = tl.program_id(0).to(tl.int64)
        place = tl.arange(0, BLOCK)
        inside = place < width
        start = row * 4 * width + place
        enter = tl.load(first + start, mask=inside, other=0.0).to(tl.float32)
        enter += tl.load(second + start, mask=inside, other=0.0).to(tl.float32)
        forget = tl.load(first + start + width, mask=inside, other=0.0).to(tl.float32)
        forget += tl.load(second + start + width, mask=inside, other=0.0).to(tl.float32)
        candidate = tl.load(first + start + 2 * width, mask=inside, other=0.0).to(tl.float32)
        candidate += tl.load(second + start + 2 * width, mask=inside, other=0.0).to(tl.float32)
        leave = tl.load(first + start + 3 * width, mask=inside, other=0.0).to(tl.float32)
        leave += tl.load(second + start + 3 * width, mask=inside, other=0.0).to(tl.float32)
        before = tl.load(cell + row * width + place, mask=inside, other=0.0).to(tl.float32)
        after = tl.sigmoid(forget) * before + tl.sigmoid(enter) * _tanh(candidate)
        tl.store(new_cell + row * width + place, after.to(new_cell.dtype.element_ty), mask=inside)
        written = tl.sigmoid(leave) * _tanh(after)
        tl.store(hidden + row * width + place, written.to(hidden.dtype.element_ty), mask=inside)
