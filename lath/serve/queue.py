"""Which sentences are translated next: the requests that wait for one model. No threads and no clock in here.

Every batch begins with a sentence of the client whose turn it is. It is filled up with sentences of similar length that
want the same settings, from all clients and all their requests in turn, so nobody is held up by another's long text.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from lath.config import DecodeOptions
from lath.decoding.results import Hypothesis

REACH = 4
"""Batches' worth of sentences among which those of similar length are sought."""
SHARE = 4
"""A request has at most this part of a batch, unless that is under `SHARE` sentences."""

Entry = TypeVar("Entry")


class Full(Exception):
    """No more requests can wait."""


class Kind(NamedTuple):
    """What sentences of one batch have in common."""

    options: tuple[tuple[str, object], ...] = ()
    """Decoding settings that differ from the model's, as sorted items of `DecodeOptions`."""
    trace: bool = False

    @classmethod
    def of(cls, options: DecodeOptions, trace: bool = False) -> Kind:
        """The kind of these settings."""
        return cls(tuple(sorted(options.items())), trace)


@dataclass(eq=False)
class Job:
    """The sentences of one request. `results` fill up batch by batch; `done` gets all of them in order."""

    client: str
    sentences: list[str]
    kind: Kind = field(default_factory=Kind)
    waiting: dict[int, str] = field(init=False)
    """The sentences that no batch has taken yet, by place."""
    results: dict[int, Hypothesis] = field(default_factory=dict)
    done: Future[list[Hypothesis]] = field(default_factory=Future)
    begun: float = 0.0
    """When a batch first took a sentence of it."""

    def __post_init__(self) -> None:
        self.waiting = dict(enumerate(self.sentences))


class Item(NamedTuple):
    """One sentence of a batch."""

    job: Job
    place: int

    @property
    def text(self) -> str:
        """The sentence."""
        return self.job.sentences[self.place]


class Waiting:
    """The jobs that wait for one model, by client; the first client and its first job are next."""

    def __init__(self, limit: int) -> None:
        """At most `limit` jobs, and half of them of one client."""
        self.limit = limit
        self._clients: dict[str, dict[Job, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))

    @property
    def sentences(self) -> int:
        """Sentences that no batch has taken yet."""
        return sum(len(job.waiting) for jobs in self._clients.values() for job in jobs)

    def add(self, job: Job, accepted: bool = False) -> None:
        """Let a job wait. Raises `Full` if too many do, unless its request was accepted before."""
        crowded = len(self) >= self.limit or 2 * len(self._clients.get(job.client, ())) >= max(self.limit, 2)
        if crowded and not accepted:
            raise Full
        self._clients.setdefault(job.client, {})[job] = None

    def drop(self, job: Job) -> None:
        """Forget a job, which may have left already."""
        jobs = self._clients.get(job.client, {})
        jobs.pop(job, None)
        if not jobs:
            self._clients.pop(job.client, None)

    def take(self, most: int) -> list[Item]:
        """Remove and return the next batch; something must wait."""
        client, jobs = next(iter(self._clients.items()))
        turn = next(iter(jobs))
        share = max(SHARE, most // SHARE)
        in_turn = _in_turn(
            _in_turn(
                map(functools.partial(Item, job), itertools.islice(job.waiting, share))
                for job in jobs
                if job.kind == turn.kind
            )
            for jobs in self._clients.values()
        )
        near = list(itertools.islice(in_turn, REACH * most))
        batch = sorted(near, key=lambda item: abs(len(item.text) - len(near[0].text)))[:most]
        self._clients[client] = self._clients.pop(client)
        jobs[turn] = jobs.pop(turn)
        for job, place in batch:
            del job.waiting[place]
            if not job.waiting:
                self.drop(job)
        return batch


def _in_turn(rows: Iterable[Iterable[Entry]]) -> Iterator[Entry]:
    """One entry of each row, then the next of each, until all rows are at their ends."""
    running = [iter(row) for row in rows]
    while running:
        still = []
        for row in running:
            for entry in row:
                yield entry
                still.append(row)
                break
        running = still


def pause(waiting: int, last: int, since: float, longest: float) -> float:
    """Seconds that the next batch should wait for company.

    Where the last batch, `since` seconds ago, had more requests than wait now, its clients are likely to ask again at
    once. With one client there is no company to wait for.

    >>> pause(waiting=1, last=1, since=0.0, longest=0.005), pause(waiting=1, last=8, since=0.001, longest=0.005)
    (0.0, 0.004)
    """
    return max(0.0, longest - since) if 1 < last > waiting else 0.0
