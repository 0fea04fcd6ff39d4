"""Several processes that work as one, on one machine or many: torchrun starts them, each is a rank of a world.

    torchrun --nproc-per-node 2 -m lath train RECIPE DATA RUN

Every rank plans and draws the same update and works on its own rows of it. Shares of the loss are divided by the
whole update's totals from the start (objective.py), so the sum of all gradients is the update's gradient and one sum
an update is all that ranks have to tell each other. `DistributedDataParallel` would sum, or would have to be
kept from summing, at every micro-batch, and then take a mean that had to be undone (docs/adr/0006-ranks.md).

Without torchrun's variables in the environment there is a world of one, and nothing here does anything.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lath.devices import choose_device
from lath.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each process it starts."""
PATIENCE = timedelta(hours=12)
"""How long a rank waits for another: one may translate a shard for hours. When one dies torchrun ends them all."""


@dataclass(frozen=True)
class World:
    """Which of how many processes this one is."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this rank writes and speaks for all."""
        return self.rank == 0


ALONE = World()


@contextlib.contextmanager
def join_world(device_name: str) -> Iterator[tuple[World, torch.device]]:
    """Meet the other ranks for the length of a with-block; gives the world and this rank's device.

    with join_world("auto") as (world, device):
        ...
    """
    place = _place_in_environment()
    if place is None:
        yield ALONE, choose_device(device_name)
        return
    world, local_rank = place
    device = _own_device(device_name, local_rank)
    _meet(world, device)
    try:
        yield world, device
    except (KeyboardInterrupt, UserError) as error:
        if world.first:
            raise
        # All stop and are refused together, and the first says why.
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 2) from None
    finally:
        dist.destroy_process_group()


def _place_in_environment() -> tuple[World, int] | None:
    """World and number on this machine from torchrun's variables; None where there are none."""
    given = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if not given.keys() & {"RANK", "WORLD_SIZE", "LOCAL_RANK"}:
        return None
    for name in VARIABLES:
        if name not in given:
            told = next(iter(given))
            raise UserError(f"environment: {told} is set but {name} is not; start with torchrun, or unset {told}")
        if name != "MASTER_ADDR" and not given[name].isdecimal():
            raise UserError(f"environment: {name} is {given[name]!r}, not a whole number; start with torchrun")
    rank, size = int(given["RANK"]), int(given["WORLD_SIZE"])
    if rank >= size:
        raise UserError(f"environment: RANK is {rank} in a WORLD_SIZE of {size}; ranks count from 0")
    return World(rank, size), int(given["LOCAL_RANK"])


def _own_device(name: str, local_rank: int) -> torch.device:
    device = choose_device(name)
    if device.type == "cpu":
        return device
    if device.index is not None:
        raise UserError(f"device {name}: under torchrun every rank takes a GPU of its own; use --device cuda")
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"rank {local_rank} of this machine has no GPU, there are {torch.cuda.device_count()}; "
            f"start one rank for each with torchrun --nproc-per-node, or use --device cpu"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _meet(world: World, device: torch.device) -> None:
    # What is small goes through the CPU even where gradients do not: asking whether to stop must not wait for the GPU.
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(backend, rank=world.rank, world_size=world.size, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise UserError(
            f"rank {world.rank}: cannot meet the other ranks at {where} ({error}); "
            f"check that the address is right, free and open between the machines"
        ) from None


@contextlib.contextmanager
def _talking(world: World) -> Iterator[None]:
    """What the others' end looks like from here, in words."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"rank {world.rank}: another rank is gone ({reason}); mend what it told and run the command again "
            f"(training with --resume)"
        ) from None


# ---- sums -------------------------------------------------------------------------------------------------------


def sum_gradients(model: nn.Module, world: World, *scalars: Tensor) -> tuple[Tensor, ...]:
    """Make every rank's gradients the sum over all ranks, in one message; scalars ride along and come back summed.

    A rank that had no rows, and so no gradients, gets everyone else's.
    """
    if world.size == 1:
        return scalars
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len({parameter.dtype for parameter in parameters}) == 1, "one buffer has one type"
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([tensor.detach().flatten().to(parameters[0].dtype) for tensor in (*gradients, *scalars)])
    with _talking(world):
        dist.all_reduce(flat)
    pieces = torch.split(flat, [tensor.numel() for tensor in (*gradients, *scalars)])
    for parameter, piece in zip(parameters, pieces, strict=False):
        if parameter.grad is None:
            parameter.grad = piece.view_as(parameter)
        else:  # in place: a recorded step adds to these very tensors
            parameter.grad.copy_(piece.view_as(parameter))
    return tuple(piece.reshape(()) for piece in pieces[len(parameters) :])


def sum_scalars(world: World, *scalars: Tensor) -> tuple[Tensor, ...]:
    """Each scalar's sum over all ranks."""
    if world.size == 1:
        return scalars
    stacked = torch.stack(scalars).detach()
    with _talking(world):
        dist.all_reduce(stacked)
    return stacked.unbind()


def any_rank(world: World, here: bool) -> bool:
    """Whether it holds on any rank; all get the same answer."""
    if world.size == 1:
        return here
    count = torch.tensor(int(here))
    with _talking(world):
        dist.all_reduce(count)
    return bool(count)


# ---- work -------------------------------------------------------------------------------------------------------


def gather(world: World, work: Callable[[], Result]) -> list[Result]:
    """Do something on every rank, wait for all, and get every rank's result in order of rank.

    Where one is refused all are, in the same words.
    """
    if world.size == 1:
        return [work()]
    outcome: tuple[Any, str | None]
    try:
        outcome = work(), None
    except UserError as error:
        outcome = None, str(error)
    outcomes: list[tuple[Any, str | None]] = [outcome] * world.size
    with _talking(world):
        dist.all_gather_object(outcomes, outcome)
    for _, refusal in outcomes:
        if refusal is not None:
            raise UserError(refusal)
    return [result for result, _ in outcomes]


def together(world: World, work: Callable[[], Result]) -> Result:
    """Do something on every rank that any may refuse, for all; each keeps its own result."""
    own: list[Result] = []
    gather(world, lambda: own.append(work()))
    return own[0]


def lead(world: World, work: Callable[[], Result]) -> Result:
    """Let the first rank do something that must be done once; the others wait for it and get its result."""
    results: list[Any] = gather(world, lambda: work() if world.first else None)
    led: Result = results[0]
    return led


def share_stream(
    world: World, items: Iterator[Item], work: Callable[[list[Item]], list[Result]], chunk: int
) -> Iterator[Result]:
    """Results in the order of the items, of which each rank, reading them all, works on every size-th of a chunk."""
    while True:
        results = gather(world, lambda: work(list(itertools.islice(items, chunk))[world.rank :: world.size]))
        if not results[0]:
            return
        for number in range(sum(map(len, results))):
            yield results[number % world.size][number // world.size]
