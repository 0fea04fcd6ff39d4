"""The server keeps what its OpenAPI description promises (schemathesis), and no body breaks it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from conftest import Translators

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("schemathesis", reason="schemathesis is not installed")
import schemathesis
from hypothesis import HealthCheck, given, settings
from serving import ASK, client_of, serving

from lath.serve.app import make_app
from lath.translator import load

ROUTES = ["/translate", "/detect", "/v2/translate", "/translate_file"]
KINDS = [
    "application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=b",
    "text/plain",
    "",
    "é",
]


@pytest.mark.parametrize("paired", [False, True])
def test_the_description_is_kept(wild: Translators, toy_pair: Path, paired: bool) -> None:
    with serving(load(toy_pair, "cpu") if paired else wild("LAT")) as server:
        api = schemathesis.openapi.from_asgi("/openapi.json", make_app(server))
        operations = [found.ok() for found in api.get_all_operations()]
        # Which languages there are depends on the models, and is no part of the description.
        accepted = schemathesis.checks.CHECKS.get_one("positive_data_acceptance")
        for operation in operations:

            @settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
            @given(operation.as_strategy())
            def keeps_it(case: Any) -> None:
                answer = case.call()
                assert answer.status_code < 500
                case.validate_response(answer, excluded_checks=[accepted])

            keeps_it()
        assert len(operations) >= 9


def test_random_bodies(trained: Translators) -> None:
    draw = random.Random(4)
    good = json.dumps({**ASK, "q": "ba ko", "text": "ba", "source_lang": "xx", "target_lang": "yy"}).encode()
    parts = b"".join(b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % tuple(pair.split(b"="))
                     for pair in (b"q=ba ko", b"source=xx", b"target=yy")) + b"--b--\r\n"  # fmt: skip
    seeds = [good, b"q=ba+ko&source=xx&target=yy", parts]
    with serving(trained("LAT")) as server:
        client = client_of(server)
        expected = client.post("/translate", content=good, headers={"content-type": KINDS[0]}).json()
        seen = set()
        for _ in range(400):
            body = bytearray(draw.choice(seeds))
            for _ in range(draw.randint(0, 6)):
                at = draw.randrange(len(body) + 1)
                body[at : at + draw.randint(0, 3)] = draw.choice(
                    [b"", b"\xff", b"\x00", b'"', b"[", b"&", b"\r\n", b"%", b"1e999"]
                )
            headers = {"content-type": draw.choice(KINDS).encode()}
            answer = client.post(draw.choice(ROUTES), content=bytes(body), headers=headers)
            assert answer.status_code in (200, 400), (answer.status_code, bytes(body))
            assert answer.status_code == 200 or list(answer.json()) == ["error"]
            seen.add(answer.status_code)
        assert seen == {200, 400}
        assert client.post("/translate", content=good, headers={"content-type": KINDS[0]}).json() == expected
