"""Training from a recipe to a model: run directories, exact resume, early stopping, and custom objectives."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import toy
from safetensors.torch import load_file
from toy import with_train

import lath
from lath.config import Recipe, load_recipe, to_toml, to_tree
from lath.errors import UserError
from lath.model.directory import read_info
from lath.preparation import prepare
from lath.text.corpus import Corpus
from lath.text.vocab import MASK, PAD
from lath.trainer import train
from lath.training.batches import cut_rows, make_batch
from lath.training.checkpoints import best_checkpoints, list_checkpoints
from lath.training.loop import updates_from
from lath.training.objective import Draw, Examples, piece_examples
from lath.training.run import average_run
from lath.training.validation import HeldOut


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    folder = tmp_path_factory.mktemp("toy")
    recipe = toy.toy_recipe(folder, "LAT", steps=12, validate_every=4, log_every=2, keep_best=2, warmup_steps=5)
    recipe = dataclasses.replace(recipe, network=dataclasses.replace(recipe.network, dropout=0.1))
    prepare(recipe, folder / "data")
    return recipe, folder / "data"


def log_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def equal_weights(first: Path, second: Path) -> bool:
    one, two = weights_of(first), weights_of(second)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_run_directory_holds_what_the_docs_say(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    model = train(recipe, data, tmp_path / "run", device="cpu")
    run = tmp_path / "run"
    assert model == run / "model"
    assert load_recipe(run / "recipe.toml") == recipe
    assert json.loads((run / "resolved.json").read_text()) == json.loads(json.dumps(to_tree(recipe)))
    assert [line["step"] for line in log_of(run) if "loss" in line] == [2, 4, 6, 8, 10, 12]
    assert [line["step"] for line in log_of(run) if "valid_loss" in line] == [4, 8, 12]
    assert all(math.isfinite(line["loss"]) and line["tokens_per_second"] > 0 for line in log_of(run) if "loss" in line)
    checkpoints = list_checkpoints(run / "checkpoints")
    best = best_checkpoints(checkpoints, 2)
    assert {c.state.step for c in checkpoints} == {c.state.step for c in best} | {12}
    assert [c.can_resume for c in checkpoints] == [False] * (len(checkpoints) - 1) + [True]
    assert [line["mean_of"] for line in log_of(run) if "mean_of" in line] == [2]
    assert read_info(model).steps == 12
    average_run(run, 1, tmp_path / "one")
    assert equal_weights(tmp_path / "one", best[0].directory)


@pytest.mark.parametrize(("rate", "schedule", "count"), [(1e-3, "linear", 1), (3e-2, "inverse_sqrt", 2)])
def test_the_model_is_the_mean_that_validates_best(
    prepared: tuple[Recipe, Path], tmp_path: Path, rate: float, schedule: str, count: int
) -> None:
    """A mean of checkpoints on a slope is worse than the lowest; around the bottom it is better."""
    recipe, data = prepared
    recipe = dataclasses.replace(recipe, network=dataclasses.replace(recipe.network, dropout=0.0))
    settings = {"validate_every": 3, "keep_best": 4, "warmup_steps": 2, "learning_rate": rate, "schedule": schedule}
    model = train(with_train(recipe, **settings), data, tmp_path / "run", device="cpu")
    best = best_checkpoints(list_checkpoints(tmp_path / "run" / "checkpoints"), 4)
    losses = {line["mean_of"]: line["mean_loss"] for line in log_of(tmp_path / "run") if "mean_of" in line}
    assert list(losses) == [2, 3, 4]
    losses[1] = best[0].state.cost[1]  # type: ignore[index]
    assert min(losses, key=losses.__getitem__) == count
    average_run(tmp_path / "run", count, tmp_path / "mean")
    assert equal_weights(tmp_path / "mean", model)


def test_resume_at_half_time_equals_a_run_without_a_stop(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    recipe = with_train(recipe, step_tokens=3000)  # several epochs in 12 steps
    train(recipe, data, tmp_path / "whole", device="cpu")
    train(with_train(recipe, steps=8), data, tmp_path / "halves", device="cpu")
    train(recipe, data, tmp_path / "halves", device="cpu", resume=True)
    assert equal_weights(tmp_path / "whole/checkpoints/step-12", tmp_path / "halves/checkpoints/step-12")
    assert equal_weights(tmp_path / "whole/model", tmp_path / "halves/model")
    keys = ("step", "loss", "valid_loss", "learning_rate")
    logs = [
        [{k: line[k] for k in keys if k in line} for line in log_of(tmp_path / name)] for name in ("whole", "halves")
    ]
    assert logs[0] == logs[1]


def test_a_killed_run_goes_on_bit_for_bit(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    recipe = with_train(recipe, steps=40, validate_every=5)
    train(recipe, data, tmp_path / "whole", device="cpu")
    program = (
        "import sys, torch\nfrom pathlib import Path\nimport lath\ntorch.set_num_threads(1)\n"
        "lath.train(lath.load_recipe(Path(sys.argv[1])), sys.argv[2], sys.argv[3], device='cpu')\n"
    )
    run, written = tmp_path / "killed", tmp_path / "recipe.toml"
    written.write_text(to_toml(recipe), encoding="utf-8")
    process = subprocess.Popen([sys.executable, "-c", program, str(written), str(data), str(run)])
    aim = random.Random().randint(6, 30)  # any step will do: that is the point
    while process.poll() is None and not any(
        (run / "log.jsonl").exists() and line["step"] >= aim for line in whole_lines(run)
    ):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, f"the run ended before step {aim} was seen"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(recipe, data, run, device="cpu", resume=True)
    finally:
        torch.set_num_threads(threads)
    assert equal_weights(tmp_path / "whole/checkpoints/step-40", run / "checkpoints/step-40")


def test_a_student_starts_from_its_teacher(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    base, data = prepared
    teacher = dataclasses.replace(base, network=dataclasses.replace(base.network, kind="AT"))
    model = train(with_train(teacher, steps=3), data, tmp_path / "teacher", device="cpu")
    student = with_train(base, steps=1, start_from=str(model), learning_rate=1e-9)
    started = weights_of(train(student, data, tmp_path / "student", device="cpu"))
    known, fresh = (
        weights_of(model),
        weights_of(train(with_train(student, start_from=""), data, tmp_path / "fresh", device="cpu")),
    )
    for name, tensor in started.items():
        torch.testing.assert_close(tensor, known.get(name, fresh[name]), rtol=0, atol=1e-6)
    assert any(not torch.equal(known[name], fresh[name]) for name in known)

    wide = dataclasses.replace(student, network=dataclasses.replace(student.network, width=2 * student.network.width))
    with pytest.raises(UserError, match="start from a model of the same width"):
        train(wide, data, tmp_path / "wide", device="cpu")
    assert not (tmp_path / "wide").exists()
    prepare(
        dataclasses.replace(base, vocab=dataclasses.replace(base.vocab, size=base.vocab.size - 1)), tmp_path / "other"
    )
    with pytest.raises(UserError, match=r"vocabulary of .* differs from that of .*other; prepare the data with"):
        train(student, tmp_path / "other", tmp_path / "no", device="cpu")


def test_a_run_stopped_before_its_first_checkpoint_still_begins_with_the_weights_it_was_given(
    prepared: tuple[Recipe, Path], tmp_path: Path
) -> None:
    base, data = prepared
    model = train(with_train(base, steps=2), data, tmp_path / "first", device="cpu")
    recipe = with_train(base, steps=2, start_from=str(model))
    train(recipe, data, tmp_path / "whole", device="cpu")
    train(recipe, data, tmp_path / "stopped", device="cpu")
    for folder in ("model", "checkpoints/step-2"):  # as a kill in the first update would leave it
        shutil.rmtree(tmp_path / "stopped" / folder)
    train(recipe, data, tmp_path / "stopped", device="cpu", resume=True)
    assert equal_weights(tmp_path / "whole/checkpoints/step-2", tmp_path / "stopped/checkpoints/step-2")


def whole_lines(run: Path) -> list[dict[str, float]]:
    """The log of a run that is still being written: the last line may be cut."""
    if not (run / "log.jsonl").exists():
        return []
    return [json.loads(line) for line in (run / "log.jsonl").read_text().split("\n")[:-1]]


def test_bf16_trains(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    train(with_train(recipe, steps=4, precision="bf16"), data, tmp_path / "run", device="cpu")
    assert {tensor.dtype for tensor in weights_of(tmp_path / "run/model").values()} == {torch.float32}


def test_an_existing_run_is_not_touched(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="exists already; add --resume"):
        train(recipe, data, tmp_path / "run", device="cpu")
    with pytest.raises(UserError, match="not a run directory, so it cannot be resumed"):
        train(recipe, data, tmp_path / "run", device="cpu", resume=True)


def test_resume_refuses_another_recipe_by_name(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    train(with_train(recipe, steps=4), data, tmp_path / "run", device="cpu")
    with pytest.raises(UserError, match=r"a different objective\.alpha, seed"):
        changed = dataclasses.replace(recipe, objective=dataclasses.replace(recipe.objective, alpha=0.2))
        train(with_train(changed, seed=2), data, tmp_path / "run", device="cpu", resume=True)


def test_resume_refuses_other_data(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    train(with_train(recipe, steps=4), data, tmp_path / "run", device="cpu")
    fewer = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, max_length=6))
    prepare(fewer, tmp_path / "other", vocab_from=data)
    with pytest.raises(UserError, match="was started on other data than"):
        train(recipe, tmp_path / "other", tmp_path / "run", device="cpu", resume=True)


def test_a_loss_that_is_no_number_stops_the_run(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    with pytest.raises(UserError, match="no longer a finite number"):
        train(
            with_train(recipe, learning_rate=100, weight_decay=1, warmup_steps=1), data, tmp_path / "run", device="cpu"
        )


def test_sentences_longer_than_the_position_table_are_refused(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    small = dataclasses.replace(
        recipe,
        data=dataclasses.replace(recipe.data, max_length=5),  # the data were prepared with a higher limit
        network=dataclasses.replace(recipe.network, max_positions=16),
        objective=dataclasses.replace(recipe.objective, insertion_rate=0.9),
    )
    with pytest.raises(UserError, match=r"has sentences of \d+ tokens, but network.max_positions is 16; set it to"):
        train(small, data, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_the_log_has_time_and_padding(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    train(with_train(recipe, steps=4, micro_batch_tokens=100), data, tmp_path / "run", device="cpu")
    lines = [line for line in log_of(tmp_path / "run") if "loss" in line]
    assert all(0 <= line["padding"] < 0.5 and line["seconds"] > 0 and "mfu" not in line for line in lines)
    corpus, plan = Corpus.open(data, "train"), updates_from(Corpus.open(data, "train"), recipe.train, 0, 0)
    batches = [make_batch(corpus, indices) for _, _, indices in itertools.islice(plan, 2)]
    positions = sum(micro.positions for batch in batches for micro in cut_rows(batch, 100))
    tokens = sum(int((batch.target != PAD).sum()) for batch in batches)
    assert lines[0]["padding"] == pytest.approx(1 - tokens / positions, abs=1e-4)
    assert lines[0]["tokens_per_second"] * lines[0]["seconds"] == pytest.approx(tokens, rel=0.05)


def validations(monkeypatch: pytest.MonkeyPatch, *scores: float) -> None:
    """The next validations get these BLEU scores."""
    ready = iter(scores)
    monkeypatch.setattr(HeldOut, "bleu", lambda self, model: next(ready))


def test_a_run_stops_when_nothing_gets_better(
    prepared: tuple[Recipe, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, data = prepared
    recipe = with_train(recipe, steps=12, validate_every=1, stop_by="bleu", patience=3)
    run, cut = tmp_path / "run", tmp_path / "cut"
    mean = 0.0  # of the two best, at the end of every training
    validations(monkeypatch, 1, 4, 3, 5, 4, 4.9, 3, mean)
    train(recipe, data, run, device="cpu")
    assert list_checkpoints(run / "checkpoints")[-1].state.step == 7
    assert (run / "model").is_dir()

    validations(monkeypatch, 1, 4, 3, 5, 4, mean)
    train(with_train(recipe, steps=5), data, cut, device="cpu")  # in the middle of the waiting
    validations(monkeypatch, 4.9, 3, mean)
    train(recipe, data, cut, device="cpu", resume=True)
    assert equal_weights(run / "checkpoints/step-7", cut / "checkpoints/step-7")
    assert equal_weights(run / "model", cut / "model")

    before = (run / "log.jsonl").read_text()
    validations(monkeypatch, mean)
    train(recipe, data, run, device="cpu", resume=True)  # out of patience already: nothing more is trained
    assert (run / "log.jsonl").read_text() == before
    validations(monkeypatch, 2, 2, mean)
    train(with_train(recipe, patience=5), data, run, device="cpu", resume=True)
    assert list_checkpoints(run / "checkpoints")[-1].state.step == 9


def test_checkpoints_can_be_ranked_by_bleu(
    prepared: tuple[Recipe, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, data = prepared
    recipe = with_train(recipe, stop_by="bleu")
    validations(monkeypatch, 8.5, 3.0, 5.5, 2.0)
    train(recipe, data, tmp_path / "run", device="cpu")
    logged = {line["step"]: line["valid_bleu"] for line in log_of(tmp_path / "run") if "valid_bleu" in line}
    assert logged == {4: 8.5, 8: 3.0, 12: 5.5}
    states = [c.state for c in best_checkpoints(list_checkpoints(tmp_path / "run/checkpoints"), 2)]
    assert [(state.step, state.valid_bleu) for state in states] == [(4, 8.5), (12, 5.5)]
    monkeypatch.undo()
    train(with_train(recipe, steps=1), data, tmp_path / "real", device="cpu")
    assert 0 <= log_of(tmp_path / "real")[-1]["valid_bleu"] < 100


def test_tensorboard_goes_on_after_a_resume(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe, data = prepared
    recipe = with_train(recipe, tensorboard=True)
    train(with_train(recipe, steps=8), data, tmp_path / "run", device="cpu")
    train(recipe, data, tmp_path / "run", device="cpu", resume=True)
    events = EventAccumulator(str(tmp_path / "run/tensorboard")).Reload()
    keys = {"train/loss": "loss", "valid/loss": "valid_loss", "train/learning_rate": "learning_rate"}
    for tag, key in keys.items():
        logged = [(line["step"], line[key]) for line in log_of(tmp_path / "run") if key in line]
        assert [(event.step, event.value) for event in events.Scalars(tag)] == [
            (step, pytest.approx(value, rel=1e-6)) for step, value in logged
        ]


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("sort", ["sentencepiece", "subword-nmt"])
def test_every_sort_of_vocabulary_trains_and_translates(tmp_path: Path, sort: str, joint: bool) -> None:
    recipe = toy.toy_recipe(tmp_path, "LAT", steps=2)
    size = 330 if sort == "sentencepiece" else 20
    vocab = dataclasses.replace(recipe.vocab, kind=sort, joint=joint, size=size if joint else size - 20 * (size > 300))  # type: ignore[arg-type]
    model = toy.train_toy(tmp_path, dataclasses.replace(recipe, vocab=vocab))
    mt = lath.load(model, device="cpu")
    assert mt.info.joint == joint == (mt.source_vocab is mt.target_vocab)
    assert len(mt.translate(["ba ko mi", "", "🎉 unseen"])) == 3


# ---- an objective of one's own -------------------------------------------------------------------------------------


class MaskEverything:
    """An objective that shows the decoder nothing but masks, and counts how often it is used."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, draw: Draw) -> Examples:
        batch, recipe = draw.batch, draw.recipe
        assert not draw.model.training, "an objective may run the model, without dropout"
        assert draw.step > 0
        self.calls += 1
        masked, deleted = batch.target != PAD, torch.zeros_like(batch.target, dtype=torch.bool)
        examples = piece_examples(batch, masked, deleted, recipe.network.piece_length, recipe.objective.loss)
        assert set(examples.decoder_input.unique().tolist()) <= {MASK, PAD}
        return examples


def test_a_custom_objective_trains_and_resumes_with_every_engine(
    prepared: tuple[Recipe, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # compiling takes a minute
    base, data = prepared
    recipe = with_train(
        dataclasses.replace(base, network=dataclasses.replace(base.network, dropout=0.0)), steps=4, validate_every=2
    )
    train(recipe, data, tmp_path / "default", device="cpu")
    for engine in ("plain", "packed"):
        objective, again = MaskEverything(), MaskEverything()
        chosen = with_train(recipe, engine=engine, micro_batch_tokens=300)
        lath.train(chosen, data, str(tmp_path / engine), device="cpu", objective=objective)
        assert objective.calls == 4
        halves = tmp_path / f"{engine}-halves"
        lath.train(with_train(chosen, steps=2), data, halves, device="cpu", objective=objective)
        lath.train(chosen, data, halves, device="cpu", resume=True, objective=again)
        assert again.calls == 2
        assert equal_weights(tmp_path / engine / "checkpoints/step-4", halves / "checkpoints/step-4")
    plain, packed = (weights_of(tmp_path / engine / "checkpoints/step-4") for engine in ("plain", "packed"))
    assert all(torch.allclose(tensor, packed[name], atol=2e-5) for name, tensor in plain.items())
    assert not equal_weights(tmp_path / "plain/checkpoints/step-4", tmp_path / "default/checkpoints/step-4")


def test_longer_decoder_inputs_need_the_plain_engine(
    prepared: tuple[Recipe, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    recipe, data = prepared

    def longer(draw: Draw) -> Examples:
        return dataclasses.replace(MaskEverything()(draw), spare=2)

    with pytest.raises(UserError, match="longer than their targets.*set train.engine=plain"):
        train(with_train(recipe, engine="packed"), data, tmp_path / "run", device="cpu", objective=longer)
    train(with_train(recipe, engine="plain", steps=1), data, tmp_path / "plain", device="cpu", objective=longer)
