"""Run an exported AT model with CTranslate2 on the CPU (export.py, docs/formats.md).

The oracle is our own beam search (`beam_search`). CTranslate2's differs in some rules; this is how each is handled:

    length of a finished hypothesis  CTranslate2 counts EOS, as we do, if EOS is requested (return_end_token)
    empty translations               are allowed with min_decoding_length = 0
    no length penalty                would change the stopping rule; see `ALMOST_ZERO`
    length limit                     is per batch, and at the limit unfinished hypotheses compete with finished ones.
                                     Ours is per sentence, and unfinished hypotheses are a last resort. A sentence
                                     without a finished hypothesis is searched again by itself; see `SHORTEST_FIRST`
    tokens that are never written    would be removed before the softmax, where ours keep their probability. So they
                                     are allowed at first; a translation that contains one is made again without them,
                                     and its score is slightly higher than ours
    shortlist                        is per batch; ours is per sentence, so sentences are translated one by one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from lath.config import DecodeSettings
from lath.decoding.lengths import length_limits
from lath.decoding.results import Decoded
from lath.engine.export import (
    ENGINE_SHORTLIST,
    ENGINE_WEIGHTS,
    SHARED_NAMES,
    SOURCE_NAMES,
    TARGET_NAMES,
    engine_files,
    import_ctranslate2,
    token_names,
)
from lath.errors import UserError
from lath.files import read_json
from lath.model.directory import CONFIG, EXPORTED, ModelInfo, check_files, checked_vocabs, read_config
from lath.model.network import NEVER_WRITTEN_AFTER_BEGIN
from lath.model.padding import pad, row_lengths
from lath.text.vocab import EOS, LARGEST_FILE, Vocab, vocab_files

ALMOST_ZERO = 1e-9
"""A length penalty that changes no float32 score."""
SHORTEST_FIRST = -8.0
"""A length penalty that ranks by length, so that finished hypotheses come before those cut off at the limit.

The penalty only decides which hypotheses are returned; it does not change the search.
"""


def deciding_files(directory: Path) -> list[Path]:
    """The files of an exported directory that determine its translations."""
    engine = sorted(path for path in directory.iterdir() if path.is_file())
    return [*engine, directory / EXPORTED / CONFIG, *vocab_files(directory / EXPORTED)]


@dataclass(frozen=True)
class LoadedExport:
    """An exported directory in memory; the counterpart of `LoadedModel`."""

    decoder: CTranslate2Decoder
    info: ModelInfo
    source_vocab: Vocab
    target_vocab: Vocab


def load_exported(directory: Path, threads: int) -> LoadedExport:
    """An exported directory, ready to translate."""
    ctranslate2 = import_ctranslate2()
    config = read_config(directory / EXPORTED)
    info = config.info
    source_vocab, target_vocab = checked_vocabs(directory / EXPORTED, config)
    for path in (directory / ENGINE_WEIGHTS, *engine_files(directory)):
        if not path.is_file():
            raise UserError(f"{path}: missing; copy the whole directory again")
    if config.digests is None:  # CTranslate2 may crash the process when a file is damaged
        raise UserError(f"{directory}: exported by an earlier version, without SHA-256; export the model again")
    check_files(directory / EXPORTED, config, engine_files(directory))
    _check_names(directory, source_vocab, target_vocab)
    try:
        # compute_type "default" keeps the type of the weights if the processor supports it.
        engine = ctranslate2.Translator(str(directory), device="cpu", compute_type="default", intra_threads=threads)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"{directory}: ctranslate2 {ctranslate2.__version__} cannot read it ({str(error).splitlines()[0]}); "
            f"copy the directory again, or export the model again with this version"
        ) from None
    decoder = CTranslate2Decoder(engine, info, source_vocab, target_vocab, (directory / ENGINE_SHORTLIST).is_file())
    return LoadedExport(decoder, info, source_vocab, target_vocab)


def _check_names(directory: Path, source_vocab: Vocab, target_vocab: Vocab) -> None:
    """CTranslate2 must know the tokens by the names that this module passes and expects."""
    shared = (directory / SHARED_NAMES).is_file()
    for name, vocab in ((SOURCE_NAMES, source_vocab), (TARGET_NAMES, target_vocab)):
        path = directory / (SHARED_NAMES if shared else name)
        try:
            fits = read_json(path, LARGEST_FILE) == token_names(vocab)
        except (ValueError, OSError):
            fits = False
        if not fits:
            raise UserError(f"{path}: missing, damaged or of another vocabulary; copy the whole directory again")


class CTranslate2Decoder:
    """CTranslate2's engine under the rules of our beam search; a `Decoder`."""

    engine = "ctranslate2"

    def __init__(
        self, engine: Any, info: ModelInfo, source_vocab: Vocab, target_vocab: Vocab, has_shortlist: bool = False
    ) -> None:
        self._engine, self.has_shortlist = engine, has_shortlist
        self._max_positions = info.network.max_positions
        self._source_names = token_names(source_vocab)
        names = token_names(target_vocab)
        self._target_ids = {name: id for id, name in enumerate(names)}
        self._never_written = {*NEVER_WRITTEN_AFTER_BEGIN, *range(target_vocab.size, len(names))}
        self._forbidden = [[names[id]] for id in sorted(self._never_written)]

    @property
    def precision(self) -> str:
        """CTranslate2's name for its compute type; int8_float32 is int8 with float32 between the layers."""
        return str(self._engine.compute_type)

    def decode(self, source: Tensor, settings: DecodeSettings, trace: bool = False) -> list[Decoded]:
        """Translate B x S source tokens (each sentence ends in EOS); there is no trace of a beam search."""
        sentences = [row[: length - 1] for row, length in zip(source.tolist(), row_lengths(source), strict=True)]
        found = self._search(sentences, settings, forbidden=[])
        wrong = [number for number, decoded in enumerate(found) if not self._never_written.isdisjoint(decoded.ids)]
        if wrong:
            again = self._search([sentences[number] for number in wrong], settings, self._forbidden)
            for number, decoded in zip(wrong, again, strict=True):
                found[number] = decoded
        return found

    def _search(
        self, sentences: Sequence[Sequence[int]], settings: DecodeSettings, forbidden: list[list[str]]
    ) -> list[Decoded]:
        """The best finished hypothesis within each sentence's own limit; if there is none, the best at the limit."""
        source = pad([[*sentence, EOS] for sentence in sentences])
        limits: list[int] = length_limits(source, self._max_positions).tolist()
        penalty = settings.length_penalty
        found: list[Decoded] = []
        together = self._candidates(sentences, settings, max(limits), penalty, forbidden)
        for sentence, limit, candidates in zip(sentences, limits, together, strict=True):
            choice = [candidate for candidate in candidates if candidate.ended and candidate.steps <= limit]
            if not choice:
                (alone,) = self._candidates([sentence], settings, limit, SHORTEST_FIRST, forbidden)
                choice = [candidate for candidate in alone if candidate.ended] or alone
            best = max(choice, key=lambda candidate: candidate.score(penalty))
            found.append(Decoded(best.ids, best.score(penalty), len(best.ids) + 1))
        return found

    def _candidates(
        self,
        sentences: Sequence[Sequence[int]],
        settings: DecodeSettings,
        longest: int,
        penalty: float,
        forbidden: list[list[str]],
    ) -> list[list[_Candidate]]:
        """The hypotheses of each sentence's beam that rank best by the given length penalty."""
        penalty = penalty or ALMOST_ZERO
        results = self._engine.translate_batch(
            [[self._source_names[id] for id in sentence] for sentence in sentences],
            beam_size=settings.beam,
            num_hypotheses=settings.beam,
            use_vmap=settings.shortlist,
            max_batch_size=1 if settings.shortlist else 0,
            length_penalty=penalty,
            suppress_sequences=forbidden,
            return_end_token=True,
            return_scores=True,
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=longest,
        )
        return [
            [
                self._candidate(names, score * len(names) ** penalty)
                for names, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def _candidate(self, names: Sequence[str], log_probability: float) -> _Candidate:
        ids = [self._target_ids[name] for name in names]
        ended = ids[-1] == EOS
        return _Candidate(ids[:-1] if ended else ids, len(ids), ended, log_probability)


class _Candidate(NamedTuple):
    """A hypothesis returned by the engine."""

    ids: list[int]
    """Without EOS."""
    steps: int
    """Tokens written, including EOS."""
    ended: bool
    """Whether it wrote EOS; otherwise it was cut off at the limit."""
    log_probability: float

    def score(self, length_penalty: float) -> float:
        """The score that our beam search ranks it by."""
        return float(self.log_probability / self.steps**length_penalty)
