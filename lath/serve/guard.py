"""What surrounds every request: security headers, metrics, and the report of a defect."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import traceback

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; " \
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"  # fmt: skip
HEADERS = [
    (name.encode(), value.encode())
    for name, value in {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cache-control": "no-store",
    }.items()
]
TOO_LARGE = 413
LINGER_SECONDS = 5
"""How long a client may go on sending what was refused as too large, before the connection is closed."""


class Metrics:
    """What `GET /metrics` reports; it counts, and keeps no text."""

    def __init__(self) -> None:
        """Everything at 0."""
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("lath_requests", "Requests", ["route", "status"], registry=registry)
        self.open = Gauge("lath_open_requests", "Requests that are being answered", registry=registry)
        self.seconds = Histogram("lath_request_seconds", "Seconds of a request", ["route"], registry=registry)
        self.waiting = Gauge("lath_waiting_requests", "Requests in the queue of a model", ["model"], registry=registry)
        self.batch = Histogram(
            "lath_batch_sentences",
            "Sentences of a batch",
            registry=registry,
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 512),
        )
        self.batch_seconds = Histogram("lath_batch_seconds", "Seconds of a batch", registry=registry)
        self.characters = Counter("lath_characters", "Characters to translate", registry=registry)


class Guard:
    """The outermost part of the server."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Around `app`."""
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status, whole = time.perf_counter(), 0, False

        async def received() -> Message:
            nonlocal whole
            message = await receive()
            whole = not message.get("more_body", False)
            return message

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *HEADERS]
                if status == TOO_LARGE:
                    message["headers"].append((b"connection", b"close"))
            elif status == TOO_LARGE:
                # The answer is complete for the client. Closed at once, the connection would be reset before a client
                # that is still sending has read it.
                await send({**message, "more_body": True})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_SECONDS):
                        while not whole:
                            await received()
                message = {"type": "http.response.body"}
            await send(message)

        self.metrics.open.inc()
        try:
            await self.app(scope, received, guarded)
        except Exception as error:  # answered already, without details
            _report(error)
        finally:
            self.metrics.open.dec()
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.requests.labels(route, status).inc()
        self.metrics.seconds.labels(route).observe(time.perf_counter() - begun)


def _report(error: Exception) -> None:
    """A defect on stderr: where it is, and nothing that could hold a text or a key."""
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    where = " < ".join(
        f"{frame.name} ({frame.filename.rpartition('/')[2]}:{frame.lineno})" for frame in reversed(frames)
    )
    print(f"lath: defect: {type(error).__name__} in {where}", file=sys.stderr, flush=True)
