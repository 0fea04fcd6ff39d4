"""The routes of the server: LibreTranslate's API, DeepL's shape of it, the page, health and metrics."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import html
import json
import math
import time
import urllib.parse
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import anyio.from_thread
import anyio.to_thread
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from lath import __version__
from lath.config import DecodeOptions
from lath.decoding.results import Hypothesis
from lath.document.html import translate_html
from lath.document.language import identify
from lath.document.sentences import put_together
from lath.errors import one_of
from lath.files import json_line, one_line
from lath.serve.guard import Guard, Metrics
from lath.serve.limits import Keys, Rates
from lath.serve.queue import Full, Job, Kind
from lath.serve.schema import (
    DeepLAnswer,
    DeepLRequest,
    Detected,
    DetectRequest,
    Error,
    FileAnswer,
    FileRequest,
    KnownLanguage,
    TranslateAnswer,
    TranslateRequest,
    Verify,
)
from lath.serve.settings import ServeSettings
from lath.serve.trace import hypothesis_json
from lath.serve.worker import Worker

PAGE = Path(__file__).parent / "page"
AUTO = "auto"
BODY_SECONDS = 30
"""How long a client may take to send a request (408)."""
INLINE_CHARACTERS = 2000
"""Longer texts are laid out beside the event loop."""
CLIENT_GONE = 499
MOST_FIELDS = 1000
RETRY = {"Retry-After": "1"}
DESCRIPTION = (
    "Translation by lath. Requests and answers are those of LibreTranslate, with iterations, verify and trace besides."
)
BODIES = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
FILES = {".txt": ("text", "text/plain"), ".html": ("html", "text/html"), ".htm": ("html", "text/html")}
"""Format and type of the files that can be translated, by ending."""
NAMES = {"cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "fr": "French", "it": "Italian",
         "ja": "Japanese", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian",
         "tr": "Turkish", "uk": "Ukrainian", "zh": "Chinese"}  # fmt: skip

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "not a request that can be answered"},
    403: {"model": Error, "description": "wrong or missing key"},
    408: {"model": Error, "description": "too slow"},
    413: {"model": Error, "description": "too large"},
    429: {"model": Error, "description": "too many requests of one client"},
    503: {"model": Error, "description": "too many requests are waiting"},
}
OTHERS: tuple[DecodeOptions, ...] = tuple(
    {"length_candidates": 1, "extra_length": extra, "beam": beam} for extra, beam in enumerate((1, 2, 3, 4))
)
"""Settings that give other translations."""

Fields = TypeVar("Fields", bound=BaseModel)
Answered = TypeVar("Answered")


@dataclass
class Server:
    """The models of a server by language pair, and its limits."""

    workers: dict[tuple[str, str], Worker]
    settings: ServeSettings
    keys: Keys
    metrics: Metrics
    rates: Rates = field(init=False)

    def __post_init__(self) -> None:
        self.rates = Rates(self.settings.rate)

    @property
    def ready(self) -> bool:
        """Whether every model is warm."""
        return all(worker.ready.is_set() and worker.alive for worker in self.workers.values())

    @property
    def codes(self) -> list[str]:
        """Every language that a model reads or writes."""
        return sorted({code for pair in self.workers for code in pair})

    @property
    def languages(self) -> list[KnownLanguage]:
        """The languages, each with what it can be translated into."""
        targets = {code: sorted(to for source, to in self.workers if source == code) for code in self.codes}
        return [KnownLanguage(code=code, name=NAMES.get(code, code), targets=targets[code]) for code in self.codes]

    def admit(self, request: Request, key: str) -> str:
        """The name of the client, if it may ask: its key, or its address where none are needed."""
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ").removeprefix("DeepL-Auth-Key ")
        owner = self.keys.check(key or bearer) if self.keys else None
        client = owner or (request.client.host if request.client else "")
        if wait := self.rates.wait(client, time.monotonic()):
            raise HTTPException(429, "too many requests; slow down", {"Retry-After": str(wait)})
        if self.keys and owner is None:
            raise HTTPException(403, "wrong or missing api_key")
        return client

    def find(self, source: str, target: str, texts: Sequence[str]) -> tuple[list[Worker | None], list[Detected]]:
        """The model for each text, None where it is in the target language already, and what was detected."""
        detected = self.detect(texts) if source == AUTO else []
        sources = [found.language for found in detected] or [source] * len(texts)
        for code in dict.fromkeys([*sources, target]):
            if code not in self.codes:
                raise HTTPException(400, f"{code!a} is not supported; GET /languages lists what is")
        for code in dict.fromkeys(sources):
            if code != target and (code, target) not in self.workers:
                raise HTTPException(400, f"{code} to {target} is not supported; GET /languages lists what is")
        return [self.workers.get((code, target)) for code in sources], detected

    def detect(self, texts: Sequence[str]) -> list[Detected]:
        """The language of each text, among those of the models."""
        found = identify([text.encode("utf-8", "replace").decode() for text in texts], self.codes)
        return [Detected(language=code, confidence=round(100 * sure, 1)) for code, sure in found]

    def check_size(self, texts: Sequence[str]) -> None:
        """Refuse more than may be translated at once; a blank text counts as one character."""
        most, given = self.settings.max_characters, sum(max(1, len(text)) for text in texts)
        if given > most:
            raise HTTPException(400, f"{given} characters exceed the limit of {most}; send them in parts")
        self.metrics.characters.inc(given)


# ---- reading requests -------------------------------------------------------------------------------------------


class File(NamedTuple):
    """A file that came with a form."""

    name: str
    text: str


async def _read(request: Request, most: int) -> str:
    """The body as text, if it is not too large, not too slow, and UTF-8."""
    too_large = HTTPException(413, f"the request is larger than {most} bytes; send the text in parts")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 15 or int(length) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise HTTPException(408, f"the request took longer than {BODY_SECONDS} seconds to arrive") from None
    except ClientDisconnect:
        raise HTTPException(CLIENT_GONE, "the client has gone") from None
    request._body = bytes(body)  # where Starlette looks before it reads, for request.form()
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "the request is not UTF-8") from None


async def _fields(request: Request, model: type[Fields], most: int) -> tuple[Fields, File | None]:
    """The fields of a JSON or form request, and the file that came with them."""
    text = await _read(request, most)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    file = None
    try:
        if kind == "multipart/form-data":
            async with request.form(max_files=1, max_fields=MOST_FIELDS, max_part_size=most) as form:
                pairs = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
                for upload in form.values():
                    if isinstance(upload, UploadFile):
                        file = File(upload.filename or "", (await upload.read()).decode())
            given: Any = _gathered(pairs)
        elif kind == "application/x-www-form-urlencoded":
            given = _gathered(urllib.parse.parse_qsl(text, True, errors="strict", max_num_fields=MOST_FIELDS))
        else:
            given = json.loads(text)
        return model.model_validate(given), file
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = next(iter(first["loc"]), "request")
        raise HTTPException(400, f"{where}: {first['msg']}") from None
    except (ValueError, RecursionError):
        raise HTTPException(400, f"the request is not valid {'form data' if 'form' in kind else 'JSON'}") from None


def _gathered(pairs: Sequence[tuple[str, str]]) -> dict[str, str | list[str]]:
    """The fields of a form; one that is there several times is a list."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: found if len(found) > 1 else found[0] for name, found in values.items()}


# ---- translating ------------------------------------------------------------------------------------------------


@dataclass
class Ticket:
    """One request on its way through the queues."""

    client: str
    jobs: list[tuple[Worker, Job]] = field(default_factory=list)
    ms: dict[str, float] = field(default_factory=dict)
    """Milliseconds of each step."""
    gone: bool = False

    def cancel(self) -> None:
        """The client has gone: its jobs leave the queues."""
        self.gone = True
        for worker, job in self.jobs:
            worker.cancel(job)

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Count the time of a block as that of a step."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.count(step, time.perf_counter() - begun)

    def count(self, step: str, seconds: float) -> None:
        """Add to the time of a step."""
        self.ms[step] = self.ms.get(step, 0.0) + 1000 * seconds


async def _hypotheses(ticket: Ticket, worker: Worker, texts: Sequence[str], kind: Kind) -> list[Hypothesis]:
    """The hypotheses of whole texts, by way of the model's queue."""
    lay_out = worker.translator.lay_out
    with ticket.timed("split"):
        if sum(map(len, texts)) > INLINE_CHARACTERS:
            laid_out = await anyio.to_thread.run_sync(lambda: list(map(lay_out, texts)))
        else:
            laid_out = list(map(lay_out, texts))
    sentences = [span.text for spans in laid_out for span in spans if span.sentence]
    found: Iterator[Hypothesis] = iter(())
    if sentences and not ticket.gone:
        job = Job(ticket.client, sentences, kind)
        submitted = time.monotonic()
        try:
            worker.submit(job, accepted=bool(ticket.jobs))
        except Full:
            wait = max(1, math.ceil(worker.pace * worker.queued))
            raise HTTPException(
                503, "too many requests are waiting; try again later", {"Retry-After": str(wait)}
            ) from None
        ticket.jobs.append((worker, job))
        hypotheses = await asyncio.wrap_future(job.done)
        found = iter(hypotheses)
        ticket.count("queue", job.begun - submitted)
        ticket.count("translate", time.monotonic() - job.begun)
    elif sentences:
        raise asyncio.CancelledError
    return [put_together(spans, found) for spans in laid_out]


async def _translate(
    ticket: Ticket, workers: Sequence[Worker | None], texts: Sequence[str], kind: Kind, format: str
) -> list[Hypothesis]:
    """The hypothesis of each text by its model; without one it stays as it is. That of HTML has only a text."""
    results = [Hypothesis(text, 0.0, 0, 0) for text in texts]
    for worker in dict.fromkeys(workers):
        if worker is None:
            continue
        places = [place for place, its in enumerate(workers) if its is worker]
        if format == "html":
            for place in places:
                run = functools.partial(_html, ticket, worker, texts[place], kind)
                text = await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
                results[place] = Hypothesis(text, 0.0, 0, 0)
        else:
            found = await _hypotheses(ticket, worker, [texts[place] for place in places], kind)
            for place, hypothesis in zip(places, found, strict=True):
                results[place] = hypothesis
    return results


def _html(ticket: Ticket, worker: Worker, document: str, kind: Kind) -> str:
    """A document, translated in a thread; its texts go through the queue."""

    def translate(texts: list[str]) -> list[str]:
        lines = [text.rstrip("\r\n") for text in texts]
        return [one_line(found.text) for found in anyio.from_thread.run(_hypotheses, ticket, worker, lines, kind)]

    return translate_html(document, translate, worker.translator.lay_out)


async def _alternatives(
    ticket: Ticket,
    workers: Sequence[Worker | None],
    texts: Sequence[str],
    firsts: Sequence[str],
    asked: TranslateRequest,
) -> list[list[str]]:
    """Other translations: those with other lengths, or for AT with narrower beams, as far as they differ."""
    found: list[list[str]] = [[] for _ in texts]
    checked: DecodeOptions = {} if asked.verify is None else {"verify": asked.verify}
    for options in OTHERS:
        if all(len(others) >= asked.alternatives for others in found):
            break
        others = await _translate(ticket, workers, texts, Kind.of({**options, **checked}), asked.format)
        for text, known, first in zip((other.text for other in others), found, firsts, strict=True):
            if len(known) < asked.alternatives and text not in [first, *known]:
                known.append(text)
    return found


async def _unless_gone(request: Request, ticket: Ticket, work: Coroutine[Any, Any, Answered]) -> Answered:
    """The result of the work, which ends when the client goes away."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
    finally:
        gone.cancel()
        if not task.done():
            ticket.cancel()
            task.cancel()
    raise HTTPException(CLIENT_GONE, "the client has gone")


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# ---- routes -----------------------------------------------------------------------------------------------------


def make_app(server: Server) -> ASGIApp:
    """The application: routes within the guard."""
    app = FastAPI(title="lath", version=__version__, docs_url=None, redoc_url=None, description=DESCRIPTION)
    app.add_exception_handler(StarletteHTTPException, _refuse)
    app.add_exception_handler(Exception, _fail)
    _add_translation(app, server)
    _add_shapes(app, server)
    _add_information(app, server)
    app.mount("/static", StaticFiles(directory=PAGE, check_dir=False))
    if server.settings.cors:
        app.add_middleware(
            CORSMiddleware, allow_origins=[server.settings.cors], allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return Guard(app, server.metrics)


async def _refuse(request: Request, error: Exception) -> Response:
    """Every error has the same shape."""
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _fail(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the server has failed on this request"}, 500)


def _takes(model: type[BaseModel], *kinds: str, file: bool = False) -> dict[str, Any]:
    """The description of a request that is read here and not by FastAPI, because it may be JSON or a form."""
    schema = model.model_json_schema()
    if file:
        schema["properties"]["file"] = {"type": "string", "format": "binary"}
        schema["required"] = [*schema.get("required", []), "file"]
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


def _add_translation(app: FastAPI, server: Server) -> None:
    most = server.settings.max_body

    @app.post(
        "/translate", response_model=TranslateAnswer, responses=ERRORS, openapi_extra=_takes(TranslateRequest, *BODIES)
    )
    async def translate(request: Request) -> Response:
        """Translate a text or a list of texts."""
        asked, _ = await _fields(request, TranslateRequest, most)
        ticket = Ticket(server.admit(request, asked.api_key))
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        server.check_size(texts)
        with ticket.timed("detect"):
            workers, detected = server.find(asked.source, asked.target, texts)
        options: DecodeOptions = {} if asked.iterations is None else {"iterations": asked.iterations}
        if asked.verify is not None:
            options["verify"] = _checkable(asked.verify, workers)
        kind = Kind.of(options, asked.trace and asked.format == "text")

        async def work() -> tuple[list[Hypothesis], list[list[str]]]:
            found = await _translate(ticket, workers, texts, kind, asked.format)
            firsts = [hypothesis.text for hypothesis in found]
            return found, await _alternatives(ticket, workers, texts, firsts, asked)

        with ticket.timed("total"):
            found, others = await _unless_gone(request, ticket, work())

        def shaped(values: Sequence[Any]) -> Any:
            return values[0] if isinstance(asked.q, str) else values

        answer = {"translatedText": shaped([hypothesis.text for hypothesis in found])}
        if detected:
            answer["detectedLanguage"] = shaped([one.model_dump() for one in detected])
        if asked.alternatives:
            answer["alternatives"] = shaped(others)
        if asked.trace or options:
            listed = zip(workers, found, strict=True) if asked.format == "text" else ()
            answer["lath"] = {
                "ms": {step: round(ms, 2) for step, ms in ticket.ms.items()},
                "hypotheses": [_explained(worker, hypothesis) for worker, hypothesis in listed],
            }
        return _json(answer)


def _add_shapes(app: FastAPI, server: Server) -> None:
    most = server.settings.max_body

    @app.post("/translate_file", response_model=FileAnswer, responses=ERRORS,
              openapi_extra=_takes(FileRequest, "multipart/form-data", file=True))  # fmt: skip
    async def translate_file(request: Request) -> Response:
        """Translate a .txt or .html file."""
        asked, file = await _fields(request, FileRequest, most)
        ticket = Ticket(server.admit(request, asked.api_key))
        name = file.name.lower() if file else ""
        ending = next((ending for ending in FILES if name.endswith(ending)), None)
        if file is None or ending is None:
            raise HTTPException(400, f"send a file whose name ends in {one_of(list(FILES))}")
        server.check_size([file.text])
        format, media = FILES[ending]
        workers, _ = server.find(asked.source, asked.target, [file.text])
        found = await _unless_gone(request, ticket, _translate(ticket, workers, [file.text], Kind(), format))
        content = base64.b64encode(found[0].text.encode()).decode()
        return _json({"translatedFileUrl": f"data:{media};charset=utf-8;base64,{content}"})

    @app.post(
        "/v2/translate", response_model=DeepLAnswer, responses=ERRORS, openapi_extra=_takes(DeepLRequest, *BODIES)
    )
    async def deepl(request: Request) -> Response:
        """Translate as DeepL's API does."""
        asked, _ = await _fields(request, DeepLRequest, most)
        ticket = Ticket(server.admit(request, asked.auth_key))
        texts = [asked.text] if isinstance(asked.text, str) else asked.text
        server.check_size(texts)
        target = asked.target_lang.partition("-")[0].lower()
        workers, detected = server.find(asked.source_lang.lower(), target, texts)
        format = asked.tag_handling or "text"
        found = await _unless_gone(request, ticket, _translate(ticket, workers, texts, Kind(), format))
        codes = [one.language for one in detected] or [asked.source_lang] * len(texts)
        rows = zip(codes, found, strict=True)
        return _json({"translations": [{"detected_source_language": c.upper(), "text": h.text} for c, h in rows]})

    @app.post("/detect", response_model=list[Detected], responses=ERRORS, openapi_extra=_takes(DetectRequest, *BODIES))
    async def detect(request: Request) -> Response:
        """The language of a text, among those of the models; for a list of texts, of each."""
        asked, _ = await _fields(request, DetectRequest, most)
        server.admit(request, asked.api_key)
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        server.check_size(texts)
        return _json([found.model_dump() for found in server.detect(texts)])


def _checkable(verify: Verify, workers: Sequence[Worker | None]) -> Verify:
    """A mode that every model of a request can be asked for."""
    for worker in workers:
        if verify and worker is not None and not worker.verifies:
            info = worker.translator.info
            raise HTTPException(
                400,
                f"verify: nothing checks {info.source_language} to {info.target_language} here; leave it out, "
                f"or serve a model with a verifier",
            )
    return verify


def _explained(worker: Worker | None, hypothesis: Hypothesis) -> dict[str, Any]:
    if worker is None:
        return {"text": hypothesis.text, "score": 0.0, "doubtful": False, "copied": True, "checks": 0, "passes": []}
    return hypothesis_json(hypothesis, worker.translator.target_vocab)


def _json(value: Any) -> Response:
    return Response(json_line(value), media_type="application/json")


def _add_information(app: FastAPI, server: Server) -> None:
    @app.get("/languages")
    async def languages() -> list[KnownLanguage]:
        """What can be translated."""
        return server.languages

    @app.get("/frontend/settings")
    async def frontend_settings() -> dict[str, Any]:
        """What a page needs to know."""
        source, target = next(iter(server.workers))
        return {
            "apiKeys": bool(server.keys),
            "keyRequired": bool(server.keys),
            "charLimit": server.settings.max_characters,
            "filesTranslation": True,
            "supportedFilesFormat": list(FILES),
            "frontendTimeout": 500,
            "suggestions": False,
            "verify": {
                "-".join(pair): worker.translator.settings().verify
                for pair, worker in server.workers.items()
                if worker.verifies
            },
            "language": {
                "source": {"code": source, "name": NAMES.get(source, source)},
                "target": {"code": target, "name": NAMES.get(target, target)},
            },
        }

    @app.get("/health")
    @app.get("/health/live", include_in_schema=False)
    async def live() -> dict[str, str]:
        """Whether the server runs."""
        return {"status": "ok"}

    @app.get("/health/ready", responses={503: {"model": Error}})
    async def ready() -> Response:
        """Whether every model is warm."""
        return _json({"status": "ok"}) if server.ready else JSONResponse({"error": "warming up"}, 503, RETRY)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counts and times for Prometheus."""
        for pair, worker in server.workers.items():
            server.metrics.waiting.labels("-".join(pair)).set(worker.queued)
        return Response(generate_latest(server.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(_docs_page(app.openapi()))

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html")


def _docs_page(api: dict[str, Any]) -> str:
    """The OpenAPI description for people, without a script."""
    parts = [f"<h1>{html.escape(api['info']['title'])} {html.escape(api['info']['version'])}</h1>"]
    parts.append(f"<p>{html.escape(DESCRIPTION)} As JSON: <a href='openapi.json'>openapi.json</a></p>")
    for path, methods in api["paths"].items():
        for method, described in methods.items():
            parts.append(f"<h2>{method.upper()} {html.escape(path)}</h2><p>{html.escape(described['description'])}</p>")
            for kind, body in described.get("requestBody", {}).get("content", {}).items():
                schema = body["schema"]
                names = (f"{name}{'' if name in schema['required'] else '?'}" for name in schema["properties"])
                parts.append(f"<p>{html.escape(kind)}: <code>{html.escape(', '.join(names))}</code></p>")
    return f"<!doctype html><html lang='en'><meta charset='utf-8'><title>lath API</title>{''.join(parts)}</html>"
