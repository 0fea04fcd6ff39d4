"""Numbers, signatures and tables from hand-made times."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import lath
from lath.analysis.scores import Score
from lath.analysis.sentences import Text
from lath.analysis.speed import (
    BenchReport,
    Row,
    Times,
    device_name,
    length_table,
    markdown,
    percentile,
    share_table,
    shares,
    signature,
    speed_table,
    summarise,
)
from lath.config import DecodeOptions, DecodeSettings, NetworkSettings, with_options
from lath.translator import Translator

pytestmark = pytest.mark.usefixtures("few_batches")


BULK = {"a": 20, "b": 25, "c": 30, **{f"d{number}": 40 for number in range(5)}}
TEXT = Text(["w"] * 20, ["a", "b", "c"], [20, 25, 30], BULK, {20: ["x"], 160: ["y"]}, ["a note"])
MACHINE = f"{device_name(torch.device('cpu'))}|threads:{torch.get_num_threads()}|torch:{torch.__version__}"
END = f"{MACHINE}|lath:{lath.__version__}"


def row(kind: str = "LAT", **overrides: Any) -> Row:
    """A row without a model."""
    stand_in: Any = SimpleNamespace(
        info=SimpleNamespace(network=NetworkSettings(kind=cast(Any, kind)), target_size=32000),
        settings=lambda **changes: with_options(DecodeSettings(), changes),
        device=torch.device("cpu"),
        engine="plain",
        model=None,
    )
    return Row(
        f"{kind.lower()}/x", f"runs/{kind}", cast(Translator, stand_in), cast(DecodeOptions, overrides), "fp32", 0
    )


def times(factor: float = 1.0) -> Times:
    """Three repeats; one call of the second was disturbed."""
    turns = ([0.001, 0.002, 0.009], [0.004, 0.004, 9.0], [0.003, 0.004, 0.005])
    return Times(
        single=[[factor * t for t in turn] for turn in turns],
        batches={2: [factor, 99.0, factor], 8: [factor * 0.5, factor * 0.25, factor * 0.1]},
        lengths={20: [[factor * 0.002], [9.0], [factor * 0.002]], 160: [[factor * 0.005], [9.0], [factor * 0.001]]},
        stages={1: {"tokenise": 1.0, "encode": 2.0, "decode": 4.0, "merge": 2.0, "detokenise": 1.0}},
    )


def test_percentiles_and_shares() -> None:
    assert percentile(list(range(101)), 0.95) == 95
    assert percentile([[1.0, 5.0], [3.0, 2.0]], 0.5) == 2.5  # of all calls of all turns
    assert percentile([7.0], 0.95) == 7.0
    assert shares({"a": 1.0, "b": 1.0, "c": 2.0}) == {"a": 0.25, "b": 0.25, "c": 0.5}


def test_the_numbers_of_a_row_come_from_its_times() -> None:
    speed = summarise(row(iterations=4), times(), against_p50=0.002, text=TEXT, bleu=Score("BLEU", 27.5, "x"))
    # Nine calls: 1, 2, 3, 4, 4, 4, 5, 9 and 9000 ms. The medians of the sentences, 3, 4 and 9 ms, would hide the last.
    assert speed.p50_ms == pytest.approx(4.0)
    assert speed.p95_ms == pytest.approx(9 + 0.6 * (9000 - 9))
    assert speed.mean_ms == pytest.approx(9032 / 9)
    assert speed.p50_ms_of_turns == pytest.approx([2.0, 4.0, 4.0])
    assert speed.times == pytest.approx(2.0)
    assert speed.sentences_per_second == pytest.approx({2: 4 / 1.0, 8: 8 / 0.25})  # 3 sentences fill 4 and 8 places
    assert speed.best_batch == 8
    assert speed.ms_at_length == pytest.approx({20: 2.0, 160: 5.0})
    assert speed.longest_over_20 == pytest.approx(2.5)
    assert speed.shares[1] == {"tokenise": 0.1, "encode": 0.2, "decode": 0.4, "merge": 0.2, "detokenise": 0.1}
    assert speed.memory_mib is None
    assert speed.bleu == 27.5
    assert speed.signature == (
        f"lat|6-6|512|v:32000|K:3|it:4|len:1|b:1|src:25|plain|fp32|{END} = 4.00 ms/sent p50 (p95 5403.60)"
    )
    assert speed.throughput_signature == (
        f"lat|6-6|512|v:32000|K:3|it:4|len:1|b:8|src:34|plain|fp32|{END} = 32.0 sentences/s"
    )


@pytest.mark.parametrize(
    ("kind", "overrides", "start"),
    [
        ("AT", {"beam": 1}, "at|6-6|512|v:32000|beam:1|b:1|src:20|"),
        ("AT", {}, "at|6-6|512|v:32000|beam:5|b:1|src:20|"),
        ("CMLM", {"iterations": 10, "length_candidates": 5}, "cmlm|6-6|512|v:32000|it:10|len:5|b:1|src:20|"),
        ("LAT", {"rules": "paper", "iterations": 2}, "lat|6-6|512|v:32000|K:3|it:2|len:1|rules:paper|b:1|src:20|"),
        ("LAT", {"extra_length": 1, "length_candidates": 3}, "lat|6-6|512|v:32000|K:3|it:4|len:3+1|b:1|src:20|"),
    ],
)
def test_a_signature_names_the_decoding_settings(kind: str, overrides: dict[str, Any], start: str) -> None:
    assert signature(row(kind, **overrides), 1, 20.4) == f"{start}plain|fp32|{END}"


def test_a_signature_names_the_verifier() -> None:
    def of(**overrides: Any) -> str:
        checked = row(iterations=1, **overrides)
        settings = NetworkSettings(kind="AT", encoder_layers=12, decoder_layers=1)
        checked.translator.verifier = cast(Any, SimpleNamespace(settings=settings))
        return signature(checked, 1, 20.4)

    start = "lat|6-6|512|v:32000|K:3|it:1|len:1"
    assert (
        of(verify="relaxed", verify_nats=2.5) == f"{start}|relaxed:at-12-1|top:3|nats:2.5|b:1|src:20|plain|fp32|{END}"
    )
    assert of(verify="exact", verify_top=5) == f"{start}|exact:at-12-1|b:1|src:20|plain|fp32|{END}"
    assert of() == f"{start}|b:1|src:20|plain|fp32|{END}"


def test_a_length_that_was_not_measured_has_no_ratio() -> None:
    found = times()
    del found.lengths[160]
    speed = summarise(row(), found, 0.004, TEXT, None)
    assert speed.longest_over_20 is None
    assert length_table([speed]).splitlines()[-1] == "| lat/x | 2.00 |  |"
    found.lengths = {}
    assert length_table([summarise(row(), found, 0.004, TEXT, None)]) == ""


def test_tables() -> None:
    fast = summarise(row(), times(), 0.004, TEXT, Score("BLEU", 27.5, "x"))
    slow_times = times(10)
    slow_times.stages[1] = {"tokenise": 1.0, "decode": 3.0, "detokenise": 0.0}  # a recorded or exported decoder
    slow = summarise(row("AT"), slow_times, 0.004, TEXT, Score("BLEU", 28.123, "x"))
    assert speed_table([fast, slow]).splitlines() == [
        "| row | p50 ms | p95 ms | mean ms | times | sent/s b:2 | sent/s b:8 | best batch | BLEU |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        "| lat/x | 4.00 | 5403.60 | 1003.56 | 1.00 | 4.0 | 32.0 | 8 | 27.50 |",
        "| at/x | 40.00 | 54036.00 | 10035.56 | 10.00 | 0.4 | 3.2 | 8 | 28.12 |",
    ]
    assert length_table([fast, slow]).splitlines()[2:] == [
        "| lat/x | 2.00 | 5.00 | 2.50 |",
        "| at/x | 20.00 | 50.00 | 2.50 |",
    ]
    assert share_table([fast, slow]).splitlines() == [
        "| % of time | batch | tokenise | encode | decode | merge | detokenise |",
        "|---|--:|--:|--:|--:|--:|--:|",
        "| lat/x | 1 | 10.0 | 20.0 | 40.0 | 20.0 | 10.0 |",
        "| at/x | 1 | 25.0 |  | 75.0 |  | 0.0 |",
    ]
    assert markdown(["a", "b"], [["c", "1"]]) == "| a | b |\n|---|--:|\n| c | 1 |"


def test_a_report_ends_in_one_line_of_json() -> None:
    speed = summarise(row(), times(), 0.004, TEXT, None)
    text = str(BenchReport({"data": "news.de"}, [speed], TEXT.notes))
    assert f"\n- `{speed.signature}`\n- `{speed.throughput_signature}`\n\n- a note\n\n{{" in text
    tree = json.loads(text.splitlines()[-1])
    assert (tree["benchmark"], tree["data"], tree["notes"]) == ("bench", "news.de", ["a note"])
    (only,) = tree["rows"]
    assert only["p50_ms"] == speed.p50_ms
    assert only["sentences_per_second"] == {"2": 4.0, "8": 32.0}
    assert "MiB" not in text
    assert "BLEU" not in text
