"""Does protected text come through, and what does it cost? No text should be wrong, the ratio under 1.5.

    python benchmarks/protect.py de-en [news.de ...] --texts 2000 [--device cuda]

Each text has 1 to 5 protected strings: in German sentences written for them, or, if files are given, between any two
words of one of their sentences. It is translated with `attempts`, and without these strings as it is, in turns of 50
texts. Prints texts in which a string was lost or doubled, how often each attempt was needed, the median ratio of the
times and the ratio of source tokens; then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import string
import time
from collections import Counter
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path

import lath
from lath.document.protect import attempts, find_spans
from lath.files import chunks, read_lines
from lath.translator import Translator


def word(draw: random.Random) -> str:
    """A made-up word."""
    return "".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 9)))


MAKERS: dict[str, Callable[[random.Random], str]] = {
    "url": lambda draw: f"https://{word(draw)}.{draw.choice(['de', 'org'])}/{word(draw)}?id={draw.randint(1, 999)}",
    "email": lambda draw: f"{word(draw)}.{word(draw)}@{word(draw)}.{draw.choice(['de', 'com'])}",
    "path": lambda draw: draw.choice(["/{0}/{0}.txt", "C:\\{0}\\x", "~/{0}", "src/{0}.py"]).format(word(draw)),
    "placeholder": lambda draw: draw.choice(["{%s}", "{{ %s }}", "%%(%s)s", "${%s}", ":%s:"]) % word(draw),
    "markup": lambda draw: draw.choice(["<0/>", f'<a href="{word(draw)}">', "</b>", "&nbsp;", "&amp;"]),
    "emoji": lambda draw: draw.choice(["😀", "👍🏽", "👨‍👩‍👧", "🇩🇪", "❤️", "🎉🎉"]),
    "code": lambda draw: f"`{word(draw)}({word(draw)})`",
    "handle": lambda draw: draw.choice("@#") + word(draw) + str(draw.randint(0, 99)),
    "date": lambda draw: f"{draw.randint(1, 28)}.{draw.randint(1, 12)}.{draw.randint(1950, 2030)}",
    "time": lambda draw: f"{draw.randint(0, 23)}:{draw.randint(10, 59)}",
    "number": lambda draw: draw.choice(["{} km", "{},5 %", "1.{},50 EUR", "€{}", "{}"]).format(draw.randint(100, 999)),
}  # fmt: skip


ANY, NUMBER = ("url", "email", "path", "placeholder", "code", "handle"), ("date", "number")
TEMPLATES = {
    "Schreib bitte an {}.": ("email",),
    "Mehr dazu steht auf {}, wenn du Zeit hast.": ("url",),
    "Die Datei {} liegt im Ordner {}.": ("path", "path"),
    "Klicken Sie auf {}, um die Seite zu öffnen.": ("url",),
    "Hallo {}, du hast eine neue Nachricht von {}.": ("placeholder", "handle"),
    "Bitte ersetze {} durch {} und starte das Programm neu.": ANY,
    "Der Fehler tritt nur bei {} auf.": ANY,
    "{} hat heute ein Bild geteilt.": ("handle", "placeholder"),
    "Kennst du {}?": ANY,
    "Ich habe {} gelesen, aber {} nicht verstanden.": ANY,
    "Rufen Sie {} an oder gehen Sie auf {}.": ANY,
    "Heute ist ein schöner Tag {} und ich freue mich sehr.": ("emoji",),
    "Ich freue mich sehr auf das Wochenende! {}": ("emoji",),
    "Alle Fragen zu {} beantwortet {} gern.": ANY,
    "Der Befehl {} löscht alle Dateien in {}.": ("code", "path"),
    "Das ist {} sehr wichtig {} für uns.": ("markup",),
    "Das Paket wiegt {} und kostet {}.": ("number",),
    "Wir sehen uns am {} um {}.": ("date", "time"),
    "Der Weg zum Bahnhof ist {} lang.": ("number",),
    "Im letzten Jahr haben {} Menschen unterschrieben.": ("number",),
    "Die neue Version erscheint am {} auf {}.": ("date", "url"),
}


def from_templates(draw: random.Random) -> tuple[list[str], list[str], list[str]]:
    """Sentences with 1 to 5 protected strings in all, the strings, and the sentences without them."""
    count, sentences, strings, bare = draw.randint(1, 5), [], [], []
    while len(strings) < count:
        template, kinds = draw.choice(list(TEMPLATES.items()))
        slots = template.count("{}")
        if len(strings) + slots <= count:
            own = [MAKERS[draw.choice(kinds) if len(kinds) != slots else kinds[slot]](draw) for slot in range(slots)]
            sentences.append(template.format(*own))
            strings += own
            bare.append(" ".join(template.replace("{}", "").split()))
    return sentences, strings, bare


def from_sentence(sentence: str, draw: random.Random) -> tuple[list[str], list[str], list[str]]:
    """The same for one sentence, with the strings between any two of its words."""
    strings = [MAKERS[kind](draw) for kind in draw.choices(list(MAKERS), k=draw.randint(1, 5))]
    words = sentence.split()
    for span in strings:
        words.insert(draw.randrange(len(words)), span)
    return [" ".join(words)], strings, [sentence]


def protected(translator: Translator, texts: list[str], rounds: Counter[str]) -> list[str]:
    """Translations by `attempts`; counts the sentences of each round."""
    plans = [attempts(text, find_spans(text), translator.source_vocab.placeholders) for text in texts]
    joined: dict[int, str] = {}
    while open_ones := [number for number in range(len(texts)) if number not in joined]:
        tried = [(number, plans[number].pop(0)) for number in open_ones]
        inputs = list(chain.from_iterable(attempt.texts for _, attempt in tried))
        rounds["tokens"] += sum(map(len, translator.source_vocab.encode_lines(inputs)))
        outputs = iter(translator.translate(inputs))
        for number, attempt in tried:
            name = "parts" if not plans[number] else "as it is" if len(plans[number]) > 1 else "stand-ins"
            result = attempt.join(list(islice(outputs, len(attempt.texts))))
            rounds[name] += 1
            rounds[name + ", joined"] += result is not None
            if result is not None:
                joined[number] = result
    return [joined[number] for number in range(len(texts))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Count protected strings that a translation loses, and its time.")
    parser.add_argument("model")
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--show", type=int, default=0, help="translations to print")
    arguments = parser.parse_args()
    draw = random.Random(1)
    lines = [line for path in arguments.files for line in read_lines(path) if 3 <= len(line.split()) <= 30]
    lines = [line for line in lines if not find_spans(line)]
    made = [from_sentence(draw.choice(lines), draw) if lines else from_templates(draw) for _ in range(arguments.texts)]
    translator = lath.load(arguments.model, arguments.device)
    translator.translate([sentence for _, _, bare in made[:20] for sentence in bare])
    rounds: Counter[str] = Counter()
    times: list[tuple[float, float]] = []
    wrong = 0
    for batch in chunks(made, 50):
        began = time.perf_counter()
        translator.translate([sentence for _, _, bare in batch for sentence in bare])
        between = time.perf_counter()
        outputs = iter(protected(translator, [sentence for sentences, _, _ in batch for sentence in sentences], rounds))
        times.append((between - began, time.perf_counter() - between))
        for sentences, strings, _ in batch:
            text, output = " ".join(sentences), " ".join(islice(outputs, len(sentences)))
            missing = [span for span in strings if output.count(span) != text.count(span)]
            wrong += bool(missing)
            if missing or arguments.show > 0:
                print(*missing, text, output, sep="\n  ")
            arguments.show -= 1
    print("| attempt | sentences | joined |\n|---|--:|--:|")
    for name in ("as it is", "stand-ins", "parts"):
        print(f"| {name} | {rounds[name]} | {rounds[name + ', joined']} |")
    ratio = statistics.median(slow / fast for fast, slow in times)
    tokens = rounds["tokens"] / sum(
        map(len, translator.source_vocab.encode_lines([sentence for _, _, bare in made for sentence in bare]))
    )
    print(f"{wrong} of {arguments.texts} texts wrong; {ratio:.2f} x the time and {tokens:.2f} x the source tokens")
    print(json.dumps({"texts": arguments.texts, "wrong": wrong, "rounds": rounds, "ratio": ratio, "tokens": tokens}))


if __name__ == "__main__":
    main()
