from __future__ import annotations

import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lath.document.protect import Attempt, attempts, find_spans, with_placeholders

# A text, and after the bar what must come through unchanged, in order.
TABLE = r"""
Schreib an max.mustermann@beispiel.de. | max.mustermann@beispiel.de
(a.b+c@x-y.co.uk) | a.b+c@x-y.co.uk
Siehe https://de.wikipedia.org/wiki/Foo_(Bar)?x=1&y=2#z, bitte! | https://de.wikipedia.org/wiki/Foo_(Bar)?x=1&y=2#z
(siehe http://x.de/a.) | http://x.de/a
„https://x.de/ä“ | https://x.de/ä
Besuche www.example.com, oder example.org/path/to?q=1. | www.example.com ; example.org/path/to?q=1
mailto:a@b.de ftp://x/y | mailto:a@b.de ; ftp://x/y
Das war gut.Dann ging er. |
Öffne /etc/passwd. | /etc/passwd
~/.bashrc, ../x/y und ./z | ~/.bashrc ; ../x/y ; ./z
C:\Windows\system32\foo.dll und D:/x | C:\Windows\system32\foo.dll ; D:/x
\\server\share\x.txt. | \\server\share\x.txt
Männer/Frauen und/oder Kinder |
src/lath/text.py. README.md, a/b.tar.gz | src/lath/text.py ; README.md ; a/b.tar.gz
Hallo {name}, {{ user.name }}! | {name} ; {{ user.name }}
%s %(x)d %1$s %.2f %@ | %s ; %(x)d ; %1$s ; %.2f ; %@
%d Dateien, 100 % der Leute | %d ; 100 %
173 %(name)s | 173 ; %(name)s
${x} $HOME {0:.2f} {} | ${x} ; $HOME ; {0:.2f} ; {}
{das ist ein Satz} |
:smile: %PATH% __init__ [[Link]] | :smile: ; %PATH% ; __init__ ; [[Link]]
Es ist so: gut. |
<0/> <b>fett</b> </1> | <0/> ; <b> ; </b> ; </1>
<a href="x y">Link</a><br /> | <a href="x y"> ; </a> ; <br />
<!-- Kommentar --> <!DOCTYPE html> | <!-- Kommentar --> ; <!DOCTYPE html>
a < b > c |
&nbsp;&amp; &#8364; &#x20AC; | &nbsp; ; &amp; ; &#8364; ; &#x20AC;
AT&T und so; |
Toll 😀👍🏽! | 😀👍🏽
👨‍👩‍👧 ist hier | 👨‍👩‍👧
🇩🇪🇫🇷 ❤️ | 🇩🇪🇫🇷 ; ❤️
1️⃣ Erstens 🏴󠁧󠁢󠁥󠁮󠁧󠁿 | 1️⃣ ; 🏴󠁧󠁢󠁥󠁮󠁧󠁿
Gut :-) ja ;) <3 | :-) ; ;) ; <3
Nutze `pip install x`, ``a`b`` und ```c```. | `pip install x` ; ``a`b`` ; ```c```
ein ` allein |
@max_m und #wetter2023, #1 | @max_m ; #wetter2023 ; #1
@max@social.example (@foo) | @max@social.example ; @foo
5 km, 3,5 % und 1.000,50 EUR | 5 km ; 3,5 % ; 1.000,50 EUR
€20, $1,000.50, 20 €, EUR 7 | €20 ; $1,000.50 ; 20 € ; EUR 7
20 °C, -5°C, 10kg, 100 km/h, 5 m² | 20 °C ; -5°C ; 10kg ; 100 km/h ; 5 m²
5 der Besten, 3 mal | 5 ; 3
10 000 Leute, 1 000 000 | 10 000 ; 1 000 000
am 24.12.2023 um 18:30 Uhr | 24.12.2023 ; 18:30
2023-12-24, 2023-12-24T18:30:00Z | 2023-12-24 ; 2023-12-24T18:30:00Z
12/24/2023 | 12/24/2023
Bestellung (Nr. 4711-A), Flug LH2034. | 4711-A ; LH2034
Artikel 12a, A4, CO2 und COVID-19 | 12a ; A4 ; CO2 ; COVID-19
Formular XJ/22-900/B, IBAN DE89 3704 0044 | XJ/22-900/B ; DE89 ; 3704 ; 0044
Commit 9de5524, 550e8400-e29b-41d4-a716-446655440000. | 9de5524 ; 550e8400-e29b-41d4-a716-446655440000
G-20-Gipfel, A4-Format, U2-Konzert, die 90er, 5-jährig |
vom 24.12. bis 26.12. | 24.12. ; 26.12.
24.–26.12.2023 | 24.–26.12.2023
18:30-19:00, 6:30 p.m. heute | 18:30-19:00 ; 6:30 p.m.
10–12 Leute | 10–12
am 3. Oktober, die 2. Auflage | 3. Oktober
vom 1. bis 5. Mai 2024 und am 24. Dez. | 1. bis 5. Mai 2024 ; 24. Dez.
am 3. Oktoberfest |
die 10-jährige 20er 2nd 1990s 90s |
im Jahr 2021. | 2021
Es sind 1,65 Meter. | 1,65
v1.2.3, 1.2.3 und 192.168.0.1 | v1.2.3 ; 1.2.3 ; 192.168.0.1
2001:db8:0:0:1:2:3:4 fe80::1 | 2001:db8:0:0:1:2:3:4 ; fe80::1
+49 30 1234567, (030) 123456, 030/123456 | +49 30 1234567 ; (030) 123456 ; 030/123456
+1 (555) 123-4567. | +1 (555) 123-4567
Ein ganz gewöhnlicher Satz, oder? |
""".strip().splitlines()


@pytest.mark.parametrize("row", TABLE)
def test_what_is_protected(row: str) -> None:
    text, _, wanted = row.rpartition("|")
    text = text.rstrip()
    spans = find_spans(text)
    merged = [text[span.start : span.end] for span in spans]
    assert merged == [word.strip() for word in wanted.split(" ; ") if word.strip()]


@pytest.mark.parametrize(
    ("string", "kind"),
    [
        ("https://x.de", "url"), ("a@b.de", "email"), ("/etc/x", "path"), ("{x}", "placeholder"), ("<b>", "markup"),
        ("&amp;", "markup"), ("😀", "emoji"), ("`x`", "code"), ("@x", "handle"), ("3.4.2020", "date"), ("8:30", "time"),
        ("5 km", "number"),
        ("4711-A", "identifier"),
    ],
)  # fmt: skip
def test_kinds(string: str, kind: str) -> None:
    (span,) = find_spans(f"So {string} und")
    assert (span.start, span.end, span.kind) == (3, 3 + len(string), kind)


PARTS = ["Hallo", "max@x.de", "https://x.de/a", "{name}", " ", ", ", ".", "😀", "<b>", "</b>", "5 km", "24.12.2023",
         "Osaka", "253", "(", ")", "`x`", "Wort", "\n", "é", "'", "@x1"]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PARTS), max_size=12).map("".join) | st.text(max_size=30)


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_spans_are_in_order_and_the_last_attempt_reproduces_a_text_that_is_copied(text: str) -> None:
    spans = find_spans(text)
    ends = [0, *(place for span in spans for place in span[:2])]
    assert ends == sorted(ends)
    assert all(span.start < span.end for span in spans)
    for attempt in attempts(text, spans):
        assert attempt.join(list(attempt.texts)) == text


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(0, 2**32))
def test_whatever_the_model_writes_nothing_is_lost_or_doubled(text: str, seed: int) -> None:
    """A model that drops, repeats and moves words."""
    draw = random.Random(seed)
    spans = find_spans(text)
    tried = attempts(text, spans)
    for attempt in tried:
        outputs = [written_badly(source, draw) for source in attempt.texts]
        joined = attempt.join(outputs)
        if attempt is tried[-1]:
            assert joined is not None
            place = 0
            for span in spans:  # in parts, all are there, and in order
                place = joined.index(text[span.start : span.end], place) + span.end - span.start
        elif joined is not None:
            for string in {text[span.start : span.end] for span in spans if not text[span.start].isalnum()}:
                assert joined.count(string) == text.count(string)


def written_badly(source: str, draw: random.Random) -> str:
    words = [word for word in source.split() for _ in range(draw.choice([0, 1, 1, 1, 1, 2]))]
    return draw.choice(["  ", " ", ",", "."]).join(words if draw.random() < 0.7 else draw.sample(words, len(words)))


def only(tried: list[Attempt], number: int) -> tuple[list[str], Attempt]:
    return tried[number].texts, tried[number]


def test_a_stand_in_takes_the_place_of_a_span() -> None:
    text = "Schreib an max@x.de, (a@b.de)."
    texts, first = only(attempts(text, find_spans(text)), 0)
    assert texts == ["Schreib an Osaka, ( Taro)."]
    assert first.join(["Write to Osaka, ( Taro)."]) == "Write to max@x.de, (a@b.de)."
    assert first.join(["Taro: write to Osaka."]) == "a@b.de: write to max@x.de."
    for bad in ("Write to Osaka.", "Write to Osaka, Taro, Taro.", "Write to Osakas, Taro.", ""):
        assert first.join([bad]) is None, bad


def test_what_a_stand_in_stands_for_does_not_hide_the_next() -> None:
    text = "Hallo @x1 und 7 km."
    texts, first = only(attempts(text, find_spans(text)), 0)
    assert texts == ["Hallo Osaka und 253."]
    assert first.join(["Hello Osaka and 253."]) == "Hello @x1 and 7 km."
    assert first.join(["Hello Osaka,253."]) is None  # no place for a number: it would read as 1,7


def test_stand_ins_that_the_text_has_are_not_used_and_numbers_get_numbers() -> None:
    text = "Osaka liegt 5 km von {x}."
    assert attempts(text, find_spans(text))[0].texts == ["Osaka liegt 253 von Taro."]


def test_a_placeholder_of_the_vocabulary_comes_first() -> None:
    text = "5 km<b>weit</b>!"
    texts, first = only(attempts(text, find_spans(text), ["⟦0⟧", "⟦1⟧"]), 0)
    assert texts == ["⟦0⟧ weit ⟦1⟧!"]
    assert first.join(["⟦0⟧ far ⟦1⟧!"]) == "5 km<b>far</b>!"


@pytest.mark.parametrize("text", ["Guten Morgen.", "Es sind 30 Leute.", "Hallo {x}, komm."])
def test_a_placeholder_that_the_model_invents_is_left_out(text: str) -> None:
    *first, last = attempts(text, find_spans(text), ["⟦0⟧", "⟦1⟧"])
    for attempt in first:
        (source,) = attempt.texts
        assert attempt.join([source]) == text
        assert attempt.join([source + " ⟦1⟧"]) is None
    assert last.join(["a ⟦1⟧ b" for _ in last.texts]).count("a b") == len(last.texts)  # type: ignore[union-attr]


def test_whole_numbers_are_first_left_to_the_model() -> None:
    text = "Im Jahr 2021 kamen 30 Leute."
    tried = attempts(text, find_spans(text))
    assert [attempt.texts for attempt in tried[:2]] == [[text], ["Im Jahr 253 kamen 735 Leute."]]
    assert tried[0].join(["In 2021, 30 people came."]) == "In 2021, 30 people came."
    assert tried[0].join(["In 2021, thirty people came."]) is None
    assert tried[0].join(["In 2021, 30 of 30 people came."]) is None


def test_the_numbers_of_a_worded_date_must_come_through() -> None:
    text = "Am 27. Januar 1945 in Nr. A5-1."
    as_it_is, stood_in, parts, _ = attempts("Am 27. Januar 1945 kam {x}.", find_spans("Am 27. Januar 1945 kam {x}."))
    assert as_it_is.texts == ["Am 27. Januar 1945 kam Osaka."]
    assert as_it_is.join(["On January 27th, 1945, came Osaka."]) == "On January 27th, 1945, came {x}."
    assert as_it_is.join(["On January 1945 came Osaka."]) is None
    assert stood_in.texts == ["Am Osaka kam Taro."]
    assert stood_in.join(["On Osaka, Taro came."]) == "On 27. Januar 1945, {x} came."
    assert parts.texts == ["Am 27. Januar 1945 kam"]
    assert parts.join(["On January 1945, came"]) is None
    assert [attempt.texts for attempt in attempts(text, find_spans(text))][-1][0] == "Am"


def test_at_the_edges_of_a_sentence_the_model_sees_no_emoji_and_no_markup() -> None:
    text = " <p>Guten Morgen! 😀 🎉"
    texts, first = only(attempts(text, find_spans(text)), 0)
    assert texts == ["Guten Morgen!"]
    assert first.join(["Good morning!"]) == " <p>Good morning! 😀 🎉"


@pytest.mark.parametrize("text", ["", "😀", "https://x.de", "a@b.de, {x}!", " 5 km "])
def test_a_text_with_nothing_to_translate_asks_for_nothing(text: str) -> None:
    (attempt,) = attempts(text, find_spans(text))
    assert attempt.texts == []
    assert attempt.join([]) == text


def test_parts_keep_white_space_and_punctuation_and_lose_the_full_stop_of_a_model() -> None:
    text = "Schreib an  a@b.de, wenn du {x}  hast!"
    texts, last = only(attempts(text, find_spans(text)), -1)
    assert texts == ["Schreib an", "wenn du", "hast!"]
    assert last.join(["Write to.", "if you", "have!"]) == "Write to  a@b.de, if you {x}  have!"


def test_more_spans_than_stand_ins_go_to_parts() -> None:
    text = " und ".join(f"{{x{number}}}" for number in range(20))
    assert len(attempts(text, find_spans(text))) == 1


@pytest.mark.parametrize("seed", range(4))
def test_hostile_texts_take_linear_time(seed: int) -> None:
    draw = random.Random(seed)
    alphabet = [
        *"aA0_.@/:;<>&{}[]()$%#`'\"-+ \\~,=*!?°é–\n\u200d\ufe0f😀🇩",
        "http://",
        "www.",
        "<!--",
        "a.de",
        "0.",
        "T",
    ]
    for _ in range(25):
        unit = "".join(draw.choices(alphabet, k=draw.randint(1, 4)))
        text = unit * (20_000 // len(unit))
        began = time.process_time()
        find_spans(text)
        assert time.process_time() - began < 1.5, unit  # linear: 0.1 s


def test_a_long_text_with_many_spans_takes_linear_time() -> None:
    texts = ("Hallo {x} und " * 3000, "Hallo " + "".join(f"{{x{number}}}" for number in range(3000)) + " und")
    began = time.process_time()
    for text in texts:
        for attempt in attempts(text, find_spans(text)):
            assert attempt.join(list(attempt.texts)) == text
    assert time.process_time() - began < 3


PLACEHOLDERS = ["⟦0⟧", "⟦1⟧", "⟦2⟧"]


def test_a_training_pair_gets_placeholders_for_what_both_sides_have_once() -> None:
    source, target = "Tom zahlte 3,5 % an a@b.de in Rom.", "In Rome, Tom paid a@b.de 3,5 %."
    seen = set()
    for seed in range(10):
        made = with_placeholders(source, target, PLACEHOLDERS, random.Random(seed))
        seen.add(made)
        names = [re.findall("⟦.⟧", text) for text in made]
        assert sorted(names[0]) == sorted(names[1]) == PLACEHOLDERS
        back = dict(zip(names[0], ["Tom", "3,5 %", "a@b.de"], strict=False))
        for text, original in zip(made, (source, target), strict=True):
            assert re.sub("⟦.⟧", lambda match: back[match[0]], text) == original  # noqa: B023
    assert len(seen) > 3


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("Tom mag Tom.", "Tom likes Tom."),
        ("Er kam 2021.", "He came in 2022."),
        ("Tom ⟦0⟧", "Tom ⟦0⟧"),
        ("der hund", "der hund"),
        ("5 km", "5 kmh"),
    ],
)
def test_other_pairs_stay_as_they_are(source: str, target: str) -> None:
    assert with_placeholders(source, target, PLACEHOLDERS, random.Random(1)) == (source, target)
