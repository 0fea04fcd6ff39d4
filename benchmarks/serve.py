"""How fast a server answers, whether every answer is right, and what it refuses how soon. On Linux.

    python benchmarks/serve.py de-en demo/tatoeba.test.de --rates 5,10,20,40 --seconds 10
    python benchmarks/serve.py de-en demo/tatoeba.test.de --mixed 20000 --clients 64
    python benchmarks/serve.py de-en demo/tatoeba.test.de --refusals

The first starts `lath serve` on this machine: with micro-batching, with one sentence a batch, and as two processes that
take turns. It prints how soon each was ready, what HTTP adds to a translation (the time that the client sees, less that
of the translator), requests a second of 1 and 32 clients that always ask, and for each offered rate (open loop) the
requests a second that were answered, those refused, and p50, p95 and p99 of the latency in ms. The model may be any
directory, for example an AT 12-1 of `benchmarks/steady_models.py`.

The second mixes short and long texts, lists, HTML and numbers of passes, and prints requests that were lost or wrongly
answered, and the server's memory after a warm-up and at the end. It asks nothing more after `--limit` seconds.

The third prints the ms until a wrong key, a body of 50 MB, malformed JSON, a line of a million characters and invalid
UTF-8 are refused; in between the server must answer.

Each compares every answer with `Translator.translate`, and ends in one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import html
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import lath
from lath.files import read_lines
from lath.translator import Translator

FIRST_PORT = 5600
VARIANTS = {"batches": (1, []), "one by one": (1, ["--max-batch", "1"]), "two processes": (2, ["--threads", "1"])}
"""How many processes, with which options."""
RELEASED = 40
"""Requests, one at a time, within which a server returns the memory of large batches."""
KEY = "right"
HEAD = "POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"

Fields = dict[str, Any]
"""A request."""


class Running(NamedTuple):
    """Servers that are ready."""

    ports: list[int]
    pids: list[int]
    seconds: float
    """From the command to the answer that all are ready."""

    @property
    def megabytes(self) -> float:
        """What they have in memory."""
        pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids)
        return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Answer(NamedTuple):
    """One answer, with the seconds that the client waited and those that the translator took."""

    text: Any
    """None if the server refused."""
    waited: float
    translated: float


@contextlib.contextmanager
def servers(model: str, count: int, options: Sequence[str]) -> Iterator[Running]:
    """So many servers that are ready."""
    ports = list(range(FIRST_PORT, FIRST_PORT + count))
    command = [sys.executable, "-m", "lath", "serve", model, "--max-queue", "100000", *options]
    begun = time.perf_counter()
    processes = [subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL) for port in ports]
    try:
        for port in ports:
            while not _is_ready(port):
                if any(process.poll() is not None for process in processes):
                    sys.exit(f"lath serve has ended; is port {port} free?")
                time.sleep(0.05)
        yield Running(ports, [process.pid for process in processes], time.perf_counter() - begun)
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

    async def ask(self, fields: Fields) -> Answer:
        """Translate."""
        body = json.dumps(fields).encode()
        begun = time.perf_counter()
        self.writer.write(HEAD.format(len(body)).encode() + body)
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


async def closed_loop(
    ports: Sequence[int], asked: Sequence[Fields], clients: int, limit: float = 600
) -> list[Answer | None]:
    """Clients that ask again as soon as they are answered. None is what there was no time to ask."""
    answers: list[Answer | None] = [None] * len(asked)
    waiting, end = iter(range(len(asked))), time.perf_counter() + limit

    async def client(port: int) -> None:
        connection = await connect(port)
        for number in waiting:
            if time.perf_counter() > end:
                break
            try:
                answers[number] = await connection.ask(asked[number])
            except (OSError, EOFError):  # lost
                answers[number], connection = Answer(None, 0.0, 0.0), await connect(port)
        connection.writer.close()

    await asyncio.gather(*(client(port) for port in islice(itertools.cycle(ports), clients)))
    return answers


async def open_loop(ports: Sequence[int], asked: Sequence[Fields], rate: float) -> list[Answer | None]:
    """Requests at random times, so many a second on average, whether or not earlier ones have been answered."""
    draw, at, tasks = random.Random(1), time.perf_counter(), []
    free: dict[int, list[Connection]] = {port: [] for port in ports}

    async def one(fields: Fields, port: int, due: float) -> Answer:
        connection = free[port].pop() if free[port] else await connect(port)
        answer = await connection.ask(fields)
        free[port].append(connection)
        return answer._replace(waited=time.perf_counter() - due)

    for fields, port in zip(asked, itertools.cycle(ports), strict=False):
        at += draw.expovariate(rate)
        await asyncio.sleep(at - time.perf_counter())
        tasks.append(asyncio.create_task(one(fields, port, at)))
    return list(await asyncio.gather(*tasks))


def expected(translator: Translator, fields: Fields) -> Any:
    """What the server must answer."""
    return translator.translate(fields["q"], format=fields.get("format", "text"), iterations=fields["iterations"])


def in_turn(requests: Sequence[Fields], count: int) -> list[Fields]:
    """So many requests."""
    return list(islice(itertools.cycle(requests), count))


# ---- speed --------------------------------------------------------------------------------------------------------


def speeds(options: argparse.Namespace, translator: Translator, lines: Sequence[str], pair: Fields) -> Fields:
    """The table of all servers and loads."""
    requests = [{**pair, "q": line, "iterations": 4} for line in lines]
    right = [expected(translator, fields) for fields in requests]
    print("| server | load | requests/s | refused | wrong | p50 ms | p95 ms | p99 ms |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    rows: list[Fields] = []
    for name in options.servers.split(","):
        count, flags = VARIANTS[name]
        with servers(options.model, count, flags) as running:
            print(f"{name}: ready after {running.seconds:.1f} s", file=sys.stderr)
            asyncio.run(closed_loop(running.ports, in_turn(requests, 4 * count), count))
            loads = [(f"{n} clients", options.requests, n, 0.0) for n in (1, options.clients)]
            for rate in map(float, filter(None, options.rates.split(","))):
                loads.append((f"{rate:g}/s", max(1, int(rate * options.seconds)), 0, rate))
            for load, number, clients, rate in loads:
                asked, begun = in_turn(requests, number), time.perf_counter()
                ports = running.ports
                run = closed_loop(ports, asked, clients) if clients else open_loop(ports, asked, rate)
                answers = [answer for answer in asyncio.run(run) if answer is not None]
                row = {"server": name, "load": load, "speed": len(answers) / (time.perf_counter() - begun)}
                row["refused"] = len(asked) - sum(answer.text is not None for answer in answers)
                pairs = zip(itertools.cycle(right), answers, strict=False)
                row["wrong"] = sum(answer.text not in (None, text) for text, answer in pairs)
                rows.append(row)
                times = " | ".join(quantiles([answer.waited for answer in answers]))
                print(
                    f"| {name} | {load} | {row['speed']:.1f} | {row['refused']} | {row['wrong']} | {times} |",
                    flush=True,
                )
                if clients == 1:
                    added = sorted(1000 * (answer.waited - answer.translated) for answer in answers)
                    p95 = added[int(0.95 * (len(added) - 1))]
                    print(f"HTTP adds {statistics.median(added):.2f} ms (p50), {p95:.2f} ms (p95)", file=sys.stderr)
    return {"rows": rows}


def quantiles(seconds: Sequence[float]) -> list[str]:
    """p50, p95 and p99 in ms."""
    ordered = sorted(seconds)
    return [f"{1000 * ordered[int(share * (len(ordered) - 1))]:.0f}" for share in (0.5, 0.95, 0.99)]


# ---- right answers and memory ---------------------------------------------------------------------------------------


def mixture(lines: Sequence[str], pair: Fields) -> list[Fields]:
    """Different requests: of ten, seven short texts, a list, an HTML document and a long text."""
    given = itertools.cycle(lines)
    found: list[Fields] = []
    for number in range(len(lines)):
        fields = {**pair, "iterations": (1, 2, 4)[number % 3]}
        match number % 10:
            case 7:
                fields["q"] = list(islice(given, 4))
            case 8:
                first, *rest = (html.escape(line) for line in islice(given, 3))
                fields["q"] = f"<p>{first} <b>{first}</b></p><ul>{''.join(f'<li>{line}' for line in rest)}</ul>"
                fields["format"] = "html"
            case 9:
                fields["q"] = "\n\n".join(" ".join(islice(given, 4)) for _ in range(3))
            case _:
                fields["q"] = next(given)
        found.append(fields)
    return found


def mixed(options: argparse.Namespace, translator: Translator, lines: Sequence[str], pair: Fields) -> Fields:
    """Whether every answer is right, and what stays in memory."""
    requests = mixture(lines, pair)
    right = [expected(translator, fields) for fields in requests]
    order = random.Random(1).choices(range(len(requests)), k=options.mixed)

    def at_rest() -> float:
        """The least memory while requests come one at a time: a server keeps that of large batches for a while."""
        found = []
        for fields in requests[:RELEASED]:
            asyncio.run(closed_loop(running.ports, [fields], 1))
            found.append(running.megabytes)
        return min(found)

    with servers(options.model, 1, []) as running:
        asyncio.run(closed_loop(running.ports, requests * 2, options.clients))
        before, begun = at_rest(), time.perf_counter()
        asked = [requests[number] for number in order]
        answers = asyncio.run(closed_loop(running.ports, asked, options.clients, options.limit))
        seconds, after = time.perf_counter() - begun, at_rest()
    pairs = [(answer.text, right[number]) for number, answer in zip(order, answers, strict=True) if answer is not None]
    lost = sum(text is None for text, _ in pairs)
    wrong = sum(text not in (None, known) for text, known in pairs)
    print("| requests | different | clients | seconds | lost | wrong | MB after warm-up | MB at the end |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    counts = f"{len(pairs)} | {len(requests)} | {options.clients} | {seconds:.0f} | {lost} | {wrong}"
    print(f"| {counts} | {before:.0f} | {after:.0f} |")
    return {"requests": len(pairs), "lost": lost, "wrong": wrong, "before_mb": before, "after_mb": after}


# ---- refusals -------------------------------------------------------------------------------------------------------


def refusals(options: argparse.Namespace, translator: Translator, lines: Sequence[str], pair: Fields) -> Fields:
    """How soon what is wrong is refused."""
    fields = {**pair, "q": lines[0], "iterations": 4, "api_key": KEY}
    right, good = expected(translator, fields), json.dumps(fields).encode()
    large = b" " * 50_000_000
    cases = {
        "a wrong key": (json.dumps({**fields, "api_key": "wrong"}).encode(), 403, False),
        "50 MB, reading while sending": (large, 413, True),
        "50 MB, reading when all is sent": (large, 413, False),
        "malformed JSON": (good[:-1], 400, False),
        "a line of a million characters": (json.dumps({**fields, "q": "a" * 1_000_000}).encode(), 400, False),
        "invalid UTF-8": (good.replace(KEY.encode(), b"\xff"), 400, False),
    }
    rows: list[Fields] = []
    print("| request | status | ms (median of 5) | ms (most) |")
    print("|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text(f"{KEY}\n", encoding="utf-8")
        with servers(options.model, 1, ["--api-key-file", str(keys)]) as running:
            for name, (body, status, beside) in cases.items():
                times = []
                for _ in range(5):
                    given, _answer, seconds = post(running.ports[0], body, beside)
                    served, answer, _seconds = post(running.ports[0], good)
                    assert (given, served) == (status, 200), (name, given, served)
                    assert json.loads(answer)["translatedText"] == right
                    times.append(1000 * seconds)
                print(f"| {name} | {status} | {statistics.median(times):.1f} | {max(times):.1f} |", flush=True)
                rows.append({"case": name, "ms": statistics.median(times), "most_ms": max(times)})
    return {"refusals": rows}


def post(port: int, body: bytes, beside: bool = False) -> tuple[int, bytes, float]:
    """Status and body of the answer on a connection of its own, and the seconds until its beginning arrived."""
    with socket.create_connection(("127.0.0.1", port)) as client:

        def send() -> None:
            with contextlib.suppress(OSError):  # refused before all was sent
                client.sendall(HEAD.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n").format(len(body)).encode())
                client.sendall(body)

        sender, begun = threading.Thread(target=send), time.perf_counter()
        sender.start()
        if not beside:
            sender.join()
        first = client.recv(1 << 16)
        seconds = time.perf_counter() - begun
        data = first + b"".join(iter(lambda: client.recv(1 << 16), b""))
        sender.join()
    return int(data.split()[1]), data.partition(b"\r\n\r\n")[2], seconds


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description="Measure a server on this machine.")
    parser.add_argument("model")
    parser.add_argument("source", type=Path)
    parser.add_argument("--rates", default="5,10,20", help="requests a second, or nothing")
    parser.add_argument("--seconds", type=float, default=10, help="of each rate")
    parser.add_argument("--requests", type=int, default=200, help="of the rows with 1 and 32 clients; different ones")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--servers", default=",".join(VARIANTS), help="rows to measure")
    parser.add_argument("--mixed", type=int, default=0, metavar="N", help="so many mixed requests instead")
    parser.add_argument("--limit", type=float, default=720, help="seconds after which nothing more is asked")
    parser.add_argument("--refusals", action="store_true", help="what is refused instead")
    options = parser.parse_args()
    translator = lath.load(options.model, threads=1)
    lines = list(islice(read_lines(options.source), options.requests))
    pair = {"source": translator.info.source_language, "target": translator.info.target_language}
    measure = mixed if options.mixed else refusals if options.refusals else speeds
    print(json.dumps(measure(options, translator, lines, pair)))


if __name__ == "__main__":
    main()
