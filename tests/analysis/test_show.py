"""What people are shown: how a translation came about, and what recipes and directories hold."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import Runs, Translators

from lath.analysis.show import explain, plot_passes, plot_run, show
from lath.cli import main
from lath.config import RULE_SETS, Recipe, to_tree
from lath.decoding.merge import merge_pieces
from lath.decoding.pieces import token_sources
from lath.decoding.results import Check, Hypothesis, Pass
from lath.errors import UserError
from lath.text.vocab import BOS, EOS, MASK, SPECIALS, SubwordNmtVocab

WORDS = SubwordNmtVocab([], ["the", "old", "dog", "cat", "barks"])
THE, OLD, DOG, CAT, BARKS = range(len(SPECIALS), len(SPECIALS) + 5)


def refusal(thing: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as refused:
        show(thing, overrides)
    return str(refused.value)


def traced_pass(pieces: list[list[int]], scores: list[list[float]], **rest: object) -> Pass:
    merged = merge_pieces(pieces, scores, RULE_SETS["official"])
    output = [BOS, *(id for id in merged.ids if id not in (BOS, EOS)), EOS]
    traced = Pass([MASK] * len(pieces), pieces, scores, merged.decisions, output, sources=token_sources(merged))
    return dataclasses.replace(traced, **rest)  # type: ignore[arg-type]


FIRST = traced_pass(
    [[BOS, THE], [THE, OLD], [DOG, BARKS], [CAT, BARKS], [EOS, EOS]],
    [[0.0, -0.1], [-0.2, -0.3], [-0.5, -0.6], [-0.9, -0.7], [-0.01, -0.02]],
    masked=[3],
    length_change=2,
)
FILLED = Pass(
    [BOS, THE, OLD, MASK, EOS], [[BOS], [THE], [OLD], [DOG], [EOS]], [[-0.1]] * 5, [], [BOS, THE, OLD, DOG, EOS]
)
EXAMPLE = Hypothesis("the old dog", -0.1, 2, passes=[[FIRST, FILLED]])


def test_every_step_of_a_hand_made_translation_is_drawn() -> None:
    assert explain(EXAMPLE, WORDS).splitlines() == [
        "A row is the piece predicted at one position, each token with its probability in percent.",
        "Tokens that were aligned share a column; a token in (brackets) lost.",
        "",
        "Pass 1 of 2",
        "    0 <mask>   <s> 100  the 90",
        "    1 <mask>            the 82  old 74",
        "    2 <mask>                            dog 61    barks 55",
        "    3 <mask>                            (cat 41)  barks 50",
        "    4 <mask>                                                </s> 99  </s> 98",
        "  merged       <s>      the     old     dog       barks     </s>",
        "  masked next                           <mask>",
        "  piece 3: dog (-0.50) against cat (-0.90): dog wins",
        "  piece 2 shares nothing with the text before it and is appended: dog barks",
        "  piece 4 shares nothing with the text before it and is appended: </s>",
        "  length: 2 masks inserted",
        "",
        "Pass 2 of 2",
        "  filled  <s>  the  old  dog 90  </s>",
        "  merged  <s>  the  old  dog     </s>",
        "",
        "Translation: the old dog",
    ]


def test_columns_that_do_not_fit_continue_below() -> None:
    lines = explain(EXAMPLE, WORDS, width=34).splitlines()
    start = lines.index("Pass 1 of 2")
    assert lines[start + 1 : start + 12] == [
        "    0 <mask>   <s> 100  the 90",
        "    1 <mask>            the 82",
        "  merged       <s>      the",
        "",
        "    1 <mask>   old 74",
        "    2 <mask>           dog 61",
        "    3 <mask>           (cat 41)",
        "  merged       old     dog",
        "  masked next          <mask>",
        "",
        "    2 <mask>   barks 55",
    ]


DRAFT = dataclasses.replace(FIRST, masked=[], length_change=0, check=Check(1, CAT))
REDRAFT = dataclasses.replace(
    traced_pass([[BOS, BARKS], [BARKS, EOS]], [[-0.1, -0.1]] * 2, input=[BOS, MASK]),
    prefix=[THE, CAT],
    check=Check(2, None),
)
CHECKED = Hypothesis("the cat barks", -0.1, 2, passes=[[DRAFT, REDRAFT]], checks=2)


def test_a_checked_draft_and_what_follows_are_drawn() -> None:
    lines = explain(CHECKED, WORDS).splitlines()
    assert [line for line in lines[:4] if "verifier" in line] == [
        "Below a draft, ✓ is a token that the verifier accepts; its own token stands below the first that it refuses."
    ]
    start = lines.index("Pass 1 of 2")
    assert lines[start + 6 : start + 8] == [
        "  merged      <s>      the     old     dog       barks     </s>",
        "  checked              ✓       cat",
    ]
    assert lines[start + 11] == "  the verifier accepts 1 of 5 tokens and writes cat for old"
    assert lines[start + 13 :] == [
        "Pass 2 of 2",
        "  kept        the cat",
        "    0 <s>     <s> 90  barks 90",
        "    1 <mask>          barks 90  </s> 90",
        "  merged      <s>     barks     </s>",
        "  checked             ✓         ✓",
        "  the verifier accepts all of the draft",
        "",
        "Passes: 2 of the model, 2 of its verifier",
        "Translation: the cat barks",
    ]
    coloured = explain(CHECKED, WORDS, colour=True)
    assert "\x1b[1;32mthe\x1b[0m" in coloured
    assert "\x1b[9;31mold\x1b[0m" in coloured


def test_a_correction_behind_a_draft_has_a_column_of_its_own() -> None:
    cut = dataclasses.replace(REDRAFT, check=Check(2, DOG))
    lines = explain(dataclasses.replace(CHECKED, passes=[[cut]]), WORDS).splitlines()
    assert "  checked             ✓         ✓        dog" in lines
    assert "  the verifier accepts all of the draft and writes dog behind it" in lines


def test_a_checked_draft_is_an_image(tmp_path: Path) -> None:
    plot_passes(CHECKED, WORDS, tmp_path / "checked.svg")
    root = ElementTree.parse(tmp_path / "checked.svg").getroot()
    svg = "{http://www.w3.org/2000/svg}"
    texts = [(one.text, one.get("class")) for one in root.iter(f"{svg}text")]
    for shown in (("old", "lost"), ("cat", "good"), ("the cat", "good"), ("✓", "good"), ("the", "head")):
        assert shown in texts
    assert sum(one.get("class") == "accepted" for one in root.iter(f"{svg}rect")) == 3
    places = {one.text: one.get("x") for one in root.iter(f"{svg}text") if one.get("class") in ("lost", "good")}
    assert places["cat"] == places["old"], "a correction stands below what was refused"


def test_a_sentence_is_shown_with_a_verifier(
    pair_parts: tuple[Path, Path], toy_pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    student, teacher = map(str, pair_parts)
    named = ["show", student, "ba ko mi", "--verifier", teacher, "--verify", "exact", "--plot", str(tmp_path / "a.svg")]
    assert main(named) == 0
    shown = capsys.readouterr().out
    assert shown.count("the verifier accepts") > 1
    assert (main(["show", str(toy_pair), "ba ko mi", "--verify", "exact"]), capsys.readouterr().out) == (0, shown)
    assert "the verifier accepts" in (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert main(["show", student, "--verify", "exact"]) == 2
    assert "are for a sentence; add one, or leave them out" in capsys.readouterr().err


def test_colours_change_nothing_but_colour() -> None:
    coloured = explain(EXAMPLE, WORDS, colour=True)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == explain(EXAMPLE, WORDS)
    assert "\x1b[9;31m(cat 41)\x1b[0m" in coloured
    assert "\x1b[7;33m<mask>\x1b[0m" in coloured
    for printed in ("\x1b[32mthe 90", "\x1b[33mbarks 55", "\x1b[2m</s> 98", "\x1b[1mdog"):
        assert printed in coloured


def test_wide_characters_take_two_columns() -> None:
    vocab = SubwordNmtVocab([], ["猫", "cat"])
    wide, narrow = (len(SPECIALS) + n for n in range(2))
    traced = traced_pass([[wide, narrow], [wide, narrow]], [[-0.1, -0.1]] * 2)
    lines = explain(Hypothesis("", 0.0, 1, passes=[[traced]]), vocab).splitlines()
    assert lines[4:7] == [
        "    0 <mask>       猫 90  cat 90",
        "    1 <mask>       猫 90  cat 90",
        "  merged      <s>  猫     cat     </s>",
    ]


def test_an_empty_side_and_a_deletion_are_shown() -> None:
    traced = traced_pass([[THE, DOG], [THE, OLD, DOG]], [[-0.1, -0.1], [-0.1, -3.0, -0.1]], length_change=-1)
    text = explain(Hypothesis("the dog", 0.0, 1, passes=[[traced]]), WORDS)
    assert "\n  piece 1: nothing (-1.39) against old (-3.00): nothing wins\n" in text
    assert "\n    1 <mask>       the 90  (old 5)  dog 90\n" in text
    assert "\n  length: 1 masks to delete, if there are enough\n" in text
    assert "masked next" not in text


def test_fragments_of_a_long_line_are_numbered() -> None:
    traced = traced_pass([[THE], [DOG]], [[-0.1], [-0.1]])
    text = explain(Hypothesis("the dog the dog", 0.0, 1, fragments=2, passes=[[traced], [traced]]), WORDS)
    assert re.findall(r"^Fragment.*$", text, re.MULTILINE) == ["Fragment 1 of 2", "Fragment 2 of 2"]
    assert text.count("Pass 1 of 1") == 2


def test_a_hypothesis_without_passes() -> None:
    assert explain(Hypothesis("the dog", 0.0, 3), WORDS).splitlines() == [
        "No passes to show: the line is blank, the model is autoregressive (AT), or there is no trace.",
        "Translation: the dog",
    ]


@pytest.mark.parametrize("kind", ["CMLM", "LAT"])
def test_a_real_translation_is_shown_completely(wild: Translators, kind: str) -> None:
    translator = wild(kind)
    (hypothesis,) = translator.hypotheses(["tu re sa lo ni pe du"], trace=True, iterations=3)
    vocab = translator.target_vocab
    text = explain(hypothesis, vocab, width=10_000)
    assert re.findall(r"^Pass (\d) of 3$", text, re.MULTILINE) == ["1", "2", "3"]
    assert text.endswith(f"\nTranslation: {hypothesis.text}")
    (passes,) = hypothesis.passes
    for traced in passes:
        if kind == "LAT":
            for place, (id, piece) in enumerate(zip(traced.input, traced.pieces, strict=True)):
                tokens = r"\s+".join(rf"\(?{re.escape(vocab.token(id))} \d+\)?" for id in piece)
                assert re.search(rf"^ +{place} {re.escape(vocab.token(id))} +{tokens}$", text, re.MULTILINE)
        words = r"\s+".join(re.escape(vocab.token(id)) for id in traced.output)
        assert re.search(rf"^  merged +{words}$", text, re.MULTILINE)
    assert text.count("  masked next ") == sum(bool(traced.masked) for traced in passes) > 0
    assert len(re.findall(r"^  piece \d+: ", text, re.MULTILINE)) == sum(
        decision.step == "conflict" for traced in passes for decision in traced.decisions
    )


def test_a_sentence_is_drawn_as_an_image(tmp_path: Path) -> None:
    plot_passes(EXAMPLE, WORDS, tmp_path / "merge.svg")
    root = ElementTree.parse(tmp_path / "merge.svg").getroot()
    texts = [(element.text, element.get("class")) for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert ("cat 41", "lost") in texts
    assert ("dog 61", "kept") in texts
    assert ("</s> 98", "aside") in texts
    assert ("piece 3: dog (-0.50) against cat (-0.90): dog wins", "score") in texts
    assert [text for text, kind in texts if kind == "head" and "Pass" in str(text)] == ["Pass 1 of 2", "Pass 2 of 2"]
    with pytest.raises(UserError, match="use a name that ends in .svg"):
        plot_passes(EXAMPLE, WORDS, tmp_path / "merge.png")


def test_tokens_cannot_break_the_image(tmp_path: Path) -> None:
    vocab = SubwordNmtVocab([], ["<script>", "&"])
    traced = traced_pass([[len(SPECIALS), len(SPECIALS) + 1]], [[-0.1, -0.1]])
    plot_passes(Hypothesis("<script>&", 0.0, 1, passes=[[traced]]), vocab, tmp_path / "merge.svg")
    root = ElementTree.parse(tmp_path / "merge.svg").getroot()
    assert "<script> 90" in [element.text for element in root.iter()]
    assert [element for element in root.iter() if "script" in element.tag] == []


# ---- files and directories -----------------------------------------------------------------------------------------


def test_a_recipe_is_shown_with_every_default(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text('[network]\nkind = "AT"\n', encoding="utf-8")
    shown = json.loads(show(path, ["train.steps=7"]))
    expected = to_tree(Recipe())
    expected["network"]["kind"], expected["train"]["steps"] = "AT", 7
    assert shown == expected
    assert refusal(path, "train.stpes=7") == "small.toml: train: unknown setting 'stpes' (did you mean 'steps'?)"


def test_a_data_directory_is_shown(toy_folder: Path) -> None:
    lines = show(toy_folder / "data").splitlines()
    assert lines[0] == f"{toy_folder / 'data'}: xx to yy"
    assert re.fullmatch(r"  train  3,000 pairs, 0 left out; [\d,]+ source and [\d,]+ target tokens", lines[1])
    assert lines[2].startswith("  valid  100 pairs, 0 left out;")
    assert lines[3] == "  vocabulary 350 source, 350 target"


def test_a_model_is_shown_with_its_card(model_copy: Path) -> None:
    shown = show(model_copy)
    assert shown.startswith("# xx to yy, LAT, pieces of 3\n")
    assert '\ndecoding defaults: {"iterations": 4, ' in shown
    (model_copy / "README.md").write_bytes(b"caf\xe9")
    assert show(model_copy).startswith("caf\ufffd\n")
    (model_copy / "README.md").unlink()
    assert "decoding defaults" in show(model_copy)


@pytest.fixture
def run(toy_run: Runs, tmp_path: Path) -> Path:
    """A run directory that a test may spoil."""
    return Path(shutil.copytree(toy_run("LAT"), tmp_path / "run"))


def test_a_run_is_shown_with_its_losses(run: Path) -> None:
    lines = show(run).splitlines()
    assert lines[0] == f"{run}: LAT, 20 steps"
    assert re.fullmatch(r"  step 20: training loss \d+\.\d{3}, [\d,]+ tokens/s, \d+ % padding", lines[1])
    losses = [re.fullmatch(r"  step (10|20): validation loss (\d+\.\d{4})", line) for line in lines[2:4]]
    assert all(losses)
    values = [float(found[2]) for found in losses if found]
    assert values == sorted(values)
    assert re.fullmatch(r"  training loss   █[▁-█]{3} \d\.\d{3} to \d\.\d{3}", lines[4])
    assert re.fullmatch(r"  validation loss █▁ \d\.\d{3} to \d\.\d{3}", lines[5])
    assert lines[6:] == ["  finished"]


def change_settings(run: Path, **changes: object) -> None:
    tree = json.loads((run / "resolved.json").read_text(encoding="utf-8"))
    tree["train"].update(changes)
    (run / "resolved.json").write_text(json.dumps(tree), encoding="utf-8")


def test_a_run_that_stopped_early(run: Path) -> None:
    change_settings(run, steps=90)  # prolonged, and not yet gone on with
    assert show(run).splitlines()[-1] == "  unfinished; continue with lath train ... --resume"
    change_settings(run, patience=1)
    with (run / "log.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"step": 20, "epoch": 0, "valid_loss": 99.0}\n')
    assert show(run).splitlines()[-1] == "  stopped early at step 20: validation did not improve"


def test_a_log_of_an_older_version_is_shown(run: Path) -> None:
    entry = {"step": 20, "epoch": 0, "loss": 1.5, "tokens_per_second": 1234.5}
    (run / "log.jsonl").write_text(json.dumps(entry) + "\n", encoding="utf-8")
    assert show(run).splitlines()[1] == "  step 20: training loss 1.500, 1,234 tokens/s"
    (run / "log.jsonl").write_text(json.dumps({**entry, "padding": 0.125, "mfu": 0.4}) + "\n", encoding="utf-8")
    assert show(run).splitlines()[1].endswith("1,234 tokens/s, 12 % padding, MFU 40 %")


def test_a_run_is_plotted(run: Path, model_copy: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_run(run, tmp_path / "curve.svg")
    drawn = (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert drawn.startswith("<?xml")
    assert "<!-- training loss -->" in drawn
    assert "<!-- validation loss -->" in drawn
    with pytest.raises(UserError, match="not a training run, so it has no losses to plot"):
        plot_run(model_copy, tmp_path / "other.svg")


def test_an_unfinished_run_is_shown(run: Path) -> None:
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "checkpoints")
    (run / "log.jsonl").write_text("", encoding="utf-8")
    assert show(run) == f"{run}: LAT, 20 steps\n  unfinished; continue with lath train ... --resume"


def test_a_log_line_cut_short_by_a_kill_is_left_out(run: Path) -> None:
    before = show(run)
    with (run / "log.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"step": 30, "lo')
    assert show(run) == before
    (run / "log.jsonl").unlink()
    assert "training loss" not in show(run)


def test_a_damaged_run_is_reported(run: Path) -> None:
    (run / "resolved.json").write_text('{"netw', encoding="utf-8")
    traced = refusal(run)
    assert traced.startswith(f"{run / 'resolved.json'}: damaged or not written by lath (")


def test_what_cannot_be_shown(tmp_path: Path, model_copy: Path) -> None:
    remedy = "give a recipe (.toml), or a directory written by lath prepare or lath train"
    assert refusal(tmp_path / "nowhere") == f"{tmp_path / 'nowhere'}: does not exist; {remedy}"
    assert refusal(tmp_path) == f"{tmp_path}: is not a recipe, data, run or model directory; {remedy}"
    assert "model.safetensors: not valid UTF-8" in refusal(model_copy / "model.safetensors")
    assert refusal(model_copy, "decode.beam=2") == (
        f"--set decode.beam=2: {model_copy} is not a recipe; leave --set out, or add a sentence"
    )
