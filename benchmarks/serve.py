"""How fast a server answers: one client, many clients, and requests that arrive at their own times (open loop).

    python benchmarks/serve.py de-en demo/tatoeba.test.de --rates 5,10,20,40 --seconds 10

Starts `lath serve` on this machine: with micro-batching, with one sentence a batch, and as two processes that take
turns. Prints what HTTP adds to a translation (p50 and p95 in ms: the time that the client sees, less that of the
translator), requests a second of 1 and 32 clients that always ask, and for each offered rate the requests a second
that were answered, those refused, and p50, p95 and p99 of the latency in ms; then one line of JSON. Every answer is
compared with `Translator.translate`; the number of wrong ones is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import lath
from lath.files import read_lines

FIRST_PORT = 5600
VARIANTS = {"batches": (1, []), "one by one": (1, ["--max-batch", "1"]), "two processes": (2, ["--threads", "1"])}
"""How many processes, with which options."""


class Answer(NamedTuple):
    """One answer, with the seconds that the client waited and those that the translator took."""

    text: str | None
    waited: float
    translated: float


@contextlib.contextmanager
def servers(model: str, count: int, options: Sequence[str]) -> Iterator[list[int]]:
    """So many servers that are ready; their ports."""
    ports = list(range(FIRST_PORT, FIRST_PORT + count))
    command = [sys.executable, "-m", "lath", "serve", model, "--max-queue", "100000", *options]
    processes = [subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL) for port in ports]
    try:
        for port in ports:
            while not _is_ready(port):
                if any(process.poll() is not None for process in processes):
                    sys.exit(f"lath serve has ended; is port {port} free?")
                time.sleep(0.05)
        yield ports
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def _is_ready(port: int) -> bool:
    with contextlib.suppress(OSError):
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready").status == 200)
    return False


class Connection:
    """A connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, text: str, languages: tuple[str, str]) -> Answer:
        """Translate one text; the answer's text is None if the server refused."""
        asked = {"q": text, "source": languages[0], "target": languages[1], "iterations": 4}
        body = json.dumps(asked).encode()
        head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        begun = time.perf_counter()
        self.writer.write(head.encode() + b"\r\n\r\n" + body)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        length = next(int(line.split()[1]) for line in lines if line.startswith("content-length"))
        answer = json.loads(await self.reader.readexactly(length))
        waited = time.perf_counter() - begun
        return Answer(
            answer.get("translatedText"), waited, answer.get("lath", {}).get("ms", {}).get("translate", 0) / 1000
        )


async def connect(port: int) -> Connection:
    """A new connection."""
    return Connection(*await asyncio.open_connection("127.0.0.1", port))


async def closed_loop(ports: list[int], texts: list[str], languages: tuple[str, str], clients: int) -> list[Answer]:
    """Clients that ask again as soon as they are answered."""
    answers: dict[int, Answer] = {}
    waiting = iter(range(len(texts)))

    async def client(port: int) -> None:
        connection = await connect(port)
        for number in waiting:
            answers[number] = await connection.ask(texts[number], languages)
        connection.writer.close()

    await asyncio.gather(*(client(port) for port in islice(itertools.cycle(ports), clients)))
    return [answers[number] for number in range(len(texts))]


async def open_loop(ports: list[int], texts: list[str], languages: tuple[str, str], rate: float) -> list[Answer]:
    """Requests at random times, so many a second on average, whether or not earlier ones have been answered."""
    draw, at, tasks = random.Random(1), time.perf_counter(), []
    free: dict[int, list[Connection]] = {port: [] for port in ports}

    async def one(text: str, port: int, due: float) -> Answer:
        connection = free[port].pop() if free[port] else await connect(port)
        answer = await connection.ask(text, languages)
        free[port].append(connection)
        return answer._replace(waited=time.perf_counter() - due)

    for text, port in zip(texts, itertools.cycle(ports), strict=False):
        at += draw.expovariate(rate)
        await asyncio.sleep(at - time.perf_counter())
        tasks.append(asyncio.create_task(one(text, port, at)))
    return await asyncio.gather(*tasks)


def quantiles(seconds: Sequence[float]) -> list[str]:
    """p50, p95 and p99 in ms."""
    ordered = sorted(seconds)
    return [f"{1000 * ordered[int(share * (len(ordered) - 1))]:.0f}" for share in (0.5, 0.95, 0.99)]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Measure a server on this machine.")
    parser.add_argument("model")
    parser.add_argument("source", type=Path)
    parser.add_argument("--rates", default="5,10,20")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--requests", type=int, default=200, help="of the rows with 1 and 32 clients")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--servers", default=",".join(VARIANTS), help="rows to measure")
    arguments = parser.parse_args()
    translator = lath.load(arguments.model, threads=1)
    languages = translator.info.source_language, translator.info.target_language
    lines = list(islice(read_lines(arguments.source), arguments.requests))
    right = {line: translator.translate(line, iterations=4) for line in lines}

    def texts(count: int) -> list[str]:
        return list(islice(itertools.cycle(lines), count))

    def wrong(asked: list[str], answers: list[Answer]) -> int:
        return sum(a.text is not None and a.text != right[text] for text, a in zip(asked, answers, strict=True))

    print("| server | load | requests/s | refused | wrong | p50 ms | p95 ms | p99 ms |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    rows = []
    for name in arguments.servers.split(","):
        count, options = VARIANTS[name]
        with servers(arguments.model, count, options) as ports:
            asyncio.run(closed_loop(ports, texts(4 * count), languages, count))
            loads = [(f"{n} clients", texts(arguments.requests), n, 0.0) for n in (1, arguments.clients)]
            for rate in map(float, arguments.rates.split(",")):
                loads.append((f"{rate:g}/s", texts(max(1, int(rate * arguments.seconds))), 0, rate))
            for load, asked, clients, rate in loads:
                begun = time.perf_counter()
                run = (
                    closed_loop(ports, asked, languages, clients)
                    if clients
                    else open_loop(ports, asked, languages, rate)
                )
                answers = asyncio.run(run)
                speed = len(answers) / (time.perf_counter() - begun)
                refused = sum(answer.text is None for answer in answers)
                mistakes = wrong(asked, answers)
                times = " | ".join(quantiles([answer.waited for answer in answers]))
                print(f"| {name} | {load} | {speed:.1f} | {refused} | {mistakes} | {times} |", flush=True)
                rows.append({"server": name, "load": load, "speed": speed, "refused": refused, "wrong": mistakes})
                if clients == 1:
                    added = sorted(1000 * (answer.waited - answer.translated) for answer in answers)
                    p95 = added[int(0.95 * (len(added) - 1))]
                    print(f"HTTP adds {statistics.median(added):.2f} ms (p50), {p95:.2f} ms (p95)", file=sys.stderr)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
