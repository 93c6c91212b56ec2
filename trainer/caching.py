"""`cached`: the target runs over one epoch before training, and its hidden states stay on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainer.console import say
from trainer.data.hidden import HiddenCache, cache_key, expected_bytes
from trainer.target.load import load_target

if TYPE_CHECKING:
    from trainer.job import Job
    from trainer.loading import Loaded
    from trainer.parallel.group import Group

TOLD_EVERY = 50


def open_cache(job: Job, group: Group, loaded: Loaded, count: int, *, last: bool) -> HiddenCache:
    """The hidden states of micro-batches 0 to `count` - 1, written first where they are missing.

    Every rank calls it; each writes its share.

    Raises:
        ConfigInvalid: the disk has not enough room.
        OSError: it filled up all the same.
    """
    taps, dtype = loaded.shape.target_layer_ids, loaded.machine.dtype
    key = cache_key(
        target=loaded.target_sha256,
        data=loaded.data.train.fingerprint,
        tap_layers=taps,
        dtype=dtype,
        last=last,
        count=count,
    )
    directory = Path(job.config.parallel.cache_dir or job.run_dir.run / "hidden-states")
    cache = HiddenCache(directory, key)
    if not cache.complete(count):
        _fill(job, group, loaded, cache, count, last=last)
    return cache


def _fill(job: Job, group: Group, loaded: Loaded, cache: HiddenCache, count: int, *, last: bool) -> None:
    train, topology = loaded.data.train, job.topology
    width = loaded.shape.hidden_size
    needed = expected_bytes(
        (train.bucket(index) for index in range(count)),
        taps_dim=len(loaded.shape.target_layer_ids) * width,
        last_dim=width if last else 0,
        dtype=loaded.machine.dtype,
    )
    if topology.is_leader:
        say(cache.require_space(needed))
    group.barrier()
    target = load_target(job.config.target, loaded.machine.device, loaded.machine.dtype)
    mine = [index for index in cache.missing(count) if index % topology.world_size == topology.rank]
    for position, index in enumerate(mine):
        batch = train.micro_batch(index).to(loaded.machine.device)
        cache.write(index, target.observe(batch, loaded.shape.target_layer_ids, last=last))
        job.alive()
        if position % TOLD_EVERY == 0:
            say(f"hidden states: {position}/{len(mine)} micro-batches of this rank")
    group.barrier()
    if topology.is_leader:
        cache.finish(count)
    group.barrier()
