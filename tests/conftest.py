"""Tiny models, trained once per test worker: as fast as sharing them between workers, and without locks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from toy import toy_recipe, write_talkative

from lath.config import Recipe
from lath.decoding.decoder import PlainDecoder
from lath.model.directory import LoadedModel, load_model
from lath.model.pair import make_pair
from lath.preparation import prepare
from lath.text.vocab import Vocab, load_vocabs
from lath.trainer import train
from lath.translator import Translator, load

torch.set_num_threads(1)

CPU = torch.device("cpu")


class SpelledVocab:
    """A vocabulary that decodes to token ids, so that different outputs never look the same."""

    def __init__(self, vocab: Vocab) -> None:
        self.vocab, self.size, self.placeholders = vocab, vocab.size, vocab.placeholders

    def encode(self, text: str) -> list[int]:
        return self.vocab.encode(text)

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        return self.vocab.encode_lines(lines)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(id) for id in ids)

    def token(self, id: int) -> str:
        return str(id)


Runs = Callable[[str], Path]
Translators = Callable[[str], Translator]


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text of a toy language (train.src, train.tgt, valid.src, valid.tgt), and `data`, prepared from it."""
    folder = tmp_path_factory.mktemp("toy")
    prepare(small_recipe(folder, "AT"), folder / "data")
    return folder


def small_recipe(folder: Path, kind: str) -> Recipe:
    """Just enough steps for two checkpoints; the model has learnt almost nothing."""
    return toy_recipe(folder, kind, steps=20, validate_every=10, keep_best=2, log_every=5, step_tokens=300)


@pytest.fixture(scope="session")
def toy_run(toy_folder: Path) -> Runs:
    """The run directory of a small model of each kind."""

    def run(kind: str) -> Path:
        directory = toy_folder / f"run-{kind}"
        if not directory.exists():
            train(small_recipe(toy_folder, kind), toy_folder / "data", directory, device="cpu")
        return directory

    return run


@pytest.fixture(scope="session")
def pair_parts(toy_folder: Path) -> tuple[Path, Path]:
    """A random student and a random verifier, which seldom agree."""
    parts = toy_folder / "student", toy_folder / "teacher"
    vocab = load_vocabs(toy_folder / "data")[0]
    write_talkative(parts[0], "LAT", vocab)
    write_talkative(parts[1], "AT", vocab)
    return parts


@pytest.fixture(scope="session")
def toy_pair(pair_parts: tuple[Path, Path], toy_folder: Path) -> Path:
    """Both in one directory."""
    make_pair(*pair_parts, toy_folder / "pair", {})
    return toy_folder / "pair"


@pytest.fixture(scope="session")
def trained(toy_run: Runs) -> Translators:
    """A small trained model of each kind, ready to translate."""
    return lambda kind: load(toy_run(kind) / "model", "cpu")


@pytest.fixture(scope="session")
def wild(toy_run: Runs) -> Translators:
    """A random model of each kind whose output differs from position to position, decoded to token ids."""

    def make(kind: str) -> Translator:
        loaded = load_model(toy_run(kind) / "model", CPU)
        generator = torch.Generator().manual_seed(7)
        for name, parameter in loaded.model.named_parameters():
            if parameter.dim() > 1:
                embedding = "tables" in name or "positions" in name
                torch.nn.init.normal_(parameter, std=1.0 if embedding else 0.15, generator=generator)
        spelled = SpelledVocab(loaded.target_vocab)
        return Translator(
            LoadedModel(loaded.model, loaded.info, loaded.source_vocab, spelled), PlainDecoder(loaded.model)
        )

    return make


@pytest.fixture
def model_copy(toy_run: Runs, tmp_path: Path) -> Path:
    """A model directory (LAT) that a test may damage."""
    return Path(shutil.copytree(toy_run("LAT") / "model", tmp_path / "model"))


@pytest.fixture
def few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure throughput on as few batches as the sentences fill; test_sentences.py tests the usual minimum."""
    monkeypatch.setattr("lath.analysis.sentences.FEWEST_BATCHES", 1)
