"""The threads that translate with one model: they form batches of what waits, and hand out the results.

A sentence that nobody else waits with is translated on all threads of the CPU. Under load two batches are translated
side by side, each on half of them: that keeps two cores busier than one batch on both.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import InvalidStateError
from typing import cast

import torch

from lath.config import DecodeOptions
from lath.decoding.results import Hypothesis
from lath.devices import release_memory
from lath.serve.queue import Item, Job, Kind, Waiting, pause
from lath.serve.settings import ServeSettings
from lath.translator import Translator

SIDE_BY_SIDE = 2
"""Batches at a time on a CPU. More would wait for each other: part of each is Python, which runs on one thread only."""
LEAST = 4
"""So few sentences stay in one batch: two smaller ones side by side would take as long."""
BEFORE_RELEASE = 32
"""Sentences of a thread between two calls of `release_memory`."""
WARM_UP = "Ja."
WARM_TOKENS = 64
"""On a GPU, sentences of up to so many tokens are recorded before the server is ready."""

Translate = Callable[[list[str], Kind], list[Hypothesis]]
Observe = Callable[[Sequence[Item], float], None]


def translating(translator: Translator) -> Translate:
    """How sentences of one kind are translated."""
    return lambda sentences, kind: translator.translate_sentences(
        sentences, kind.trace, **cast(DecodeOptions, dict(kind.options))
    )


class Worker:
    """One model, the jobs that wait for it, and the threads that do them."""

    def __init__(self, translator: Translator, settings: ServeSettings, observe: Observe = lambda *_: None) -> None:
        """`observe` is called after each batch, with the seconds it took."""
        self.translator, self.waiting, self._observe = translator, Waiting(settings.max_queue), observe
        self._translate = self._translate_beside = translating(translator)
        self._most = settings.max_batch or translator.settings().batch_sentences
        self._longest_pause = settings.max_wait_ms / 1000
        self._changed = threading.Condition()
        self._stopping = False
        self._busy = 0
        """Batches that are being translated."""
        self._alone = False
        """Whether one is being translated on all threads of the CPU."""
        self._thread = threading.Thread(target=self._run, name="translate", daemon=True)
        self._helper: threading.Thread | None = None
        threads = translator.threads or torch.get_num_threads()
        if translator.model is not None and translator.device.type == "cpu" and threads >= SIDE_BY_SIDE:
            self._translate_beside = translating(translator.with_threads(threads // SIDE_BY_SIDE))
            self._helper = threading.Thread(target=self._work, args=(True,), name="translate beside", daemon=True)
        self.ready = threading.Event()
        """Set when the model is warm."""
        self.pace = 0.0
        """Seconds that a job has taken lately, on average."""

    @property
    def alive(self) -> bool:
        """Whether the threads run, once `ready` is set."""
        return self._thread.is_alive() and (self._helper is None or self._helper.is_alive())

    @property
    def verifies(self) -> bool:
        """Whether the model has a verifier."""
        return self.translator.verifier is not None

    @property
    def queued(self) -> int:
        """Requests that wait."""
        with self._changed:
            return len(self.waiting)

    def start(self) -> None:
        """Warm up, then translate what comes."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what waits, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def submit(self, job: Job, accepted: bool = False) -> None:
        """Let a job wait for its turn, as `Waiting.add` does; `job.done` gets its hypotheses."""
        with self._changed:
            self.waiting.add(job, accepted)
            self._changed.notify_all()

    def cancel(self, job: Job) -> None:
        """Give up a job; what is being translated of it is thrown away."""
        with self._changed:
            self.waiting.drop(job)
        job.done.cancel()

    def _run(self) -> None:
        self.translator.warm_up(WARM_TOKENS)
        self._translate([WARM_UP], Kind())
        if self._helper is not None:
            self._helper.start()
        self.ready.set()
        self._work()
        if self._helper is not None:
            self._helper.join()

    def _work(self, helps: bool = False) -> None:
        """Translate until the worker is stopped and all is done; the helper only beside another batch."""
        last_jobs, ended, unreleased = 0, 0.0, 0
        while batch := self._next_batch(helps, last_jobs, ended):
            begun = time.monotonic()
            for item in batch:
                item.job.begun = item.job.begun or begun
            self._do(batch)
            last_jobs, ended = len({item.job for item in batch}), time.monotonic()
            with self._changed:
                self._busy, self._alone = self._busy - 1, False
                self.pace = 0.9 * self.pace + 0.1 * (ended - begun) / last_jobs
                self._changed.notify_all()
            self._observe(batch, ended - begun)
            unreleased += len(batch)
            if unreleased >= BEFORE_RELEASE:
                release_memory()
                unreleased = 0

    def _next_batch(self, helps: bool, last_jobs: int, ended: float) -> list[Item]:
        """The next batch, when there is one; empty when the worker is stopped and all is done."""
        with self._changed:
            while True:
                if not self.waiting:
                    if self._stopping:
                        return []
                    self._changed.wait()
                elif self._alone or (helps and not self._busy):
                    self._changed.wait()
                elif wait := pause(len(self.waiting), last_jobs, time.monotonic() - ended, self._longest_pause):
                    self._changed.wait(wait)
                else:
                    return self._take()

    def _take(self) -> list[Item]:
        """A batch of what waits; half of it where another thread is free to take the rest."""
        free = 1 if self._helper is None else SIDE_BY_SIDE - self._busy
        batch = self.waiting.take(min(self._most, max(LEAST, math.ceil(self.waiting.sentences / free))))
        self._alone = self._helper is None or (len(batch) == 1 and not self.waiting and not self._busy)
        self._busy += 1
        self._changed.notify_all()
        return batch

    def _do(self, batch: list[Item]) -> None:
        """Translate a batch and finish the jobs that are complete."""
        jobs = {item.job for item in batch}
        translate = self._translate if self._alone else self._translate_beside
        try:
            found = translate([item.text for item in batch], batch[0].job.kind)
        except Exception as error:
            if len(jobs) == 1:
                with self._changed:
                    self.waiting.drop(batch[0].job)
                _settle(batch[0].job, error)
            else:  # one request's text must not be another's failure
                for job in jobs:
                    self._do([item for item in batch if item.job is job])
            return
        for (job, place), hypothesis in zip(batch, found, strict=True):
            job.results[place] = hypothesis
        for job in jobs:
            if len(job.results) == len(job.sentences):
                _settle(job, [job.results[place] for place in range(len(job.sentences))])


def _settle(job: Job, outcome: list[Hypothesis] | Exception) -> None:
    try:
        if isinstance(outcome, Exception):
            job.done.set_exception(outcome)
        else:
            job.done.set_result(outcome)
    except InvalidStateError:  # cancelled meanwhile
        pass
