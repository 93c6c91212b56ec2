"""What a rank does in the tests of trainer.parallel: `python ranks.py MODE FOLDER T`, under a launcher.

T targets, or 0 for all ranks both.

check  observations come in order and whole, wrapped gradients are the mean, an evaluation is answered
loop   trains a toy until it is told to stop or a rank is killed
fail   the same, until a target cannot make a micro-batch; it then takes long to end
both   first the one, then the other
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from trainer.config import OptimConfig, ParallelConfig
from trainer.optim import scale_and_clip
from trainer.parallel import failfast
from trainer.parallel.death import Process, is_communication
from trainer.parallel.failfast import FailFast
from trainer.parallel.gpus import hide_other_gpus
from trainer.parallel.group import Group, open_group
from trainer.parallel.schedule import Schedule, make_schedule
from trainer.parallel.topology import read_topology
from trainer.parallel.transport import Layout, Remote, Server
from trainer.parallel.wrap import accumulate, full_state, iterate_full, unwrap, wrap
from trainer.target.api import Observation

STEPS = 3
WIDTH = 4
LOOP = 1 << 40  # micro-batches of the endless loop begin here


class NodeProcess(Process):
    """As on machines of their own, though all agents run on this one."""

    @classmethod
    def own(cls):
        return replace(super().own(), space=f"node {os.environ['GROUP_RANK']}")


class Layer(nn.Module):
    """Casts its weight at use, as the drafter does, and notes what type it was."""

    seen: torch.dtype | None = None

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x):
        self.seen = self.weight.dtype
        return nn.functional.linear(x, self.weight.to(x.dtype)).tanh()


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.fc = Layer()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x):
        x = self.fc(x)
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def content(m, layout, device="cpu"):
    """What a micro-batch's taps are: different everywhere, exact in bfloat16."""
    numbers = torch.arange(layout.rows * layout.tokens * layout.taps_width, device=device) % 7 + m % 50
    return numbers.view(layout.rows, layout.tokens, layout.taps_width).bfloat16()


def layout(m):
    return Layout(2, 8 if m % 2 else 16, WIDTH, 3 if m % 3 == 0 else 0)


def make(m, device):
    shape = layout(m)
    last = content(m + 1, Layout(shape.rows, shape.tokens, 3), device) if shape.last_width else None
    return Observation(content(m, shape, device), last)


def check_transport(group: Group, schedule: Schedule, remote: Remote):
    """Return the micro-batches received, in order."""
    index = group.topology.drafter_index
    received = []
    dropped, discarded = schedule.of_drafter(STEPS, index)
    for step in range(STEPS):
        for m in schedule.of_drafter(step, index):
            if m == schedule.of_drafter(STEPS - 1, index)[-1]:
                remote.request(dropped)  # as if it were of a step that is then left out
            got = remote.fetch(m, schedule.ahead(m, 2, STEPS))
            expected = make(m, group.device)
            assert got.taps.dtype == torch.bfloat16
            assert torch.equal(got.taps, expected.taps), m
            assert (got.last is None) == (expected.last is None), m
            assert got.last is None or torch.equal(got.last, expected.last), m
            received.append(m)
            assert dropped not in remote._pending
    remote.request(discarded)
    remote.discard()
    return received


def toy_input(m, device, dtype=torch.float32):
    generator = torch.Generator().manual_seed(m)
    return torch.randn(5, WIDTH, generator=generator).to(device, dtype)


def gradients(module, micro_batches, device, dtype=torch.float32):
    """Gradients of the mean loss of `micro_batches`, accumulated, by name."""
    last = micro_batches[-1]
    for m in micro_batches:
        with accumulate(module, last=m == last):
            (module(toy_input(m, device, dtype)).float() / len(micro_batches)).backward()
    norm = scale_and_clip(module.parameters(), 1.0, 1e9)
    found = {}
    for name, parameter in unwrap(module).named_parameters():
        grad = parameter.grad
        assert grad is not None
        found[name] = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
    return found, float(norm)


def check_wrap(group: Group, schedule: Schedule):
    """Compare every way of wrapping with one process that does all; return the largest differences."""
    found = {}
    mine = schedule.of_drafter(0, group.topology.drafter_index)
    for dtype, bound in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        expected, norm = gradients(Toy().to(group.device), schedule.of_step(0), group.device, dtype)
        for shard in ("replicate", "full"):
            toy = Toy().to(group.device)
            before = {name: value.clone() for name, value in toy.state_dict().items()}
            wrapped = wrap(toy, group, ParallelConfig(shard=shard), dtype)
            got, got_norm = gradients(wrapped, mine, group.device, dtype)
            worst = max(float((got[name] - expected[name]).abs().max()) for name in expected)
            assert worst <= bound, (shard, dtype, worst)
            assert abs(got_norm - norm) <= bound, (shard, got_norm, norm)
            assert all(grad.dtype == torch.float32 for grad in got.values())
            assert toy.layers[0].seen == (dtype if shard == "full" else torch.float32)
            state = full_state(wrapped)
            assert [name for name, _ in iterate_full(wrapped)] == list(state) == list(before)
            assert all(torch.equal(state[name], before[name]) for name in before)
            found[f"{shard} {dtype}"] = worst
    return found


def check(group: Group, schedule: Schedule, remote: Remote):
    told: dict[str, object] = {}
    is_split = group.topology.is_split
    if is_split:
        told["received"] = check_transport(group, schedule, remote)
    if group.topology.num_drafters > 1:
        told["wrap"] = check_wrap(group, schedule)
    told["sum"] = float(group.sum_over_drafters(torch.ones(1, device=group.device)))
    told["any"] = [group.any_drafter(group.topology.is_leader), group.any_drafter(False)]
    if group.topology.is_leader and is_split:
        beats: list[int] = []
        answer = remote.evaluate(7, full_state(Toy().to(group.device)), lambda: beats.append(1))
        told["evaluation"] = {**answer, "beats": len(beats)}
    group.drafters_barrier()
    return told


def loop(group: Group, schedule: Schedule, remote: Remote, stop: threading.Event, out: Path):
    """Until told to stop: one gradient step after another."""
    toy = Toy().to(group.device)
    wrapped = wrap(toy, group, ParallelConfig(shard="replicate"), torch.float32)
    (m,) = schedule.of_drafter(LOOP // schedule.per_step, group.topology.drafter_index)[:1]
    while not group.any_drafter(stop.is_set()):
        got = remote.fetch(m, [m + schedule.num_drafters])
        wrapped(got.taps.float()).backward()
        m += schedule.num_drafters
        (out / f"looping-{group.topology.rank}").touch()


def serve(mode, group: Group, out: Path):
    made = []
    toy = Toy().to(group.device)
    state = {name: torch.zeros_like(value) for name, value in toy.state_dict().items()}

    def observe(m):
        made.append(m)
        if m > LOOP + 20 and mode == "fail":
            raise OverflowError(f"micro-batch {m} is too much")
        if m >= LOOP:
            (out / f"looping-{group.topology.rank}").touch()
        return make(m, group.device)

    server = Server(group)

    def evaluate(step):
        server.beat()
        server.beat()  # within the same half second: not told
        equal = all(torch.equal(value, toy.state_dict()[name]) for name, value in state.items())
        return {"step": step, "equal": equal}

    first = group.topology.target_index == 0
    server.beat()  # nobody waits: nothing is sent
    server.serve(observe, evaluate if first else None, state if first else None)
    return {"made": [m for m in made if m < LOOP]}


def work(mode, group: Group, stop: threading.Event, out: Path):
    topology = group.topology
    schedule = make_schedule(topology, OptimConfig(micro_batches=2 * topology.num_drafters))
    if not topology.is_drafter:
        return serve(mode, group, out)
    remote = Remote(group, schedule, layout, torch.bfloat16)
    told = check(group, schedule, remote) if mode in ("check", "both") else {}
    if told:
        (out / f"checked-{topology.rank}.json").write_text(json.dumps(told))
    if mode in ("loop", "fail", "both"):
        loop(group, schedule, remote, stop, out)
    if topology.is_split:
        remote.bye()
    return told


def main(mode, out, targets):
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    placement = "split" if int(targets) else "colocated"
    config = ParallelConfig(placement=placement, targets=int(targets), timeout_s=600.0)
    topology = read_topology(os.environ, config)
    device = torch.device("cpu")
    if os.environ.get("TEST_DEVICE") == "cuda":
        hide_other_gpus(os.environ, topology.local_rank)
        device = torch.device("cuda:0")
        assert torch.cuda.device_count() == 1
    (out / f"pid-{topology.rank}").write_text(str(os.getpid()))
    if "TORCHELASTIC_RUN_ID" in os.environ:  # ranks of two nodes do not see each other's processes
        failfast.Process = NodeProcess  # type: ignore[attr-defined]
    watch = FailFast(topology, out)
    watch.start()
    try:
        group = open_group(topology, config, device)
        told = work(mode, group, stop, out)
        group.barrier()
    except BaseException as error:
        watch.announce(f"{type(error).__name__}: {error}", communication=is_communication(error))
        with contextlib.suppress(FileExistsError), (out / "error.json").open("x") as file:
            json.dump({"rank": topology.rank, "message": str(error)}, file)
        while mode == "fail" and not (out / "let-go").exists():
            time.sleep(0.02)
        raise
    (out / f"told-{topology.rank}.json").write_text(json.dumps(told))
    watch.leave()
    group.close()
    return 75 if stop.is_set() else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    ended = main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
    # As the trainer's own ranks end: the interpreter's end may still abort in a thread of a backend.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended)
