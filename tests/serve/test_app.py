"""The API in one process: answers, errors, limits."""

from __future__ import annotations

import base64
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Translators

pytest.importorskip("fastapi", reason="the extra serve is not installed")
from serving import ASK, PAIR, client_of, serving
from starlette.testclient import TestClient

from lath.serve.app import Server, make_app
from lath.serve.guard import Metrics
from lath.serve.limits import Keys
from lath.serve.settings import ServeSettings
from lath.serve.worker import Worker
from lath.translator import Translator, load

TEXT = "ba ko. Mi tu!\n\n- re sa\n- lo 12,50 EUR\n"
HTML = "<p>ba <b>ko</b> mi</p><ul><li>re sa</ul>"


@pytest.fixture(scope="module")
def translator(wild: Translators) -> Translator:
    return wild("LAT")


@pytest.fixture(scope="module")
def server(translator: Translator) -> Iterator[Server]:
    with serving(translator) as made:
        yield made


@pytest.fixture(scope="module")
def client(server: Server) -> TestClient:
    return client_of(server)


def translated(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["translatedText"]


def test_the_answer_is_that_of_translate_however_it_is_asked_for(client: TestClient, translator: Translator) -> None:
    expected = translator.translate(TEXT)
    fields = {**ASK, "q": TEXT}
    assert translated(client.post("/translate", json=fields)) == expected
    assert translated(client.post("/translate", data=fields)) == expected
    assert translated(client.post("/translate", data=fields, files={"x": ("", b"")})) == expected
    assert translated(client.post("/translate", json={**ASK, "q": [TEXT, "", "ba"]})) == [
        expected, "", translator.translate("ba"),
    ]  # fmt: skip
    assert translated(client.post("/translate", data={**ASK, "q": ["ba", "ko"]})) == [
        translator.translate(text) for text in ("ba", "ko")
    ]


def test_html_and_options(client: TestClient, translator: Translator) -> None:
    html = {**ASK, "q": HTML, "format": "html"}
    assert translated(client.post("/translate", json=html)) == translator.translate(HTML, format="html")
    once = {**ASK, "q": TEXT, "iterations": 1}
    assert translated(client.post("/translate", json=once)) == translator.translate(TEXT, iterations=1)


def test_a_verifier_checks_as_it_is_asked_to(toy_pair: Path) -> None:
    pair = load(toy_pair, "cpu")
    with serving(pair) as server:
        client = client_of(server)
        assert client.get("/frontend/settings").json()["verify"] == {"xx-yy": "relaxed"}
        assert translated(client.post("/translate", json={**ASK, "q": TEXT})) == pair.translate(TEXT)
        for verify in ("", "rerank", "relaxed", "exact"):
            asked = {**ASK, "q": TEXT, "verify": verify, "alternatives": 1}
            answer = client.post("/translate", json=asked).json()
            assert answer == {**client.post("/translate", data=asked).json(), "lath": answer["lath"]}
            assert answer["translatedText"] == pair.translate(TEXT, verify=verify)
            (hypothesis,) = answer["lath"]["hypotheses"]
            assert hypothesis["checks"] == max(one.checks for one in pair.hypotheses([TEXT], verify=verify))
            assert (hypothesis["checks"] > 0) == bool(verify)
        asked = {**ASK, "q": "ba ko mi", "trace": True, "verify": "exact", "iterations": 1}
        (hypothesis,) = client.post("/translate", json=asked).json()["lath"]["hypotheses"]
        unknown = client.post("/translate", json={**ASK, "q": "ba", "verify": "strict"})
    assert (unknown.status_code, unknown.json()["error"][:8]) == (400, "verify: ")
    kept: list[str] = []
    for one in hypothesis["passes"][0]:
        assert one["prefix"] == kept
        accepted, own = one["check"]["accepted"], one["check"]["correction"]
        kept = [*kept, *(token["t"] for token in one["output"][1 : 1 + accepted]), *([own] if own else [])]
    assert len(kept) >= len(hypothesis["passes"][0]) > 1
    assert hypothesis["text"] == pair.translate("ba ko mi", verify="exact", iterations=1) != ""


def test_nothing_verifies_without_a_verifier(client: TestClient, translator: Translator) -> None:
    refused = client.post("/translate", json={**ASK, "q": "ba", "verify": "exact"})
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("verify: nothing checks xx to yy here; leave it out, or serve a model")
    assert translated(client.post("/translate", json={**ASK, "q": "ba", "verify": ""})) == translator.translate("ba")
    assert client.get("/frontend/settings").json()["verify"] == {}


def test_alternatives_differ_from_the_translation(client: TestClient) -> None:
    found = client.post("/translate", json={**ASK, "q": ["ba ko mi re sa lo ni", "ba"], "alternatives": 3}).json()
    for first, others in zip(found["translatedText"], found["alternatives"], strict=True):
        assert len({first, *others}) == 1 + len(others) <= 4
    assert sum(map(len, found["alternatives"]))


def test_the_trace_leads_to_the_translation(client: TestClient, translator: Translator) -> None:
    asked = {**ASK, "q": "ba ko mi", "trace": True, "iterations": 3}
    found = client.post("/translate", json=asked).json()
    own = found["lath"]
    assert set(own["ms"]) == {"detect", "split", "queue", "translate", "total"}
    (hypothesis,) = own["hypotheses"]
    assert hypothesis["text"] == found["translatedText"] == translator.translate("ba ko mi", iterations=3)
    (passes,) = hypothesis["passes"]
    assert len(passes) == 3
    assert set(passes[0]["input"]) == {None}
    (traced,) = next(translator.hypotheses(["ba ko mi"], trace=True, iterations=3)).passes
    for shown, kept in zip(passes, traced, strict=True):
        assert [token["t"] for token in shown["output"]] == list(map(translator.target_vocab.token, kept.output))
        assert len(shown["pieces"]) == len(shown["input"])
        for token in shown["output"][1:-1]:
            proposals = [shown["pieces"][position][offset] for position, offset in token["from"]]
            assert {proposal["t"] for proposal in proposals} == {token["t"]}
            assert token["p"] == max(proposal["p"] for proposal in proposals)


@pytest.mark.parametrize("kind", ["CMLM", "AT"])
def test_the_trace_of_other_kinds(trained: Translators, kind: str) -> None:
    with serving(trained(kind)) as server:
        found = client_of(server).post("/translate", json={**ASK, "q": "ba ko", "trace": True}).json()
    passes = found["lath"]["hypotheses"][0]["passes"]
    assert (len(passes) == 1) == (kind == "CMLM")
    for shown in passes[0] if passes else []:
        assert [token["from"] for token in shown["output"]] == [[[n, 0]] for n in range(len(shown["output"]))]


def test_files(client: TestClient, translator: Translator) -> None:
    for name, format, content in (("a.txt", "text", TEXT), ("a.HTML", "html", HTML)):
        found = client.post("/translate_file", data=ASK, files={"file": (name, content.encode())}).json()
        start, data = found["translatedFileUrl"].split(",")
        assert base64.b64decode(data).decode() == translator.translate(content, format=format)
        assert start == f"data:text/{'html' if format == 'html' else 'plain'};charset=utf-8;base64"
    assert client.post("/translate_file", data=ASK, files={"file": ("a.docx", b"x")}).status_code == 400
    assert client.post("/translate_file", data=ASK).status_code == 400


def test_languages_are_detected_and_kept(trained: Translators) -> None:
    settings = ServeSettings()
    worker = Worker(trained("LAT"), settings)
    worker.start()
    client = client_of(Server({("de", "en"): worker}, settings, Keys([]), Metrics()))
    asked = {"q": ["das ist ein Haus", "this is the house"], "source": "auto", "target": "en"}
    found = client.post("/translate", json=asked).json()
    assert [one["language"] for one in found["detectedLanguage"]] == ["de", "en"]
    assert found["translatedText"][1] == "this is the house"
    assert client.post("/detect", data={"q": "das ist ein Haus"}).json()[0]["language"] == "de"
    deepl = client.post("/v2/translate", json={"text": ["this is the house"], "target_lang": "EN-GB"}).json()
    assert deepl == {"translations": [{"detected_source_language": "EN", "text": "this is the house"}]}
    refused = client.post("/translate", json={**asked, "q": "this is the house", "target": "de"})
    assert refused.status_code == 400
    assert "en to de" in refused.json()["error"]
    worker.stop()


def test_what_a_client_asks_first(client: TestClient) -> None:
    assert client.get("/languages").json() == [
        {"code": "xx", "name": "xx", "targets": ["yy"]}, {"code": "yy", "name": "yy", "targets": []},
    ]  # fmt: skip
    assert client.get("/frontend/settings").json()["charLimit"] == ServeSettings.max_characters
    assert client.get("/health").json() == client.get("/health/ready").json() == {"status": "ok"}


def test_a_server_is_live_before_it_is_ready(translator: Translator) -> None:
    worker = Worker(translator, ServeSettings())  # never started
    client = client_of(Server({PAIR: worker}, ServeSettings(), Keys([]), Metrics()))
    assert client.get("/health").status_code == 200
    assert client.get("/health/ready").status_code == 503


JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
PARTS = {"content-type": "multipart/form-data; boundary=x"}
GOOD = json.dumps({**ASK, "q": "ba"})


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (400, JSON, b'{"q": "ba"'),
        (400, JSON, b""),
        (200, JSON, GOOD.replace("ba", "\\ud800 \\u0000").encode()),
        (400, JSON, b"null"),
        (400, JSON, b"[" * 100_000),
        (400, JSON, GOOD.encode() + b"\xff"),
        (400, JSON, GOOD.replace('"ba"', "1" * 5000).encode()),
        (400, JSON, GOOD.replace('"ba"', "[1]").encode()),
        (400, JSON, GOOD.replace('"ba"', "NaN").encode()),
        (400, JSON, GOOD.replace("xx", "zz").encode()),
        (400, JSON, GOOD.replace("yy", "<script>").encode()),
        (400, JSON, GOOD[:-1].encode() + b', "iterations": 0}'),
        (400, JSON, GOOD[:-1].encode() + b', "alternatives": 1000}'),
        (400, JSON, GOOD[:-1].encode() + b', "format": "pdf"}'),
        (400, JSON, GOOD.replace("ba", "ba " * 333_334).encode()),
        (400, JSON, GOOD.replace('"ba"', json.dumps([""] * 100_001)).encode()),
        (400, FORM, b"q=%ff&source=xx&target=yy"),
        (400, FORM, b"&".join([b"a=b"] * 2000)),
        (400, PARTS, b"--y"),
        (400, {"content-type": "multipart/form-data"}, b"--x\r\n"),
        (413, JSON, b" " * 50_000_000),
        (413, JSON, iter([b" " * 1_000_000] * 3)),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, int | dict | bytes) else type(value).__name__,
)
def test_a_bad_request_is_refused_and_the_server_goes_on(
    client: TestClient, status: int, headers: dict[str, str], body: bytes
) -> None:
    answer = client.post("/translate", content=body, headers=headers)
    assert answer.status_code == status
    assert list(answer.json()) == (["error"] if status > 200 else ["translatedText"])
    assert "Traceback" not in answer.text
    assert "/" not in answer.text.replace("GET /", "")
    assert client.post("/translate", content=GOOD, headers=JSON).status_code == 200


def test_unknown_routes_and_methods(client: TestClient) -> None:
    for answer, status in (
        (client.get("/nothing"), 404),
        (client.get("/translate"), 405),
        (client.get("/static/../app.py"), 404),
    ):
        assert answer.status_code == status
        assert list(answer.json()) == ["error"]


def test_a_defect_shows_nothing_and_logs_no_text(
    trained: Translators, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(trained("LAT")) as server:

        def fail(*_: object) -> None:
            raise RuntimeError("secret text")

        monkeypatch.setattr("lath.serve.app.put_together", fail)
        answer = client_of(server).post("/translate", json={**ASK, "q": "secret text"})
    assert answer.status_code == 500
    assert list(answer.json()) == ["error"]
    assert answer.headers["content-security-policy"]
    printed = "".join(capsys.readouterr())
    assert "RuntimeError" in printed
    assert "secret" not in printed + answer.text


def test_keys(translator: Translator, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(translator, keys=("right",)) as server:
        client = client_of(server)
        asked = {**ASK, "q": "ba"}
        for key in ("", "wrong"):
            assert client.post("/translate", json={**asked, "api_key": key}).status_code == 403
            assert client.post("/detect", json={"q": "ba", "api_key": key}).status_code == 403
            assert (
                client.post("/v2/translate", json={"text": "ba", "source_lang": "XX", "target_lang": "yy"}).status_code
                == 403
            )
        assert client.post("/translate", json={**asked, "api_key": "right"}).status_code == 200
        assert client.post("/translate", json=asked, headers={"authorization": "Bearer right"}).status_code == 200
        key = {"authorization": "DeepL-Auth-Key right"}
        deepl = {"text": "ba", "source_lang": "XX", "target_lang": "yy"}
        assert client.post("/v2/translate", json=deepl, headers=key).status_code == 200
        assert client.get("/frontend/settings").json()["keyRequired"]
    assert "right" not in "".join(capsys.readouterr())


def test_rates(translator: Translator) -> None:
    with serving(translator, rate=3) as server:
        client = client_of(server)
        answers = [client.post("/detect", json={"q": "ba"}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert 0 < int(answers[-1].headers["retry-after"]) <= 20


def test_a_full_queue_asks_to_come_again(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(translator, max_queue=2) as server:
        (worker,) = server.workers.values()
        begun, released = threading.Event(), threading.Event()
        plain = worker._translate
        monkeypatch.setattr(worker, "_translate", lambda *given: (begun.set(), released.wait(30), plain(*given))[2])
        client = client_of(server)
        answers: list[int] = []

        def ask() -> None:
            answers.append(client.post("/translate", json={**ASK, "q": "ba"}).status_code)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        threads[0].start()
        assert begun.wait(30)
        threads[1].start()
        while not worker.queued:
            pass
        refused = client.post("/translate", json={**ASK, "q": "ba"})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get("/metrics").text.count('lath_waiting_requests{model="xx-yy"} 1.0') == 1
        released.set()
        for thread in threads:
            thread.join()
        assert answers == [200, 200]


def test_every_answer_has_security_headers(client: TestClient) -> None:
    for path in ("/", "/docs", "/languages", "/nothing", "/static/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


def test_the_page_about_the_api_loads_nothing(client: TestClient) -> None:
    page = client.get("/docs").text
    assert "POST /translate" in page
    assert "iterations" in page
    assert not any(outside in page for outside in ("<script", "<link", "http://", "https://"))


def test_other_origins_only_if_allowed(client: TestClient, server: Server) -> None:
    asked = {"headers": {"origin": "https://example.org"}}
    assert "access-control-allow-origin" not in client.get("/languages", **asked).headers
    other = Server(server.workers, ServeSettings(cors="https://example.org"), Keys([]), Metrics())
    allowed = client_of(other).get("/languages", **asked).headers["access-control-allow-origin"]
    assert allowed == "https://example.org"


def test_metrics_count(translator: Translator) -> None:
    with serving(translator) as server:
        client = client_of(server)
        client.post("/translate", json={**ASK, "q": "ba ko"})
        client.post("/translate", json={})
        lines = client.get("/metrics").text.splitlines()
    assert 'lath_requests_total{route="/translate",status="200"} 1.0' in lines
    assert 'lath_requests_total{route="/translate",status="400"} 1.0' in lines
    assert "lath_characters_total 5.0" in lines


def test_scores_are_finite_or_null(client: TestClient, translator: Translator) -> None:
    found = client.post("/translate", json={**ASK, "q": ["", "   ", "ba"], "trace": True}).json()
    scores = [one["score"] for one in found["lath"]["hypotheses"]]
    assert all(score is None or math.isfinite(score) for score in scores)


def test_the_description_names_every_route(server: Server) -> None:
    api = TestClient(make_app(server)).get("/openapi.json").json()
    assert {"/translate", "/translate_file", "/v2/translate", "/detect", "/languages", "/health", "/metrics"} <= set(
        api["paths"]
    )
