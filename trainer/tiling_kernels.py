"""Triton's side of `trainer.tiling`; compiled at the first call, for any number of slots and keys."""

import triton
import triton.language as tl


@triton.jit
def _context(index, keep, starts, at):
    """The first context key that a slot sees, and the first after it that it does not."""
    before = tl.where(tl.load(keep + at), tl.load(index + at), 0)
    return tl.load(starts + at).to(tl.int32), before.to(tl.int32)


@triton.jit
def _seen(low, high, begin, size, window, windowed, causal, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr):
    """Keys of the context and of the block that begins there, cut as `masks._seen` does."""
    block_low = begin
    block_high = begin + size
    if CAUSAL:
        block_high = begin + causal + 1
    if WINDOWED:
        low = tl.maximum(low, high + (windowed + 1 - window))
        block_low = begin + tl.maximum(windowed + 1 - window, 0)
    return low, high, block_low, block_high


@triton.jit
def _meet(low, high, begin, end):
    return (low < high) & (low < end) & (high > begin)


@triton.jit
def _cover(low, high, begin, end):
    return (begin >= end) | ((low <= begin) & (high >= end))


@triton.jit
def _tiles(
    index,
    keep,
    starts,
    first_slot,
    slots,
    size,
    context,
    window,
    most,
    i,
    j,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    TILE: tl.constexpr,
):
    """Tiles in which something but not everything is seen, and those in which everything is."""
    num_queries = slots * size
    num_keys = context + num_queries
    begin_i = i * TILE
    begin_j = j * TILE
    end_j = tl.minimum(begin_j + TILE, num_keys)
    some = begin_j < 0
    full = (begin_i + TILE <= num_queries) & (begin_j + TILE <= num_keys)
    cut = 0
    while cut < most:
        slot = begin_i // size + cut
        first = tl.maximum(begin_i - slot * size, 0)
        last = tl.minimum(begin_i + (TILE - 1) - slot * size, size - 1)
        real = (slot < slots) & (first <= last)
        slot = tl.minimum(slot, slots - 1)
        low, high = _context(index, keep, starts, first_slot + slot)
        begin = context + slot * size
        a, b, c, d = _seen(low, high, begin, size, window, first, last, CAUSAL, WINDOWED)
        some = some | (real & (_meet(a, b, begin_j, end_j) | _meet(c, d, begin_j, end_j)))
        a, b, c, d = _seen(low, high, begin, size, window, last, first, CAUSAL, WINDOWED)
        every = _cover(a, b, begin_j, tl.minimum(end_j, context))
        every = every & _cover(c, d, tl.maximum(begin_j, context), end_j)
        full = full & (every | (real == 0))
        cut += 1
    return some & (full == 0), full


@triton.jit
def _places(seen, before, count, walked):
    """Where each goes: the seen first, then the others, each kind in its order; and the seen so far."""
    rank = before + tl.cumsum(seen.to(tl.int32), axis=0)
    place = tl.where(seen, rank - 1, count + walked - rank)
    return place, before + tl.sum(seen.to(tl.int32), axis=0)


# Else 1, and multiples of 16, would be compiled for themselves.
_VARYING = ["index", "keep", "starts", "slots", "size", "context", "window"]


@triton.jit(do_not_specialize=[*_VARYING, "most"])
def tile_lists(
    index,
    keep,
    starts,
    kv_num,
    kv_order,
    full_kv_num,
    full_kv_order,
    q_num,
    q_order,
    full_q_num,
    full_q_order,
    lowest,
    before,
    slots,
    size,
    context,
    window,
    most,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """A program takes a tile of queries and walks those of keys twice, or the other way round."""
    query_tiles = tl.cdiv(slots * size, TILE)
    key_tiles = tl.cdiv(context + slots * size, TILE)
    row = tl.program_id(1)
    first_slot = row * slots
    by_query = tl.program_id(0) < query_tiles
    outer = tl.program_id(0)
    length = key_tiles
    line = row * query_tiles + outer
    if not by_query:
        outer = outer - query_tiles
        length = query_tiles
        line = row * key_tiles + outer
        kv_num = q_num
        kv_order = q_order
        full_kv_num = full_q_num
        full_kv_order = full_q_order
    lane = tl.arange(0, CHUNK)

    partial_count = 0
    full_count = 0
    start = 0
    while start < length:
        walked = start + lane
        i = tl.where(by_query, outer, walked)
        j = tl.where(by_query, walked, outer)
        partial, full = _tiles(
            index, keep, starts, first_slot, slots, size, context, window, most, i, j, CAUSAL, WINDOWED, TILE
        )
        partial_count += tl.sum((partial & (walked < length)).to(tl.int32), axis=0)
        full_count += tl.sum((full & (walked < length)).to(tl.int32), axis=0)
        start += CHUNK
    tl.store(kv_num + line, partial_count)
    tl.store(full_kv_num + line, full_count)

    begin = line.to(tl.int64) * length
    partial_before = 0
    full_before = 0
    start = 0
    while start < length:
        walked = start + lane
        i = tl.where(by_query, outer, walked)
        j = tl.where(by_query, walked, outer)
        partial, full = _tiles(
            index, keep, starts, first_slot, slots, size, context, window, most, i, j, CAUSAL, WINDOWED, TILE
        )
        place, partial_before = _places(partial, partial_before, partial_count, walked)
        tl.store(kv_order + begin + place, walked, mask=walked < length)
        place, full_before = _places(full, full_before, full_count, walked)
        tl.store(full_kv_order + begin + place, walked, mask=walked < length)
        start += CHUNK

    # Each program's share of the slots; CHUNK is TILE or more, so there are programs enough.
    slot = tl.program_id(0) * CHUNK + lane
    low, high = _context(index, keep, starts, first_slot + tl.minimum(slot, slots - 1))
    tl.store(lowest + first_slot + slot, low, mask=slot < slots)
    tl.store(before + first_slot + slot, high, mask=slot < slots)


@triton.jit(do_not_specialize=_VARYING)
def key_intervals(
    index,
    keep,
    starts,
    intervals,
    slots,
    size,
    context,
    window,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    TILE: tl.constexpr,
):
    """A program takes a tile of queries."""
    row = tl.program_id(1)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    query = tl.minimum(at, slots * size - 1)
    slot = query // size
    offset = query - slot * size
    low, high = _context(index, keep, starts, row * slots + slot)
    begin = context + slot * size
    a, b, c, d = _seen(low, high, begin, size, window, offset, offset, CAUSAL, WINDOWED)
    padded = tl.num_programs(0) * TILE
    bound = intervals + row * 4 * padded + at
    tl.store(bound, a)
    tl.store(bound + padded, b)
    tl.store(bound + 2 * padded, c)
    tl.store(bound + 3 * padded, d)
