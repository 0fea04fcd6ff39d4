"""Several processes that train or translate together, on one machine or many. torchrun starts them.

    torchrun --nproc-per-node 2 -m lath train RECIPE DATA RUN

Every rank draws the same update and computes its own rows of it. Losses are divided by the totals of the whole update
(objective.py), so the sum of all gradients is the gradient of the update: one all-reduce per update is enough.
`DistributedDataParallel` would average the gradients, and would have to be kept from reducing them at every
micro-batch (docs/adr/0006-ranks.md).

Without torchrun's environment variables there is a single rank, and the functions here do no communication.
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

from lath.devices import choose_device, rank_device
from lath.errors import UserError, exit_code

Item = TypeVar("Item")
Result = TypeVar("Result")

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets for each process."""
PATIENCE = timedelta(hours=12)
"""How long a rank waits for another: translating a shard may take hours. If a rank dies, torchrun stops the others."""


@dataclass(frozen=True)
class World:
    """The rank of this process, and the number of ranks."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this rank writes and reports for all."""
        return self.rank == 0


ALONE = World()


@contextlib.contextmanager
def join_world(device_name: str) -> Iterator[tuple[World, torch.device]]:
    """Connect to the other ranks inside a with-block; yields the world and this rank's device.

    with join_world("auto") as (world, device):
        ...
    """
    place = _place_in_environment()
    if place is None:
        yield ALONE, choose_device(device_name)
        return
    world, local_rank = place
    device = rank_device(device_name, local_rank)
    _connect(world, device)
    try:
        yield world, device
    except (KeyboardInterrupt, UserError) as error:
        if world.first:
            raise
        # All ranks stop together; only the first reports why.
        raise SystemExit(exit_code(error)) from None
    finally:
        dist.destroy_process_group()


def is_first_rank() -> bool:
    """Whether this process reports for all: rank 0 under torchrun, or the only process."""
    place = _place_in_environment()
    return place is None or place[0].first


def _place_in_environment() -> tuple[World, int] | None:
    """The world and the local rank from torchrun's variables; None without them."""
    given = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if not given.keys() & {"RANK", "WORLD_SIZE", "LOCAL_RANK"}:
        return None
    for name in VARIABLES:
        if name not in given:
            first = next(iter(given))
            raise UserError(f"environment: {first} is set but {name} is not; start with torchrun, or unset {first}")
        if name != "MASTER_ADDR" and not given[name].isdecimal():
            raise UserError(f"environment: {name} is {given[name]!r}, not a whole number; start with torchrun")
    rank, size = int(given["RANK"]), int(given["WORLD_SIZE"])
    if rank >= size:
        raise UserError(f"environment: RANK is {rank} in a WORLD_SIZE of {size}; ranks count from 0")
    return World(rank, size), int(given["LOCAL_RANK"])


def _connect(world: World, device: torch.device) -> None:
    # Small messages go through the CPU even if gradients do not: asking whether to stop must not wait for the GPU.
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(backend, rank=world.rank, world_size=world.size, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise UserError(
            f"rank {world.rank}: cannot connect to the other ranks at {where} ({error}); "
            f"check that the address is correct, the port free, and no firewall between the machines"
        ) from None


@contextlib.contextmanager
def _communication_errors(world: World) -> Iterator[None]:
    """Report a lost rank as a `UserError`."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"rank {world.rank}: lost the connection to another rank ({reason}); fix the error it reported and "
            f"run the command again (training with --resume)"
        ) from None


# ---- sums -------------------------------------------------------------------------------------------------------


def sum_gradients(model: nn.Module, world: World, *scalars: Tensor) -> tuple[Tensor, ...]:
    """Replace the gradients of every rank by their sum, in one message; returns the scalars, summed as well.

    A rank without rows has no gradients of its own, and gets the sum of the others.
    """
    if world.size == 1:
        return scalars
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len({parameter.dtype for parameter in parameters}) == 1, "one buffer has one type"
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([tensor.detach().flatten().to(parameters[0].dtype) for tensor in (*gradients, *scalars)])
    with _communication_errors(world):
        dist.all_reduce(flat)
    pieces = torch.split(flat, [tensor.numel() for tensor in (*gradients, *scalars)])
    for parameter, piece in zip(parameters, pieces, strict=False):
        if parameter.grad is None:
            parameter.grad = piece.view_as(parameter)
        else:  # in place: a recorded step adds to these tensors
            parameter.grad.copy_(piece.view_as(parameter))
    return tuple(piece.reshape(()) for piece in pieces[len(parameters) :])


def sum_scalars(world: World, *scalars: Tensor) -> tuple[Tensor, ...]:
    """The sum of each scalar over all ranks."""
    if world.size == 1:
        return scalars
    stacked = torch.stack(scalars).detach()
    with _communication_errors(world):
        dist.all_reduce(stacked)
    return stacked.unbind()


def any_rank(world: World, here: bool) -> bool:
    """Whether `here` is true on any rank; all ranks get the same answer."""
    (count,) = sum_scalars(world, torch.tensor(int(here)))
    return bool(count)


# ---- work -------------------------------------------------------------------------------------------------------


def gather(world: World, work: Callable[[], Result]) -> list[Result]:
    """Run `work` on every rank and return all results in order of rank. A `UserError` on one rank is raised on all."""
    if world.size == 1:
        return [work()]
    outcome: tuple[Any, str | None]
    try:
        outcome = work(), None
    except UserError as error:
        outcome = None, str(error)
    outcomes: list[tuple[Any, str | None]] = [outcome] * world.size
    with _communication_errors(world):
        dist.all_gather_object(outcomes, outcome)
    for _, message in outcomes:
        if message is not None:
            raise UserError(message)
    return [result for result, _ in outcomes]


def together(world: World, work: Callable[[], Result]) -> Result:
    """Run `work` on every rank; each keeps its own result. A `UserError` on one rank is raised on all."""
    own: list[Result] = []
    gather(world, lambda: own.append(work()))
    return own[0]


def lead(world: World, work: Callable[[], Result]) -> Result:
    """Run `work` on the first rank only; the others wait and get its result."""
    results: list[Any] = gather(world, lambda: work() if world.first else None)
    led: Result = results[0]
    return led


def share_stream(
    world: World, items: Iterator[Item], work: Callable[[list[Item]], list[Result]], chunk: int
) -> Iterator[Result]:
    """The results in the order of the items. Each rank reads all items and works on every size-th of each chunk."""
    while True:
        results = gather(world, lambda: work(list(itertools.islice(items, chunk))[world.rank :: world.size]))
        if not results[0]:
            return
        for number in range(sum(map(len, results))):
            yield results[number % world.size][number // world.size]
