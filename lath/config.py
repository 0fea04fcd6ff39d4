"""Every setting of a recipe, once: frozen dataclasses hold default and range, a TOML recipe holds what differs.

    recipe = load_recipe(Path("recipes/multi30k.toml"), ["train.steps=100"])

An unknown key, a wrong type or an impossible pair is a `UserError` that names file, section and remedy.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import tomllib
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from lath.errors import UserError, did_you_mean, shown

Kind = Literal["AT", "CMLM", "LAT"]
FORMATS = ("text", "html")
"""What a text to translate may be; plain text by default."""

PACKAGE = Path(__file__).parent
BUNDLED_RECIPES = (PACKAGE if (PACKAGE / "recipes").is_dir() else PACKAGE.parent) / "recipes"
"""Inside the package if lath was installed from a wheel, next to it in a checkout."""

MAX_NUMBER = 2**62
"""Libraries take whole numbers of 64 bits, and no setting needs a larger fraction either."""


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may be. It is part of the setting's type, and a refusal names it.

    >>> f"{Range(1)}; {Range(0, 1)}; {Range(0, 1, without=1)}; {Range(0, 1, without=0)}"
    'at least 1; 0 to 1; at least 0 and below 1; above 0 and at most 1'
    """

    least: float
    most: float = MAX_NUMBER
    without: float | None = None
    """An end that is not part of the range."""

    def __contains__(self, number: float) -> bool:
        return self.least <= number <= self.most and number != self.without

    def __str__(self) -> str:
        if self.without is None:
            return f"at least {self.least}" if self.most == MAX_NUMBER else f"{self.least} to {self.most}"
        if self.without == self.least:
            return f"above {self.least} and at most {self.most}"
        return f"at least {self.least} and below {self.most}"


Count = Annotated[int, Range(1)]
Width = Annotated[int, Range(1, 65_536)]
Share = Annotated[float, Range(0, 1)]
Rate = Annotated[float, Range(0, 1, without=1)]
"""A share that is never the whole."""


@dataclass(frozen=True)
class DataSettings:
    """The parallel text and the filters applied to it. Paths are relative to the current directory."""

    source_language: str = ""
    """Two-letter code of the source language."""
    target_language: str = ""
    """Two-letter code of the target language."""
    train_source: str = ""
    """Training text, source side: plain, .gz or .xz, aligned line by line with train_target."""
    train_target: str = ""
    """Training text, target side."""
    valid_source: str = ""
    """Validation text, source side."""
    valid_target: str = ""
    """Validation text, target side."""
    max_length: Count = 128
    """Maximum tokens per sentence on either side; longer pairs are dropped."""
    max_ratio: Annotated[float, Range(1)] = 3.0
    """Pairs are dropped when one side has more than this many times the tokens of the other and over 8 tokens more."""
    placeholder_share: Share = 0.1
    """Share of the training pairs in which names and numbers that both sides have become placeholders: enough to learn
    to copy placeholders, few enough to learn names and numbers too."""


@dataclass(frozen=True)
class VocabSettings:
    """How text is split into tokens."""

    kind: Literal["sentencepiece", "subword-nmt"] = "sentencepiece"
    """SentencePiece BPE with byte fallback on raw text, or subword-nmt BPE on tokenised text."""
    size: Annotated[int, Range(1, 1_000_000)] = 32000
    """sentencepiece: entries, including special tokens and bytes; subword-nmt without codes: merges to learn."""
    placeholders: Annotated[int, Range(0, 99)] = 8
    """sentencepiece: entries reserved for text that must come through unchanged, which the network learns to copy."""
    joint: bool = True
    """One vocabulary for both languages; false learns one per side."""
    source_codes: str = ""
    """subword-nmt: codes file of the source side, and of both sides if target_codes is empty."""
    target_codes: str = ""
    """subword-nmt: codes file of the target side."""


@dataclass(frozen=True)
class NetworkSettings:
    """The shape of the network (section 2.1, appendix B)."""

    kind: Kind = "LAT"
    """AT writes token by token, CMLM fills masks, LAT predicts a piece for each position."""
    width: Width = 512
    """Size of embeddings and hidden states."""
    heads: Width = 8
    """Attention heads."""
    feedforward: Width = 2048
    """Inner size of the feed-forward layers."""
    encoder_layers: Annotated[int, Range(1, 100)] = 6
    """Layers of the encoder."""
    decoder_layers: Annotated[int, Range(1, 100)] = 6
    """Layers of the decoder."""
    piece_length: int = 3
    """K, the tokens of a piece (LAT only): 2 to 8."""
    max_positions: Annotated[int, Range(16, 65_536)] = 512
    """Longest sequence the position and length tables know, begin and end included."""
    dropout: Rate = 0.3
    """Dropout on embeddings and on what each sublayer adds."""


@dataclass(frozen=True)
class ObjectiveSettings:
    """The training objective (section 2.3)."""

    loss: Literal["official", "paper"] = "official"
    """official: the mean over masked targets times 1 - alpha plus the mean over visible ones times alpha, as in the
    authors' program. paper: a sum over all targets divided by the target tokens, with weight 1 for tokens that do not
    appear in the decoder input (masked or deleted) and alpha for the others."""
    alpha: Share = 0.1
    """Weight of the targets that are visible in the decoder input (LAT)."""
    label_smoothing: Rate = 0.1
    """Share of the target probability spread evenly over the vocabulary."""
    deletion_rate: Rate = 0.15
    """Words deleted from the decoder input, as a share of the target's words: a random number up to this (LAT)."""
    delete_from_short: bool = False
    """Delete up to the whole share, and up to one word of any sentence. The default, as in the authors' program, stops
    one word short, so sentences of up to 9 words never lose a word."""
    insertion_rate: Rate = 0.0
    """Extra masks inserted into the decoder input, as a share of the target's words: a random number up to this, or up
    to one in short sentences (LAT); 0 inserts none. It helps short sentences; at 0.15 long ones came out too short."""
    mask_everything: bool = False
    """Allow all positions to be masked, as in the first pass of decoding (LAT)."""
    glancing_share: Share = 0.0
    """Share of the sentences whose masks depend on the model (LAT and CMLM): it predicts the first token of every piece
    from nothing but masks, and the more of them are wrong, the more of the target is shown. 0 turns glancing off."""
    glancing_ratio: Share = 0.5
    """Tokens shown for each wrong prediction, at the first update."""
    glancing_final_ratio: Share = 0.3
    """The same at the last update; it falls linearly."""
    length_weight: Annotated[float, Range(0, 1000)] = 1.0
    """Factor on the length loss."""


@dataclass(frozen=True)
class TrainSettings:
    """Optimisation, validation and checkpoints (appendix B)."""

    steps: Annotated[int, Range(1, 1_000_000_000)] = 300_000
    """Optimiser updates."""
    step_tokens: Annotated[int, Range(1, 1_000_000_000)] = 128_000
    """Target tokens per update, summed over micro-batches and devices."""
    micro_batch_tokens: Annotated[int, Range(1, 10_000_000)] = 16_000
    """Padded tokens (of the longer side) per forward pass; a matter of memory, the result does not depend on it."""
    learning_rate: Annotated[float, Range(0, 100, without=0)] = 5e-4
    """Peak learning rate."""
    warmup_steps: Count = 10_000
    """Steps of linear warm-up from 1e-7."""
    schedule: Literal["inverse_sqrt", "linear"] = "inverse_sqrt"
    """After the warm-up: inverse square root of the step, as in the paper, or linear decay to 0 at the last step."""
    start_from: str = ""
    """Model directory, such as the teacher's, that initialises every weight whose name and shape match."""
    adam_beta1: Rate = 0.9
    """Adam: decay of the first moment."""
    adam_beta2: Rate = 0.999
    """Adam: decay of the second moment."""
    adam_epsilon: Annotated[float, Range(0, 1, without=0)] = 1e-6
    """Adam: epsilon."""
    weight_decay: Share = 0.01
    """Decoupled weight decay, on all parameters."""
    clip_norm: Annotated[float, Range(0, 1_000_000_000)] = 25.0
    """Maximum gradient norm; 0 turns clipping off."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 runs the forward pass under autocast; weights stay fp32."""
    engine: Literal["auto", "plain", "packed"] = "auto"
    """plain: padded micro-batches, eager. packed: sentences end to end, compiled. auto: packed on a GPU with bf16,
    otherwise plain."""
    seed: Annotated[int, Range(0)] = 1
    """Seed of the initial weights, the order of the corpus, masks and dropout; for `lath prepare`, of placeholders."""
    validate_every: Count = 1000
    """Steps between validations; each validation writes a checkpoint."""
    keep_best: Count = 5
    """Best checkpoints to keep. The model is the average of the best one, two, ... of them, whichever average validates
    best."""
    log_every: Count = 100
    """Steps between entries in log.jsonl."""
    tensorboard: bool = False
    """Also write the log for TensorBoard, to RUN/tensorboard (needs the extra `logs`)."""
    stop_by: Literal["loss", "bleu"] = "loss"
    """What ranks validations: the validation loss, or BLEU on up to 200 translated validation sentences."""
    patience: Annotated[int, Range(0)] = 0
    """Stop after this many validations without improvement; 0 trains all steps."""


@dataclass(frozen=True)
class MergeRules:
    """How pieces are merged and how the length is adjusted between passes."""

    collapse_repeats: bool = True
    """Adjacent equal tokens inside one piece become one, before anything is merged."""
    concatenate_exact: bool = True
    """First join each piece whose head repeats the tail of the text so far, exactly and without any scoring."""
    edge_rules: bool = True
    """What only the left side has before the first match, and only the right after the last, stays unscored."""
    empty_probability: float = 0.25
    """The probability an empty span is worth when it competes with a span of tokens."""
    band: float = 0.05
    """Relative length difference that is left alone between passes; 1 or more is a number of tokens."""
    reach_input_length: bool = False
    """Outside the band, adjust to the input length itself and not only to the nearest edge of the band."""
    slot_after_eos: bool = False
    """Let masks also be inserted behind the end of the sentence (as the authors' program does)."""


# Departure: both rule sets keep the two edge rules, which Algorithm 1 does not have; the published results do.
RULE_SETS: dict[str, MergeRules] = {
    "official": MergeRules(),
    "paper": MergeRules(collapse_repeats=False, concatenate_exact=False, reach_input_length=True),
}


@dataclass(frozen=True)
class DecodeSettings:
    """How a trained model translates (section 2.2)."""

    iterations: Annotated[int, Range(1, 1000)] = 4
    """Passes of the decoder (CMLM, LAT)."""
    length_candidates: Annotated[int, Range(1, 9)] = 1
    """Target lengths tried side by side, as far as they are likely; the best-scoring one wins (CMLM, LAT)."""
    extra_length: Annotated[int, Range(0, 9)] = 0
    """Positions added to every predicted length (LAT): a mask too many does little harm to a model that has learnt with
    objective.insertion_rate, one too few does more."""
    beam: Annotated[int, Range(1, 1000)] = 5
    """Hypotheses kept at each step (AT); 1 is greedy."""
    length_penalty: Annotated[float, Range(-10, 10)] = 1.0
    """AT divides a hypothesis's log-probability by its length to this power."""
    rules: Literal["official", "paper"] = "official"
    """How pieces are merged (LAT): as in the authors' program, or as the paper's text describes it."""
    verify: Literal["", "rerank", "relaxed", "exact"] = ""
    """How a verifier (AT) checks what LAT writes: it chooses among the length candidates, accepts what it finds likely
    too, or accepts only what it would write itself."""
    verify_top: Annotated[int, Range(1, 1000)] = 3
    """relaxed: a token is accepted if it is among so many that the verifier finds likeliest there, ..."""
    verify_nats: Annotated[float, Range(0)] = 1.0
    """... and its log-probability is at most so much below the likeliest's."""
    shortlist: bool = False
    """Choose only among tokens that are likely for the source (on a CPU): faster, needs `lath shortlist`."""
    batch_sentences: Annotated[int, Range(0, 1_000_000)] = 0
    """Sentences decoded side by side (on a CPU fewer long ones); 0 takes what suits the device. In fp32 and int8 the
    output does not depend on it; in fp16 and bf16 near-ties may."""

    @property
    def merge_rules(self) -> MergeRules:
        """The single rules that `rules` stands for."""
        return RULE_SETS[self.rules]


class DecodeOptions(TypedDict, total=False):
    """`DecodeSettings` as keyword arguments: each changes one of the model's own settings for one call."""

    iterations: int
    length_candidates: int
    extra_length: int
    beam: int
    length_penalty: float
    rules: Literal["official", "paper"]
    verify: Literal["", "rerank", "relaxed", "exact"]
    verify_top: int
    verify_nats: float
    shortlist: bool
    batch_sentences: int


@dataclass(frozen=True)
class Recipe:
    """A whole experiment: what `lath prepare` and `lath train` need to know."""

    data: DataSettings = field(default_factory=DataSettings)
    vocab: VocabSettings = field(default_factory=VocabSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    decode: DecodeSettings = field(default_factory=DecodeSettings)


MAX_RECIPE = 1 << 16
"""Bytes; the longest recipe of ours has 4,000."""
MAX_DOTS = 1000
"""Dots on a line of TOML."""

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""A run's recipe is TOML, which cannot hold the bytes of a path that is not UTF-8."""

FORMER: dict[Any, dict[str, Callable[[Mapping[str, Any]], Any]]] = {
    VocabSettings: {"sample_lines": lambda section: section["sample_lines"]},
    NetworkSettings: {"piece_logit_scale": lambda _: 8.0},
    ObjectiveSettings: {"deleted_as_masked": lambda section: section.get("loss") == "paper"},
    TrainSettings: {
        "only": lambda _: "", "spike_factor": lambda _: 0.0, "average": lambda _: "best", "ema_decay": lambda _: 0.999,
    },
    DecodeSettings: {"merge": lambda _: None, "adjust_towards": lambda _: "current", "stop_early": lambda _: False},
}  # fmt: skip
"""Settings that no longer exist: from their section to the value that means what is done now. With that value, models,
data and runs of lath 0.1 can still be read."""


def find_recipe(path: Path) -> Path:
    """A bundled recipe named `tatoeba.toml` or `recipes/tatoeba.toml`, unless there is such a file; or the path."""
    bundled = BUNDLED_RECIPES / path.name
    named = path in (Path(path.name), Path("recipes", path.name)) and not path.exists()
    return bundled if named and bundled.is_file() else path


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a TOML recipe and apply `section.key=value` overrides, values written as in TOML."""
    path = find_recipe(Path(path))
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_RECIPE + 1)
        text = raw.decode("utf-8").replace("\r\n", "\n")
    except FileNotFoundError:
        bundled = [recipe.name for recipe in BUNDLED_RECIPES.glob("*.toml")]
        raise UserError(
            f"{path}: no such recipe{did_you_mean(path.name, bundled)}; write one with lath init, "
            f"or name a bundled one, for example tatoeba.toml"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); name a TOML file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not valid UTF-8 (byte {error.start}); a recipe is TOML text") from None
    if len(raw) > MAX_RECIPE:
        raise UserError(f"{path}: over {MAX_RECIPE} bytes, so this is not a recipe; name a TOML file")
    try:
        tree = _from_toml(text)
    except ValueError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    _merge_tree(tree, merge_overrides(overrides))
    return recipe_from_tree(tree, path.name)


def merge_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Several `section.key=value` as one tree; a later one wins."""
    tree: dict[str, Any] = {}
    for override in overrides:
        _merge_tree(tree, parse_override(override))
    return tree


def parse_override(override: str) -> dict[str, Any]:
    """`train.steps=100` as a tree. A word that is no TOML value is taken as a string.

    >>> parse_override("train.steps=100")
    {'train': {'steps': 100}}
    """
    key, equals, value = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals or not dot:
        raise UserError(f"--set {override[:200]}: write it as section.key=value, for example --set train.steps=100")
    try:
        [parsed] = _from_toml(f"value = {value}").values()
    except ValueError:
        parsed = value
    return {section: {name: parsed}}


def _from_toml(text: str) -> dict[str, Any]:
    """The tree of a TOML text; whatever is wrong with it is a `ValueError`."""
    if any(line.count(".") > MAX_DOTS for line in text.split("\n")):  # tomllib needs their square in time and memory
        raise ValueError(f"a line has over {MAX_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        raise ValueError("a number has too many digits") from None


def _merge_tree(tree: dict[str, Any], extra: Mapping[str, Any]) -> None:
    for section, values in extra.items():
        tree[section] = {**tree[section], **values} if isinstance(tree.get(section), dict) else values


def recipe_from_tree(tree: Mapping[str, Any], where: str) -> Recipe:
    """Build and check a recipe from nested tables; `where` names the file in messages."""
    recipe = settings_from_tree(Recipe, tree, where)
    check_recipe(recipe, where)
    return recipe


Settings = TypeVar("Settings")


def with_options(settings: DecodeSettings, options: DecodeOptions) -> DecodeSettings:
    """Decoding settings with some replaced by name, checked as a recipe's; None keeps one."""
    given = [part for name, value in options.items() if value is not None for part in (name, value)]
    try:
        return _with_options(settings, *given)
    except TypeError:  # a list, say, cannot be looked up; the checks say what is wrong with it
        return _with_options.__wrapped__(settings, *given)


@functools.lru_cache(maxsize=256, typed=True)
def _with_options(settings: DecodeSettings, *given: Any) -> DecodeSettings:
    """`given` are names and values in turn. Cached: the checks take a tenth of a short sentence's time on a GPU."""
    if not given:
        return settings
    options = dict(zip(given[::2], given[1::2], strict=True))
    checked = settings_from_tree(DecodeSettings, options, "decode")
    changed = dataclasses.replace(settings, **{name: getattr(checked, name) for name in options})
    check_decode(changed, "decode")
    return changed


def decode_options(overrides: Sequence[str]) -> DecodeOptions:
    """The checked options of several `decode.KEY=VALUE`; a trained model has no other settings to change."""
    tree = merge_overrides(overrides)
    for section in tree:
        if section != "decode":
            raise UserError(
                f"--set {section}...: a trained model only has decoding settings; use for example decode.iterations=1"
            )
    given = tree.get("decode", {})
    checked = with_options(DecodeSettings(), given)
    return typing.cast(DecodeOptions, {name: getattr(checked, name) for name in given})


@functools.cache
def _type_hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def settings_from_tree(kind: type[Settings], tree: Mapping[str, Any], where: str) -> Settings:
    """An instance of the settings dataclass `kind`; unknown keys and wrong types are refused."""
    hints = _type_hints(typing.cast(typing.Hashable, kind))
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if key in FORMER.get(kind, {}):
            if value != FORMER[kind][key](tree):
                raise UserError(
                    f"{where}: {key} is {shown(value)}, which only lath 0.1 supports; "
                    f"use that version, or remove {key} and check what changes"
                )
            continue
        if key not in hints:
            raise UserError(f"{where}: unknown setting {shown(key)}{did_you_mean(key, hints)}")
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise UserError(f"{where}: {key} is a section; write [{key}] and its settings below it")
            values[key] = settings_from_tree(typing.cast(type[Any], hints[key]), value, f"{where}: {key}")
        else:
            values[key] = _checked(hints[key], value, f"{where}: {key}")
    return kind(**values)


def _checked(hint: Any, value: Any, where: str) -> Any:
    """`value` if it fits the type `hint`; whole numbers are welcome where fractions are."""
    if typing.get_origin(hint) is Annotated:
        hint, allowed = typing.get_args(hint)
        value = _checked(hint, value, where)
        if value not in allowed:
            raise UserError(f"{where} must be {allowed}")
        return value
    if typing.get_origin(hint) is Literal:
        allowed = typing.get_args(hint)
        if value not in allowed:
            names = [str(name) for name in allowed]
            hint = did_you_mean(value, names) if isinstance(value, str) else ""
            raise UserError(f"{where}: {shown(value)} is not one of {', '.join(names)}{hint}")
        return value
    if type(value) in (int, float) and not abs(value) <= MAX_NUMBER:  # nan and infinity too
        raise UserError(f"{where}: {shown(value)} is out of range; give a finite number up to 2^62")
    if type(value) is str and _UNSTORABLE.search(value):
        raise UserError(f"{where}: {shown(value)} must be UTF-8 without NUL characters; rename the file")
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a text in quotes"}
        raise UserError(f"{where}: expected {wanted[hint]}, got {shown(value)}")
    return value


def check_recipe(recipe: Recipe, where: str) -> None:
    """Raise a `UserError` for settings that cannot work together."""
    data, network, objective, train = recipe.data, recipe.network, recipe.objective, recipe.train
    longest = data.max_length + 2  # with begin and end
    inserted = math.ceil(objective.insertion_rate * data.max_length)
    check_network(network, data.max_length, where)
    check_decode(recipe.decode, f"{where}: decode")
    if longest + inserted >= network.max_positions:
        raise UserError(
            f"{where}: data.max_length {data.max_length} with up to {inserted} inserted masks does not fit "
            f"network.max_positions {network.max_positions}; "
            f"set network.max_positions to {longest + inserted + 1} or more"
        )
    if objective.delete_from_short and objective.deletion_rate == 0:
        raise UserError(f"{where}: objective: delete_from_short needs a deletion_rate above 0")
    if objective.glancing_share > 0 and network.kind == "AT":
        raise UserError(f"{where}: objective: glancing_share is for LAT and CMLM; an AT sees no masks, so set it to 0")
    if min(train.step_tokens, train.micro_batch_tokens) < longest:
        raise UserError(
            f"{where}: train: step_tokens and micro_batch_tokens must be at least data.max_length + 2 = {longest}, "
            f"the longest sentence"
        )


def check_network(network: NetworkSettings, max_length: int, where: str) -> None:
    """Refuse a shape that cannot be built, or is too small for sentences of `max_length` tokens."""
    needed = max_length + 3  # begin, end, and one position to spare
    if network.width % network.heads:
        raise UserError(f"{where}: network: width must be divisible by heads")
    if network.kind == "LAT" and not 2 <= network.piece_length <= 8:
        raise UserError(f"{where}: network: piece_length must be 2 to 8")
    if needed > network.max_positions:
        raise UserError(
            f"{where}: network.max_positions {network.max_positions} is too small for max_length {max_length}; "
            f"set network.max_positions to {needed} or more"
        )


def check_decode(decode: DecodeSettings, where: str) -> None:
    """Refuse decoding settings that cannot work together."""
    if decode.verify and decode.shortlist:
        raise UserError(f"{where}: verify needs the whole vocabulary; set shortlist to false")


def to_toml(recipe: Recipe) -> str:
    """The settings that differ from the defaults, as a recipe that `load_recipe` reads back.

    >>> print(to_toml(Recipe(network=NetworkSettings(kind="AT"), train=TrainSettings(steps=100))), end="")
    [network]
    kind = "AT"
    <BLANKLINE>
    [train]
    steps = 100
    """
    defaults = to_tree(Recipe())
    sections: list[str] = []
    for name, settings in to_tree(recipe).items():
        changed = {key: value for key, value in settings.items() if value != defaults[name][key]}
        if changed:
            lines = [f"{key} = {_toml_value(value)}" for key, value in changed.items()]
            sections.append("\n".join([f"[{name}]", *lines]) + "\n")
    return "\n".join(sections)


def _toml_value(value: str | bool | int | float) -> str:
    if isinstance(value, str):
        # JSON escapes as TOML does, except that TOML also forbids a bare DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def to_tree(settings: Any) -> dict[str, Any]:
    """Settings as nested plain values, for JSON."""
    tree: dict[str, Any] = dataclasses.asdict(settings)
    return tree


AUTO = "auto"
"""For a device, precision or engine: the best one for the machine and the model (devices.py)."""


@dataclass(frozen=True)
class CompressSettings:
    """How a compressed model stores its weights (`lath compress`); here because the command line cannot wait for torch.

    Verbs of engine, analysis and serve have their settings in a file settings.py of the room.
    """

    storage: str = "int8"
    """One of `model.storage.SMALLER`."""
