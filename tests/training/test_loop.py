"""The training loop: schedule, accumulation, validation, checkpoints and exact resume."""

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

import lath
from lath.config import Recipe, TrainSettings, to_tree
from lath.errors import UserError
from lath.model.directory import best_checkpoints, list_checkpoints, read_info
from lath.text.corpus import Corpus, prepare
from lath.text.vocab import PAD
from lath.training.batches import cut_rows, make_batch
from lath.training.loop import Validation, build_learner, learning_rate, train, update, updates_from
from lath.training.run import average_run
from lath.training.validation import HeldOut

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    folder = tmp_path_factory.mktemp("toy")
    recipe = toy.toy_recipe(folder, "LAT", steps=12, validate_every=4, log_every=2, keep_best=2, warmup_steps=5)
    recipe = dataclasses.replace(recipe, network=dataclasses.replace(recipe.network, dropout=0.1))
    prepare(recipe, folder / "data")
    return recipe, folder / "data"


def with_train(recipe: Recipe, **changes: object) -> Recipe:
    return dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, **changes))  # type: ignore[arg-type]


def log_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def equal_weights(first: Path, second: Path) -> bool:
    one, two = weights_of(first), weights_of(second)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(("step", "rate"), [(5_000, 2.5e-4), (10_000, 5e-4), (40_000, 2.5e-4), (250_000, 1e-4)])
def test_schedule_of_appendix_b(step: int, rate: float) -> None:
    assert learning_rate(step, TrainSettings()) == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize(("step", "rate"), [(50, 1e-3), (100, 2e-3), (550, 1.001e-3), (1000, 2e-3 / 901)])
def test_a_line_down_to_nothing(step: int, rate: float) -> None:
    settings = TrainSettings(steps=1000, warmup_steps=100, learning_rate=2e-3, schedule="linear")
    assert learning_rate(step, settings) == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_weights_do_not_depend_on_the_micro_batch(prepared: tuple[Recipe, Path], kind: str) -> None:
    base, data = prepared
    network = dataclasses.replace(base.network, kind=kind, dropout=0.0)  # type: ignore[arg-type]
    corpus = Corpus.open(data, "train")
    results = []
    for tokens in (2000, 100):
        recipe = with_train(dataclasses.replace(base, network=network), micro_batch_tokens=tokens)
        learner = build_learner(recipe, data, CPU)
        for step in (1, 2, 3):
            update(learner, make_batch(corpus, range(step * 40, step * 40 + 40)), step)
        results.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]))
    assert torch.allclose(results[0], results[1], atol=2e-5)


def test_a_run_directory_holds_what_the_docs_say(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    model = train(recipe, "# the recipe's own text\n", data, tmp_path / "run", CPU)
    run = tmp_path / "run"
    assert model == run / "model"
    assert (run / "recipe.toml").read_text() == "# the recipe's own text\n"
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
    model = train(with_train(recipe, **settings), "", data, tmp_path / "run", CPU)
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
    train(recipe, "", data, tmp_path / "whole", CPU)
    train(with_train(recipe, steps=8), "", data, tmp_path / "halves", CPU)
    train(recipe, "", data, tmp_path / "halves", CPU, resume=True)
    assert equal_weights(tmp_path / "whole/checkpoints/step-12", tmp_path / "halves/checkpoints/step-12")
    assert equal_weights(tmp_path / "whole/model", tmp_path / "halves/model")
    keys = ("step", "loss", "valid_loss", "learning_rate")
    told = [
        [{k: line[k] for k in keys if k in line} for line in log_of(tmp_path / name)] for name in ("whole", "halves")
    ]
    assert told[0] == told[1]


def test_a_killed_run_goes_on_bit_for_bit(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    recipe = with_train(recipe, steps=40, validate_every=5)
    train(recipe, "", data, tmp_path / "whole", CPU)
    program = (
        "import json, sys, torch\nfrom pathlib import Path\nfrom lath.config import recipe_from_tree\n"
        "from lath.training.loop import train\ntorch.set_num_threads(1)\n"
        "recipe = recipe_from_tree(json.loads(sys.argv[1]), 'test')\n"
        "train(recipe, '', Path(sys.argv[2]), Path(sys.argv[3]), torch.device('cpu'))\n"
    )
    run = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", program, json.dumps(to_tree(recipe)), str(data), str(run)])
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
        train(recipe, "", data, run, CPU, resume=True)
    finally:
        torch.set_num_threads(threads)
    assert equal_weights(tmp_path / "whole/checkpoints/step-40", run / "checkpoints/step-40")


def test_a_student_starts_from_its_teacher(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    base, data = prepared
    teacher = dataclasses.replace(base, network=dataclasses.replace(base.network, kind="AT"))
    model = train(with_train(teacher, steps=3), "", data, tmp_path / "teacher", CPU)
    student = with_train(base, steps=1, start_from=str(model), learning_rate=1e-9)
    started = weights_of(train(student, "", data, tmp_path / "student", CPU))
    known, fresh = (
        weights_of(model),
        weights_of(train(with_train(student, start_from=""), "", data, tmp_path / "fresh", CPU)),
    )
    for name, tensor in started.items():
        torch.testing.assert_close(tensor, known.get(name, fresh[name]), rtol=0, atol=1e-6)
    assert any(not torch.equal(known[name], fresh[name]) for name in known)

    wide = dataclasses.replace(student, network=dataclasses.replace(student.network, width=2 * student.network.width))
    with pytest.raises(UserError, match="start from a model of the same width"):
        train(wide, "", data, tmp_path / "wide", CPU)
    assert not (tmp_path / "wide").exists()
    prepare(
        dataclasses.replace(base, vocab=dataclasses.replace(base.vocab, size=base.vocab.size - 1)), tmp_path / "other"
    )
    with pytest.raises(UserError, match=r"has another vocabulary than .*other; prepare the data with --vocab-from"):
        train(student, "", tmp_path / "other", tmp_path / "no", CPU)


def test_weights_that_are_not_to_be_learnt_stay_bit_for_bit(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    base, data = prepared
    model = train(with_train(base, steps=2), "", data, tmp_path / "first", CPU)
    recipe = with_train(base, steps=3, start_from=str(model), only="local.initial body.decoder.layers.0.cross.")
    learnt, before = weights_of(train(recipe, "", data, tmp_path / "some", CPU)), weights_of(model)
    changed = {name for name, tensor in learnt.items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if name.startswith(("local.initial", "body.decoder.layers.0.cross."))}

    stopped = with_train(recipe, steps=3, validate_every=1)
    train(with_train(stopped, steps=2), "", data, tmp_path / "resumed", CPU)
    train(stopped, "", data, tmp_path / "resumed", CPU, resume=True)
    assert equal_weights(tmp_path / "some/checkpoints/step-3", tmp_path / "resumed/checkpoints/step-3")

    told = (
        r"no weight's name begins with 'body.decodr' \(did you mean 'body.decoder'\?\); names begin with body.tables,"
    )
    with pytest.raises(UserError, match=told):
        train(with_train(recipe, only="body.decodr"), "", data, tmp_path / "no", CPU)
    teacher = dataclasses.replace(base, network=dataclasses.replace(base.network, kind="AT"))
    start = str(train(with_train(teacher, steps=1), "", data, tmp_path / "teacher", CPU))
    told = "length.table.weight is not to be learnt, but the model of train.start_from has no such weights; name them"
    with pytest.raises(UserError, match=told):
        train(with_train(recipe, only="body local", start_from=start), "", data, tmp_path / "no", CPU)
    assert not (tmp_path / "no").exists()


def test_a_run_stopped_before_its_first_checkpoint_still_begins_with_the_weights_it_was_given(
    prepared: tuple[Recipe, Path], tmp_path: Path
) -> None:
    base, data = prepared
    model = train(with_train(base, steps=2), "", data, tmp_path / "first", CPU)
    recipe = with_train(base, steps=2, start_from=str(model))
    train(recipe, "", data, tmp_path / "whole", CPU)
    train(recipe, "", data, tmp_path / "stopped", CPU)
    for folder in ("model", "checkpoints/step-2"):  # as a kill in the first update would leave it
        shutil.rmtree(tmp_path / "stopped" / folder)
    train(recipe, "", data, tmp_path / "stopped", CPU, resume=True)
    assert equal_weights(tmp_path / "whole/checkpoints/step-2", tmp_path / "stopped/checkpoints/step-2")


def whole_lines(run: Path) -> list[dict[str, float]]:
    """The log of a run that is still being written: the last line may be cut."""
    if not (run / "log.jsonl").exists():
        return []
    return [json.loads(line) for line in (run / "log.jsonl").read_text().split("\n")[:-1]]


def test_validation_sees_the_same_masks_every_time(prepared: tuple[Recipe, Path]) -> None:
    recipe, data = prepared
    learner = build_learner(recipe, data, CPU)
    validation = Validation(Corpus.open(data, "valid"), recipe, learner.model.body.target_size)
    first = validation.loss(learner).total.item()
    torch.manual_seed(99)
    assert validation.loss(learner).total.item() == first
    assert (
        Validation(Corpus.open(data, "valid"), recipe, learner.model.body.target_size).loss(learner).total.item()
        == first
    )


def test_bf16_trains(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    train(with_train(recipe, steps=4, precision="bf16"), "", data, tmp_path / "run", CPU)
    assert {tensor.dtype for tensor in weights_of(tmp_path / "run/model").values()} == {torch.float32}


def test_an_existing_run_is_not_touched(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="exists already; add --resume"):
        train(recipe, "", data, tmp_path / "run", CPU)
    with pytest.raises(UserError, match="nothing to resume"):
        train(recipe, "", data, tmp_path / "run", CPU, resume=True)


def test_resume_refuses_another_recipe_by_name(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    train(with_train(recipe, steps=4), "", data, tmp_path / "run", CPU)
    with pytest.raises(UserError, match=r"another objective\.alpha, seed"):
        changed = dataclasses.replace(recipe, objective=dataclasses.replace(recipe.objective, alpha=0.2))
        train(with_train(changed, seed=2), "", data, tmp_path / "run", CPU, resume=True)


def test_resume_refuses_other_data(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    train(with_train(recipe, steps=4), "", data, tmp_path / "run", CPU)
    fewer = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, max_length=6))
    prepare(fewer, tmp_path / "other", vocab_from=data)
    with pytest.raises(UserError, match="was started on other data than"):
        train(recipe, "", tmp_path / "other", tmp_path / "run", CPU, resume=True)


def test_a_loss_that_is_no_number_stops_the_run(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    with pytest.raises(UserError, match="no longer a number"):
        train(with_train(recipe, learning_rate=1e30, warmup_steps=1), "", data, tmp_path / "run", CPU)


def test_sentences_longer_than_the_position_table_are_refused(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    small = dataclasses.replace(recipe, network=dataclasses.replace(recipe.network, max_positions=6))
    with pytest.raises(UserError, match="max_positions 6 is too small; set it to"):
        train(small, "", data, tmp_path / "run", CPU)
    assert not (tmp_path / "run").exists()


def test_the_log_tells_time_and_padding(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    train(with_train(recipe, steps=4, micro_batch_tokens=100), "", data, tmp_path / "run", CPU)
    lines = [line for line in log_of(tmp_path / "run") if "loss" in line]
    assert all(0 <= line["padding"] < 0.5 and line["seconds"] > 0 and "mfu" not in line for line in lines)
    corpus, plan = Corpus.open(data, "train"), updates_from(Corpus.open(data, "train"), recipe.train, 0, 0)
    batches = [make_batch(corpus, indices) for _, _, indices in itertools.islice(plan, 2)]
    positions = sum(part.positions for batch in batches for part in cut_rows(batch, 100))
    tokens = sum(int((batch.target != PAD).sum()) for batch in batches)
    assert lines[0]["padding"] == pytest.approx(1 - tokens / positions, abs=1e-4)
    assert lines[0]["tokens_per_second"] * lines[0]["seconds"] == pytest.approx(tokens, rel=0.05)


# ---- stopping early, moving averages, and what is logged beside ----------------------------------------------------


def validations(monkeypatch: pytest.MonkeyPatch, *scores: float) -> None:
    """Let the next validations have these BLEU scores."""
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
    train(recipe, "", data, run, CPU)
    assert list_checkpoints(run / "checkpoints")[-1].state.step == 7
    assert (run / "model").is_dir()

    validations(monkeypatch, 1, 4, 3, 5, 4, mean)
    train(with_train(recipe, steps=5), "", data, cut, CPU)  # in the middle of the waiting
    validations(monkeypatch, 4.9, 3, mean)
    train(recipe, "", data, cut, CPU, resume=True)
    assert equal_weights(run / "checkpoints/step-7", cut / "checkpoints/step-7")
    assert equal_weights(run / "model", cut / "model")

    before = (run / "log.jsonl").read_text()
    validations(monkeypatch, mean)
    train(recipe, "", data, run, CPU, resume=True)  # out of patience already: nothing more is trained
    assert (run / "log.jsonl").read_text() == before
    validations(monkeypatch, 2, 2, mean)
    train(with_train(recipe, patience=5), "", data, run, CPU, resume=True)
    assert list_checkpoints(run / "checkpoints")[-1].state.step == 9


def test_checkpoints_can_be_ranked_by_bleu(
    prepared: tuple[Recipe, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, data = prepared
    recipe = with_train(recipe, stop_by="bleu")
    validations(monkeypatch, 8.5, 3.0, 5.5, 2.0)
    train(recipe, "", data, tmp_path / "run", CPU)
    told = {line["step"]: line["valid_bleu"] for line in log_of(tmp_path / "run") if "valid_bleu" in line}
    assert told == {4: 8.5, 8: 3.0, 12: 5.5}
    states = [c.state for c in best_checkpoints(list_checkpoints(tmp_path / "run/checkpoints"), 2)]
    assert [(state.step, state.valid_bleu) for state in states] == [(4, 8.5), (12, 5.5)]
    monkeypatch.undo()
    train(with_train(recipe, steps=1), "", data, tmp_path / "real", CPU)
    assert 0 <= log_of(tmp_path / "real")[-1]["valid_bleu"] < 100


def test_a_moving_average_is_validated_resumed_and_becomes_the_model(
    prepared: tuple[Recipe, Path], tmp_path: Path
) -> None:
    recipe, data = prepared
    recipe = with_train(recipe, average="ema", ema_decay=0.8)
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(recipe, "", data, whole, CPU)
    train(with_train(recipe, steps=8), "", data, halves, CPU)
    train(recipe, "", data, halves, CPU, resume=True)
    for name in ("model.safetensors", "unaveraged.safetensors"):
        one, two = (load_file(run / "checkpoints/step-12" / name) for run in (whole, halves))
        assert all(torch.equal(one[key], two[key]) for key in one)
    assert not equal_weights(whole / "checkpoints/step-12", tmp_path / "whole/checkpoints/step-8")
    (best,) = best_checkpoints(list_checkpoints(whole / "checkpoints"), 1)
    assert equal_weights(whole / "model", best.directory)
    learner = build_learner(recipe, data, CPU)
    learner.model.load_state_dict(weights_of(whole / "checkpoints/step-12"))
    told = {line["step"]: line["valid_loss"] for line in log_of(whole) if "valid_loss" in line}
    again = Validation(Corpus.open(data, "valid"), recipe, learner.model.body.target_size).loss(learner).total.item()
    assert again == pytest.approx(told[12], abs=1e-6)


def test_an_average_that_does_not_decay_is_the_weights_themselves(prepared: tuple[Recipe, Path]) -> None:
    recipe, data = prepared
    learner = build_learner(with_train(recipe, average="ema", ema_decay=0), data, CPU)
    update(learner, make_batch(Corpus.open(data, "train"), range(40)), 1)
    assert learner.average is not None
    average = learner.average.weights
    assert all(torch.equal(parameter, average[name]) for name, parameter in learner.model.named_parameters())


def test_a_spike_stops_the_run_and_keeps_the_checkpoint(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, data = prepared
    recipe = with_train(recipe, spike_factor=1.0001, learning_rate=1.0, warmup_steps=4, validate_every=2, log_every=1)
    with pytest.raises(UserError, match=r"over 1\.0001 times its lowest, .*--resume --set train\.spike_factor=0$"):
        train(recipe, "", data, tmp_path / "run", CPU)
    newest = list_checkpoints(tmp_path / "run/checkpoints")[-1]
    assert newest.can_resume
    assert newest.state.step >= 4  # the warm-up was left alone
    train(with_train(recipe, spike_factor=0.0), "", data, tmp_path / "run", CPU, resume=True)
    assert (tmp_path / "run/model").is_dir()


def test_tensorboard_goes_on_after_a_resume(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe, data = prepared
    recipe = with_train(recipe, tensorboard=True)
    train(with_train(recipe, steps=8), "", data, tmp_path / "run", CPU)
    train(recipe, "", data, tmp_path / "run", CPU, resume=True)
    events = EventAccumulator(str(tmp_path / "run/tensorboard")).Reload()
    told = {"train/loss": "loss", "valid/loss": "valid_loss", "train/learning_rate": "learning_rate"}
    for tag, key in told.items():
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
