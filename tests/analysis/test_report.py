"""The report as a file: self-contained, closed to what the text could inject, and of bounded size."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import zlib
from typing import Any

import pytest
from reports import LINES, lat_passes, small_analysis

from lath.analysis.analysis import Analysis, Trace
from lath.analysis.report import build_report


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return small_analysis()


@pytest.fixture(scope="module")
def page(analysis: Analysis) -> str:
    return build_report(analysis)


def data_of(page: str) -> Any:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def unpacked(packed: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def test_text_is_in_the_page_as_data_alone(page: str, analysis: Analysis) -> None:
    assert page.count("<script") == page.count("</script>") == 2
    assert page.count("<style>") == 1
    assert "<img src=x" not in page
    data = data_of(page)
    assert data["tables"][0]["rows"] == [["near", "51.23"], [analysis.reference[3], ""]]
    text = unpacked(data["text"])
    assert text["source"] == analysis.source
    assert text["reference"] == analysis.reference
    assert text["systems"] == [system.texts for system in analysis.systems]


def test_the_policy_allows_this_script_and_this_style_alone(page: str) -> None:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    allowed = dict(rule.split(" ", 1) for rule in policy.split("; "))
    for kind, pattern in (("script", r"<script>(.*?)</script>"), ("style", r"<style>(.*?)</style>")):
        (content,) = re.findall(pattern, page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert allowed.pop(f"{kind}-src") == f"'sha256-{digest}'"
    assert allowed == {"default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    assert re.findall(r'(?:src|href|action)="(?!#|data:)[^"]*"', page) == []


def test_pictures_are_left_out_where_the_page_would_grow_too_large(analysis: Analysis) -> None:
    traces = [Trace(line, "", 0.0, [lat_passes()], [f"text {line * 7919 % 997}"] * 2) for line in range(LINES)]
    system = dataclasses.replace(analysis.systems[2], traces=traces)
    large = dataclasses.replace(analysis, systems=[system])
    whole = build_report(large)
    assert data_of(whole)["systems"][0]["traced"] == LINES
    limit = 200_000 + len(data_of(whole)["text"]) + 3_000  # room for some of the pictures
    cut = data_of(build_report(large, limit))
    kept = cut["systems"][0]["traced"]
    assert 0 < kept < LINES
    assert len(cut["systems"][0]["pictures"]) * cut["chunk"] == kept
    assert cut["notes"][-1] == f"lat: passes of the first {kept} of {LINES} traced lines, for size"


def test_a_large_test_set_is_sampled_with_all_its_passes(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lath.analysis.report.MOST_LINES", 100)
    data = data_of(build_report(analysis))
    text = unpacked(data["text"])
    assert text["lines"] == sorted({*range(0, LINES, 4), 2, 5})
    assert text["reference"] == [analysis.reference[line] for line in text["lines"]]
    assert text["systems"][1] == [analysis.systems[1].texts[line] for line in text["lines"]]
    assert [text["lines"][place] for place in data["systems"][2]["traced"]] == [0, 2, 5]
    assert data["notes"][-1] == f"102 of {LINES} sentences are shown; the figures are of all"


def test_without_source_traces_and_plots(analysis: Analysis) -> None:
    bare = dataclasses.replace(analysis, source=None, plots=[], systems=analysis.systems[:1])
    data = data_of(build_report(bare))
    assert unpacked(data["text"])["source"] is None
    assert data["systems"] == [{"name": "near", "tokens": {}, "traced": 0, "pictures": []}]


def test_the_script_makes_no_markup_from_text(page: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|fetch\(", script) == []
