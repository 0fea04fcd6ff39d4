"""What `lath show` prints: a translation step by step, or a summary of a recipe, data, run or model directory."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from unicodedata import combining, east_asian_width

from lath.analysis.picture import (
    Cell,
    Name,
    Picture,
    cell_text,
    describe,
    describe_check,
    draw,
    draw_svg,
    row_label,
    verdicts,
)
from lath.analysis.plots import Curve, plot_curves, sparkline
from lath.config import find_recipe, load_recipe, to_tree
from lath.decoding.results import Hypothesis
from lath.errors import UserError
from lath.files import whole_file
from lath.model.directory import CARD, CONFIG, EXPORTED, is_exported, read_info
from lath.model.pair import find_verifier
from lath.text.corpus import DATA_INFO, read_data_info
from lath.text.vocab import MASK, Vocab
from lath.training.checkpoints import best_checkpoints, list_checkpoints
from lath.training.log import Entry, log_entries, training_words
from lath.training.ranking import out_of_patience, validation_costs
from lath.training.run import read_settings

COLOURS = {"good": "1;32", "lost": "9;31", "aside": "2", "given": "2", "head": "1", "masked": "7;33"}
"""Terminal codes; those of tokens that were kept depend on their probability."""
LEGEND = (
    "A row is the piece predicted at one position, each token with its probability in percent.\n"
    "Tokens that were aligned share a column; a token in (brackets) lost."
)


CHECKED = (
    "Below a draft, ✓ is a token that the verifier accepts; its own token stands below the first that it refuses.\n"
    "The rest is drafted again, behind what is kept; the last kept token stands as <s> there."
)


def explain(hypothesis: Hypothesis, vocab: Vocab, width: int = 100, colour: bool = False) -> str:
    """Each pass of a traced hypothesis as a picture: its input, the pieces, how they merge, and what is masked."""
    lines = [LEGEND, *([CHECKED] if hypothesis.checks else []), ""]
    if not hypothesis.passes:
        lines = ["No passes to show: the line is blank, the model is autoregressive (AT), or there is no trace."]
    for number, passes in enumerate(hypothesis.passes, start=1):
        if len(hypothesis.passes) > 1:
            lines.append(f"Fragment {number} of {len(hypothesis.passes)}")
        for iteration, traced in enumerate(passes, start=1):
            picture = draw(traced)
            lines += [f"Pass {iteration} of {len(passes)}", *_picture_lines(picture, vocab.token, width, colour)]
            lines += [f"  {describe(decision, vocab.token)}" for decision in picture.decisions]
            lines += [f"  {describe_check(picture, vocab.token)}"] if picture.checked else []
            if picture.length_change:
                verb = "inserted" if picture.length_change > 0 else "to delete, if there are enough"
                lines.append(f"  length: {abs(picture.length_change)} masks {verb}")
            lines.append("")
    if hypothesis.checks:
        lines.append(f"Passes: {hypothesis.iterations} of the model, {hypothesis.checks} of its verifier")
    return "\n".join([*lines, f"Translation: {hypothesis.text}"])


def _picture_lines(picture: Picture, name: Name, width: int, colour: bool) -> list[str]:
    """The rows of a picture; columns that do not fit go into a band below."""
    grid: list[tuple[str, dict[int, tuple[str, str]]]] = []
    for row in picture.rows:
        grid.append((row_label(row, name), {cell.column: _printed(cell, name) for cell in row.cells}))
    styles = {"accepted": "good", "refused": "lost"}
    grid.append(("merged", {one.column: (name(one.id), styles.get(one.state, "head")) for one in picture.output}))
    masked = {placed.column: (name(MASK), "masked") for placed in picture.output if placed.state == "masked"}
    grid += [("masked next", masked)] if masked else []
    checked = {column: (text, "good") for column, text in verdicts(picture, name)} if picture.checked else {}
    grid += [("checked", checked)] if checked else []
    widths = [0] * picture.columns
    for _, cells in grid:
        for column, (text, _) in cells.items():
            widths[column] = max(widths[column], _columns(text))
    indent = max(_columns(label) for label, _ in grid)
    kept = textwrap.wrap(" ".join(map(name, picture.prefix)), max(20, width - indent - 4), break_on_hyphens=False)
    lines = [f"  {label.ljust(indent)}  {part}" for label, part in zip(["kept", *[""] * len(kept)], kept, strict=False)]
    for band in _bands(widths, width - indent - 2):
        lines += [""] if band[0] else []
        for label, cells in grid:
            if any(column in cells for column in band):
                printed = [_padded(*cells.get(column, ("", "")), widths[column], colour) for column in band]
                lines.append("  ".join([f"  {_padded(label, '', indent, False)}", *printed]).rstrip())
    return lines


def _printed(cell: Cell, name: Name) -> tuple[str, str]:
    """The text of a cell and its colour."""
    text = cell_text(cell, name)
    if cell.state == "kept":
        return text, "32" if cell.score > math.log(0.7) else "33" if cell.score > math.log(0.4) else "35"
    return (f"({text})" if cell.state == "lost" else text), COLOURS[cell.state]


def _bands(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Columns that fit beside each other, at least one in each band."""
    band: list[int] = []
    used = 0
    for column, width in enumerate(widths):
        if band and used + width + 2 > room:
            yield band
            band, used = [], 0
        band.append(column)
        used += width + 2
    yield band


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _padded(text: str, style: str, width: int, colour: bool) -> str:
    code = COLOURS.get(style, style)
    shown = f"\x1b[{code}m{text}\x1b[0m" if colour and code else text
    return shown + " " * (width - _columns(text))


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
    verifier = find_verifier(directory)
    checked = "" if verifier is None else f"\nverifier: lath show {verifier}"
    return f"{text}\ndecoding defaults: {json.dumps(to_tree(info.decode))}{checked}"


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


def plot_passes(hypothesis: Hypothesis, vocab: Vocab, path: Path) -> None:
    """Write the picture of a traced hypothesis into an .svg file; an existing file is replaced."""
    if path.suffix != ".svg":
        raise UserError(f"{path}: the picture of a sentence is written as SVG; use a name that ends in .svg")
    with whole_file(path) as partial:
        partial.write_text(draw_svg(hypothesis, vocab.token), encoding="utf-8")


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
