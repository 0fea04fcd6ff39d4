"""What `lath show` prints: a translation step by step, or a summary of a recipe, data, run or model directory."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from lath.analysis.plots import Curve, plot_curves, sparkline
from lath.config import find_recipe, load_recipe, to_tree
from lath.decoding.merge import Decision
from lath.decoding.results import Pass
from lath.errors import UserError
from lath.model.directory import CARD, CONFIG, EXPORTED, is_exported, read_info
from lath.text.corpus import DATA_INFO, read_data_info
from lath.text.vocab import MASK, Vocab
from lath.training.checkpoints import best_checkpoints, list_checkpoints
from lath.training.log import Entry, log_entries, training_words
from lath.training.ranking import out_of_patience, validation_costs
from lath.training.run import read_settings
from lath.translator import Hypothesis


def explain(hypothesis: Hypothesis, vocab: Vocab) -> str:
    """Each pass of a traced hypothesis: its input, the pieces, how they were merged, and what was masked."""
    lines: list[str] = []
    if not hypothesis.passes:
        lines.append("No passes to show: the line is blank, the model is autoregressive (AT), or there is no trace.")
    for number, passes in enumerate(hypothesis.passes, start=1):
        if len(hypothesis.passes) > 1:
            lines.append(f"Fragment {number} of {len(hypothesis.passes)}")
        for iteration, traced in enumerate(passes, start=1):
            lines += [f"Pass {iteration} of {len(passes)}", *_explain_pass(traced, vocab), ""]
    return "\n".join([*lines, f"Translation: {hypothesis.text}"])


def _explain_pass(traced: Pass, vocab: Vocab) -> list[str]:
    """The lines of one pass, indented."""
    width = max(len(vocab.token(id)) for id in traced.input)
    single = all(len(piece) == 1 for piece in traced.pieces)  # CMLM: tokens fill masks, nothing is merged
    what = "token" if single else "piece"
    lines = [f"  decoder input and the {what} predicted at each position (probability of each token):"]
    for place, (id, piece, scores) in enumerate(zip(traced.input, traced.pieces, traced.scores, strict=True)):
        written = "  ".join(f"{vocab.token(t)} {100 * math.exp(s):.0f}%" for t, s in zip(piece, scores, strict=True))
        lines.append(f"    {place:3d} {vocab.token(id):{width}}  {written}")
    notable = [decision for decision in traced.decisions if decision.step != "match"]
    if notable:
        lines.append("  merging:")
        lines += [f"    piece {decision.piece:3d} {_explain_decision(decision, vocab)}" for decision in notable]
    lines.append(f"  {'filled:' if single else 'merged:'}      {_words(traced.output, vocab)}")
    if traced.masked:
        shown = [MASK if place in traced.masked else id for place, id in enumerate(traced.output)]
        lines.append(f"  masked:      {_words(shown, vocab)}")
    if traced.length_change:
        verb = "inserted" if traced.length_change > 0 else "to delete, if there are enough"
        lines.append(f"  length:      {abs(traced.length_change)} masks {verb}")
    return lines


def _explain_decision(decision: Decision, vocab: Vocab) -> str:
    left, right = _words(decision.left, vocab) or "nothing", _words(decision.right, vocab) or "nothing"
    if decision.step == "overlap":
        return f"repeats the end of the text: {right}"
    if decision.step == "concatenate":
        return f"shares nothing with the end of the text and is appended: {right}"
    winner = left if decision.kept == "left" else right
    return f"{left} ({decision.left_score:.2f}) against {right} ({decision.right_score:.2f}): {winner} wins"


def _words(ids: tuple[int, ...] | list[int], vocab: Vocab) -> str:
    return " ".join(vocab.token(id) for id in ids)


def show(path: Path, overrides: Sequence[str] = ()) -> str:
    """Summarise a recipe (with `overrides` as in --set), or a data, run, model or exported directory."""
    if find_recipe(path).is_file():
        return json.dumps(to_tree(load_recipe(path, overrides)), indent=2)
    if overrides:
        raise UserError(f"--set {overrides[0]}: {path} is not a recipe; leave --set out, or add a sentence")
    if (path / "resolved.json").is_file():
        return _show_run(path)
    if is_exported(path):
        return _show_model(path / EXPORTED)
    if (path / CONFIG).is_file():
        return _show_model(path)
    if (path / DATA_INFO).is_file():
        return _show_data(path)
    what = "is not a recipe, data, run or model directory" if path.exists() else "does not exist"
    raise UserError(f"{path}: {what}; give a recipe (.toml), or a directory written by lath prepare or lath train")


def _show_model(directory: Path) -> str:
    info = read_info(directory)
    card = directory / CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    return f"{text}\ndecoding defaults: {json.dumps(to_tree(info.decode))}"


def _show_data(directory: Path) -> str:
    info = read_data_info(directory)
    lines = [f"{directory}: {info.data.source_language} to {info.data.target_language}"]
    lines += [f"  {split:6} {counts}" for split, counts in info.splits.items()]
    return "\n".join([*lines, f"  vocabulary {info.source_vocab_size} source, {info.target_vocab_size} target"])


def _show_run(run: Path) -> str:
    recipe = read_settings(run)
    checkpoints = list_checkpoints(run / "checkpoints")
    entries = list(log_entries(run))
    lines = [f"{run}: {recipe.network.kind}, {recipe.train.steps} steps"]
    trained = [entry for entry in entries if "loss" in entry]
    if trained:
        lines.append(f"  step {trained[-1]['step']}: training {training_words(trained[-1])}")
    lines += [f"  {checkpoint.state}" for checkpoint in best_checkpoints(checkpoints, recipe.train.keep_best)]
    for name, curve in _loss_curves(entries).items():
        values = [value for _, value in curve]
        lines.append(f"  {name:15} {sparkline(values)} {values[0]:.3f} to {values[-1]:.3f}")
    step = checkpoints[-1].state.step if checkpoints else recipe.train.steps
    if (run / "model").is_dir() and step >= recipe.train.steps:
        state = "finished"
    elif (run / "model").is_dir() and out_of_patience(validation_costs(entries), recipe.train.patience):
        state = f"stopped early at step {step}: validation did not improve"
    else:
        state = "unfinished; continue with lath train ... --resume"
    return "\n".join([*lines, f"  {state}"])


def plot_run(run: Path, path: Path) -> None:
    """Plot the losses of a training run into an image file."""
    if not (run / "resolved.json").is_file():
        raise UserError(f"{run}: not a training run, so it has no losses to plot; name a run directory of lath train")
    plot_curves(_loss_curves(list(log_entries(run))), run.name, path)


def _loss_curves(entries: Sequence[Entry]) -> dict[str, Curve]:
    """Training and validation loss over the steps, if logged."""
    names = {"training loss": "loss", "validation loss": "valid_loss"}
    curves = {
        name: [(int(entry["step"]), float(entry[key])) for entry in entries if key in entry]
        for name, key in names.items()
    }
    return {name: curve for name, curve in curves.items() if curve}
