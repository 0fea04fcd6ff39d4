"""The tables that need nothing but texts and scores: the paper's 1, 2, 3 and Figure 3, significance, rare names.

Text and scores in, `Table` out. Those that need the passes of a model are in traces.py.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

from lath.analysis.analysis import Cell, System, Table
from lath.analysis.scores import Measured, bucket_lines, repeat_rates, token_lines
from lath.analysis.settings import AnalyseSettings
from lath.files import chunks

ORDERS = (1, 2, 3, 4)
PAPER_REPEATS = (2.49, 0.03, 0.00, 0.00)
"""The paper's Table 2: n-gram repeat rates of the reference of WMT'14 EN-DE."""
WINDOWS = range(1, 11)
"""Windows that are compared with the paper's row."""
COUNTED_LINES = 10_000
"""Lines that are tokenised at once where words are counted."""


def text_tables(
    systems: Sequence[System],
    measured: Sequence[Measured],
    source: Sequence[str] | None,
    reference: Sequence[str],
    settings: AnalyseSettings,
) -> list[Table]:
    """All tables of this file but that of names."""
    tokens = token_lines(reference, settings.tokenised)
    return [
        systems_table(systems),
        significance_table(systems),
        pairs_table(systems, measured),
        repeats_table(systems, tokens, settings),
        window_table(tokens, settings.window),
        buckets_table(systems, measured, reference, settings.edges),
        pieces_table(systems),
        parameters_table(systems),
    ]


def systems_table(systems: Sequence[System]) -> Table:
    """Table 1 of the paper: quality and latency of each system."""
    first = systems[0]
    names = [score.metric for score in first.scores.scores]
    rows: list[list[Cell]] = []
    for system in systems:
        latency = system.latency
        times: list[Cell] = [None] * 3 if latency is None else [latency.p50_ms, latency.p95_ms, None]
        if latency is not None and first.latency is not None:
            times[2] = first.latency.p50_ms / latency.p50_ms
        scores = [score.value for score in system.scores.scores]
        rest: list[Cell] = [system.scores.length_ratio, system.scores.repeat_rate]
        rows.append([system.name, kind(system), decoding(system), *scores, *rest, *times])
    signatures = [f"`{score.metric}|{score.signature}`" for score in first.scores.scores]
    timings = [f"{system.name}: `{system.latency.signature}`" for system in systems if system.latency is not None]
    return Table(
        "systems",
        "Quality and latency (the paper's Table 1; with a development set, its twin)",
        ["system", "kind", "decoding", *names, "length", "repeats %", "p50 ms", "p95 ms", "speed-up"],
        [0, 0, 0, *[2] * len(names), 3, 2, 2, 2, 2],
        rows,
        "\n".join(
            [
                f"Length: tokens per token of the reference; repeats: tokens equal to the one before; both of tok:"
                f"{first.scores.tokens}. Latency of a sentence alone, speed-up over {first.name} at p50"
                f"{'.' if timings else ': no system is a model that was timed.'}",
                *(f"- {line}" for line in [*signatures, *timings]),
            ]
        ),
    )


def kind(system: System) -> str:
    """AT, CMLM, LAT with its K, or text."""
    if system.model is None:
        return "text"
    piece = system.model.piece_length
    return system.model.kind if piece is None else f"{system.model.kind}, K = {piece}"


def decoding(system: System) -> str:
    """How a model decodes, in a few words."""
    if system.model is None:
        return ""
    settings = system.model.settings
    if system.model.kind == "AT":
        return f"beam {settings['beam']}"
    passes, lengths = settings["iterations"], settings["length_candidates"]
    extra = f" + {settings['extra_length']}" if settings["extra_length"] and system.model.kind == "LAT" else ""
    checked = f", {settings['verify']}" if settings["verify"] else ""
    return f"{passes} pass{'es' * (passes > 1)}, {lengths} length{'s' * (lengths > 1)}{extra}{checked}"


def significance_table(systems: Sequence[System]) -> Table:
    """Each system against the first, by sacrebleu's paired bootstrap."""
    names = [score.metric for score in systems[0].scores.scores]
    title = f"Significance against {systems[0].name}"
    if systems[0].scores.bleu.mean is None:
        return Table("significance", title, [], [], [], "Left out: there is one system, or --samples is 0.")
    rows: list[list[Cell]] = []
    for system in systems:
        cells: list[Cell] = [system.name]
        for score, base in zip(system.scores.scores, systems[0].scores.scores, strict=True):
            cells += [score.value - base.value, score.margin, score.p_value]
        rows.append(cells)
    return Table(
        "significance",
        title,
        ["system", *(cell for name in names for cell in (f"{name} difference", "±", "p"))],
        [0, *[2, 2, 4] * len(names)],
        rows,
        f"±: half of the 95 % interval of the system's own score. p: sacrebleu's paired bootstrap, "
        f"`{systems[0].scores.bleu.signature}`; of equal texts it means nothing.",
    )


def pairs_table(systems: Sequence[System], measured: Sequence[Measured]) -> Table:
    """The difference of BLEU of every pair, with its interval over the samples of the same bootstrap."""
    title = "Differences of BLEU, every pair"
    if not measured[0].bleu_samples.size:
        return Table("pairs", title, [], [], [], "Left out: there is one system, or --samples is 0.")
    rows: list[list[Cell]] = []
    for low, high in itertools.combinations(range(len(systems)), 2):
        difference = systems[high].scores.bleu.value - systems[low].scores.bleu.value
        interval = measured[high].gain_over(measured[low])
        rows.append([systems[high].name, systems[low].name, difference, *interval])
    header = ["system", "over", "BLEU", "from", "to"]
    return Table("pairs", title, header, [0, 0, 2, 2, 2], rows, "From, to: 95 % interval over the bootstrap samples.")


def repeats_table(systems: Sequence[System], reference: Sequence[str], settings: AnalyseSettings) -> Table:
    """Table 2 of the paper: n-gram repeat rates."""
    rows: list[list[Cell]] = [["reference", "", *repeat_rates(reference, settings.window)]]
    for system in systems:
        rates = repeat_rates(token_lines(system.texts, settings.tokenised), settings.window)
        rows.append([system.name, decoding(system), *rates])
    return Table(
        "repeats",
        "N-gram repeat rates in % (the paper's Table 2)",
        ["text", "decoding", *(f"n = {n}" for n in ORDERS)],
        [0, 0, 2, 2, 2, 2],
        rows,
        f"An n-gram counts if it starts at one of the {settings.window} positions before, too (--window). "
        f"tok:{systems[0].scores.tokens}.",
    )


def window_table(reference: Sequence[str], window: int) -> Table:
    """Which window comes nearest to the paper's row of the reference."""
    rates = {width: repeat_rates(reference, width) for width in WINDOWS}
    apart = {
        width: max(abs(rate - paper) for rate, paper in zip(found, PAPER_REPEATS, strict=True))
        for width, found in rates.items()
    }
    nearest = min(apart, key=apart.__getitem__)
    agrees = "agrees with" if apart[nearest] < 0.005 else f"comes nearest, {apart[nearest]:.2f} from"
    rows: list[list[Cell]] = [["the paper, WMT'14 EN-DE", *PAPER_REPEATS, None]]
    rows += [[f"{width}{' (used here)' * (width == window)}", *found, apart[width]] for width, found in rates.items()]
    return Table(
        "window",
        "What nearby means: repeat rates of the reference by window",
        ["positions back", *(f"n = {n}" for n in ORDERS), "farthest off"],
        [0, 2, 2, 2, 2, 2],
        rows,
        f"The paper gives no width. {nearest} {agrees} its row for this reference. The row is that of newstest2014, "
        f"English to German; of another reference it need not agree.",
    )


def buckets_table(
    systems: Sequence[System], measured: Sequence[Measured], reference: Sequence[str], edges: Sequence[int]
) -> Table:
    """Figure 3 of the paper: BLEU by reference length."""
    buckets = bucket_lines(reference, edges)
    starts = [1, *(edge + 1 for edge in edges)]
    spans = [f"{start}-{end}" for start, end in zip(starts, edges, strict=False)]
    sizes: list[Cell] = ["lines", *(str(len(lines)) for lines in buckets)]
    rows: list[list[Cell]] = [
        [system.name, *map(found.bleu_of, buckets)] for system, found in zip(systems, measured, strict=True)
    ]
    return Table(
        "buckets",
        "BLEU by words of the reference (the paper's Figure 3)",
        ["system", *spans, f"over {edges[-1]}"],
        [0, *[2] * len(buckets)],
        [sizes, *rows],
        "Each bucket is scored alone; an empty one has no score.",
    )


def pieces_table(systems: Sequence[System]) -> Table:
    """Table 3 of the paper: K against BLEU and latency."""
    found = [(system.model.piece_length, system) for system in systems if system.model is not None]
    rows: list[list[Cell]] = [
        [system.name, str(length), decoding(system), system.scores.bleu.value,
         None if system.latency is None else system.latency.p50_ms]
        for length, system in sorted(((k, s) for k, s in found if k is not None), key=lambda pair: pair[0])
    ]  # fmt: skip
    note = "" if rows else "Left out: no system is a LAT model; K is not known of a text file."
    header = ["system", "K", "decoding", systems[0].scores.bleu.metric, "p50 ms"]
    return Table("pieces", "Length of pieces (the paper's Table 3)", header, [0, 0, 0, 2, 2], rows, note)


def parameters_table(systems: Sequence[System]) -> Table:
    """The paper's table of parameters."""
    rows: list[list[Cell]] = [
        [system.name, kind(system), f"{facts.encoder_layers}-{facts.decoder_layers}", str(facts.width),
         facts.parameters / 1e6, facts.precision]
        for system in systems
        if (facts := system.model) is not None
    ]  # fmt: skip
    note = "" if rows else "Left out: no system is a model."
    header = ["system", "kind", "layers", "width", "million parameters", "precision"]
    return Table("parameters", "Parameters", header, [0, 0, 0, 0, 1, 0], rows, note)


def count_words(lines: Iterable[str], tokenised: bool) -> Counter[str]:
    """How often each token occurs."""
    counts: Counter[str] = Counter()
    for chunk in chunks(lines, COUNTED_LINES):
        for line in token_lines(chunk, tokenised):
            counts.update(line.split())
    return counts


def names_table(
    systems: Sequence[System],
    measured: Sequence[Measured],
    source: Sequence[str],
    reference: Sequence[str],
    counts: Counter[str],
    counted: str,
    settings: AnalyseSettings,
) -> Table:
    """The share of rare names that a translation has, and BLEU of the lines with and without one."""
    names = rare_names(source, reference, counts, settings)
    total = sum(map(len, names))
    groups = [[n for n, found in enumerate(names) if bool(found) == has] for has in (True, False)]
    rows: list[list[Cell]] = []
    for system, scores in zip(systems, measured, strict=True):
        written = [set(line.split()) for line in token_lines(system.texts, settings.tokenised)]
        kept = sum(len(found & words) for found, words in zip(names, written, strict=True))
        rows.append([system.name, 100 * kept / total if total else None, *map(scores.bleu_of, groups)])
    return Table(
        "names",
        "Rare names",
        ["system", "kept %", "BLEU of lines with one", "without"],
        [0, 1, 2, 2],
        rows,
        f"A name begins with a capital and is the same in source and reference; it is rare if it occurs fewer than "
        f"{settings.rare} times in {counted}. {total} names, in {len(groups[0])} of {len(names)} lines.",
    )


def rare_names(
    source: Sequence[str], reference: Sequence[str], counts: Counter[str], settings: AnalyseSettings
) -> list[set[str]]:
    """The rare names of each line."""
    sides = (token_lines(side, settings.tokenised) for side in (source, reference))
    return [
        {word for word in set(left.split()) & set(right.split()) if word[0].isupper() and counts[word] < settings.rare}
        for left, right in zip(*sides, strict=True)
    ]
