"""The queue takes turns, batches what is alike, and is bounded."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import torch

from lath.decoding.results import Hypothesis
from lath.serve.queue import SHARE, Full, Job, Kind, Waiting, pause
from lath.serve.settings import ServeSettings
from lath.serve.worker import BEFORE_RELEASE, LEAST, WARM_UP, Worker


def job(client: str, count: int = 1, word: str = "ba", kind: Kind | None = None) -> Job:
    return Job(client, [word] * count, kind or Kind())


def test_a_long_text_does_not_hold_up_another_client() -> None:
    waiting = Waiting(100)
    long, short = job("a", 1000), job("b")
    waiting.add(long)
    waiting.take(8)
    waiting.add(short)
    assert short in {item.job for item in waiting.take(8)}


def test_a_client_with_many_requests_does_not_hold_up_another() -> None:
    waiting = Waiting(1000)
    for _ in range(300):
        waiting.add(job("a"))
    short = job("b")
    waiting.add(short)
    assert short in {item.job for item in waiting.take(8)}


def test_a_long_text_does_not_hold_up_its_own_client() -> None:
    waiting = Waiting(100)
    short = job("a")
    waiting.add(job("a", 1000))
    waiting.add(short)
    assert short in {item.job for item in waiting.take(8)}


def test_a_request_alone_gets_its_share_of_each_batch() -> None:
    waiting = Waiting(100)
    waiting.add(job("a", 1000))
    assert len(waiting.take(32)) == 32 // SHARE


def test_a_batch_has_similar_lengths_and_one_kind() -> None:
    waiting = Waiting(100)
    for number in range(20):
        waiting.add(job(f"short {number}", word="ba"))
        waiting.add(job(f"long {number}", word="ba " * 50))
        waiting.add(job(f"other {number}", kind=Kind.of({"iterations": 1})))
    while waiting:
        batch = waiting.take(8)
        assert len({item.job.kind for item in batch}) == 1
        assert len({item.text for item in batch}) == 1 or len(batch) < 8 or len(waiting) < 8


def test_every_sentence_is_taken_once_and_every_client_within_a_round() -> None:
    draw = random.Random(1)
    waiting = Waiting(1000)
    jobs = [job(f"client {draw.randrange(9)}", draw.randint(1, 30), "ba " * draw.randint(1, 40)) for _ in range(60)]
    for one in jobs:
        waiting.add(one)
    rounds: list[set[str]] = []
    taken = []
    while waiting:
        batch = waiting.take(6)
        taken += [(item.job, item.place) for item in batch]
        rounds.append({item.job.client for item in batch})
    assert len(taken) == len(set(taken)) == sum(len(one.sentences) for one in jobs)
    assert len(set().union(*rounds[:9])) == 9


def test_no_more_than_the_limit_wait_and_half_of_one_client() -> None:
    waiting = Waiting(4)
    for client in "aabb":
        waiting.add(job(client))
    for client in "abc":
        with pytest.raises(Full):
            waiting.add(job(client))
    waiting.add(job("a"), accepted=True)  # a later part of a request that was accepted


def test_one_client_cannot_fill_the_queue() -> None:
    waiting = Waiting(4)
    for client in "aa":
        waiting.add(job(client))
    with pytest.raises(Full):
        waiting.add(job("a"))
    waiting.add(job("b"))


def test_a_job_that_left_is_forgotten() -> None:
    waiting = Waiting(4)
    one = job("a", 3)
    waiting.add(one)
    waiting.drop(one)
    waiting.drop(one)
    assert not waiting


def test_only_a_busy_server_waits_for_company() -> None:
    assert pause(waiting=1, last=1, since=0.0, longest=0.005) == 0
    assert pause(waiting=8, last=8, since=0.0, longest=0.005) == 0
    assert pause(waiting=2, last=8, since=0.01, longest=0.005) == 0
    assert pause(waiting=2, last=8, since=0.002, longest=0.005) == pytest.approx(0.003)


class Echo:
    """In place of a translator on two threads: gives the text back in capitals, and fails on "bad"."""

    model, device = object(), torch.device("cpu")

    def __init__(self, threads: int = 2) -> None:
        self.threads = threads

    def with_threads(self, threads: int) -> Echo:
        return type(self)(threads)

    def settings(self) -> object:
        return type("Settings", (), {"batch_sentences": 8})

    def warm_up(self, tokens: int) -> None:
        pass

    def translate_sentences(self, sentences: list[str], trace: bool) -> list[Hypothesis]:
        if "bad" in sentences:
            raise ValueError("bad")
        return [Hypothesis(sentence.upper(), 0.0, 1) for sentence in sentences]


@pytest.fixture
def worker() -> Worker:
    return Worker(Echo(), ServeSettings())  # type: ignore[arg-type]


def test_one_text_that_fails_does_not_fail_others_in_its_batch(worker: Worker) -> None:
    jobs = [Job("a", ["one"]), Job("b", ["bad", "two"]), Job("c", ["three", "four"])]
    for one in jobs:
        worker.submit(one)
    worker.start()
    assert [hypothesis.text for hypothesis in jobs[0].done.result(10)] == ["ONE"]
    assert [hypothesis.text for hypothesis in jobs[2].done.result(10)] == ["THREE", "FOUR"]
    with pytest.raises(ValueError):  # noqa: PT011
        jobs[1].done.result(10)
    worker.stop()


def test_stopping_finishes_what_waits(worker: Worker) -> None:
    jobs = [Job("a", ["x"] * 30) for _ in range(20)]
    for one in jobs:
        worker.submit(one)
    worker.start()
    worker.stop()
    assert all(one.done.done() for one in jobs)


def test_a_cancelled_job_is_not_translated(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    plain: Callable[..., list[Hypothesis]] = Echo.translate_sentences
    monkeypatch.setattr(
        Echo, "translate_sentences", lambda self, texts, trace: seen.extend(texts) or plain(self, texts, trace)
    )
    gone, stays = Job("a", ["gone"]), Job("b", ["stays"])
    worker.submit(gone)
    worker.submit(stays)
    worker.cancel(gone)
    worker.start()
    stays.done.result(10)
    worker.stop()
    assert "stays" in seen
    assert "gone" not in seen


def rounds(threads: int, barrier: threading.Barrier | None) -> Worker:
    """A worker whose batches write down (threads, sentences) in `seen`, and meet at the barrier."""

    class Meeting(Echo):
        seen: list[tuple[int, int]] = []  # noqa: RUF012

        def translate_sentences(self, sentences: list[str], trace: bool) -> list[Hypothesis]:
            if sentences != [WARM_UP]:
                self.seen.append((self.threads, len(sentences)))
                if barrier is not None:
                    barrier.wait(10)
            return super().translate_sentences(sentences, trace)

    return Worker(Meeting(threads), ServeSettings())  # type: ignore[arg-type]


def test_under_load_two_batches_run_side_by_side_on_half_of_the_threads() -> None:
    worker = rounds(4, threading.Barrier(2))  # a batch that ran alone would wait for ever
    jobs = [Job(f"client {number}", ["x"]) for number in range(2 * LEAST)]
    for one in jobs:
        worker.submit(one)
    worker.start()
    assert [one.done.result(10)[0].text for one in jobs] == ["X"] * len(jobs)
    worker.stop()
    assert worker.translator.seen == [(2, LEAST), (2, LEAST)]  # type: ignore[attr-defined]


def test_a_sentence_alone_has_all_threads_and_nothing_beside_it() -> None:
    worker, begun, go_on = rounds(2, None), threading.Event(), threading.Event()
    plain = worker._translate
    worker._translate = lambda *given: (begun.set(), go_on.wait(10), plain(*given))[2]
    worker.start()
    assert begun.wait(10)  # warming up
    begun.clear()
    go_on.set()
    assert worker.ready.wait(10)
    go_on.clear()
    first, second = Job("a", ["x"]), Job("b", ["x"])
    worker.submit(first)
    assert begun.wait(10)
    worker.submit(second)
    assert not second.done.done()
    assert worker.queued == 1
    go_on.set()
    second.done.result(10)
    worker.stop()
    assert worker.translator.seen == [(2, 1), (2, 1)]  # type: ignore[attr-defined]


def test_one_thread_does_one_batch_at_a_time() -> None:
    worker = rounds(1, None)
    jobs = [Job(f"client {number}", ["x"]) for number in range(2 * LEAST)]
    for one in jobs:
        worker.submit(one)
    worker.start()
    worker.stop()
    assert worker.translator.seen == [(1, 2 * LEAST)]  # type: ignore[attr-defined]


def test_memory_is_returned_now_and_then(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[None] = []
    monkeypatch.setattr("lath.serve.worker.release_memory", lambda: released.append(None))
    one = Job("a", ["x"] * 10 * BEFORE_RELEASE)
    worker.submit(one)
    worker.start()
    worker.stop()
    assert 8 <= len(released) <= 10
