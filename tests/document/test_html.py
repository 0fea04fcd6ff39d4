from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from html import escape

import pytest

import lath
from lath.document.html import translate_html

Fake = Callable[[str], str]
TAGS = re.compile(r"<[^<>]*>")


def reversed_words(text: str) -> str:
    return " ".join(reversed(text.split()))


FAKES: dict[str, Fake] = {
    "identity": lambda text: text,
    "capitals": lambda text: re.sub(r"(<[^>]*>)|(.)", lambda found: found[1] or found[2].upper(), text),
    "reversed": reversed_words,
    "shortened": lambda text: " ".join(text.split()[::2]),
    "without tags": lambda text: TAGS.sub("", text),
    "tags twice": lambda text: text + " " + text,
    "one more word": lambda text: f"Ja {text}",
    "tags first": lambda text: "".join(TAGS.findall(text)) + TAGS.sub("", text),
    "one more tag": lambda text: f"<x0/>{text}<b>",
    "empty": lambda text: "",
}


def translated(html: str, fake: Fake) -> str:
    return translate_html(html, lambda texts: [fake(text) for text in texts])


def sent(html: str) -> list[str]:
    """What a document asks to be translated."""
    asked: list[str] = []
    translated(html, lambda text: (asked.append(text), text)[1])
    return asked


@pytest.mark.parametrize(
    ("html", "texts"),
    [
        ("", []),
        ("Nur Text &amp; mehr", ["Nur Text & mehr"]),
        ("<p>Guten <b>Morgen</b>, <a href='x'>Welt</a>!</p>", ["Guten Morgen, Welt!", "Guten", "Morgen", "Welt"]),
        ("<li><a href='x'>Eins</a></li>\n<li>Zwei", ["Eins", "Zwei"]),  # tags around all of a text are left out
        ("Eins<br>Zwei <wbr> drei", ["Eins", "Zwei <x0/> drei"]),
        ("<p>Viel\n  \tPlatz </p>", ["Viel Platz"]),
        ("<b>offen <p>und</b> falsch</p>", ["offen", "und", "falsch"]),
        ("<td>12</td><td>...</td>", []),
        ("Führe <code>ls <b>x</b></code> aus", ["Führe <x0/> aus"]),
        ("<script>a('<p>nein</p>')</script><style>p {}</style><pre>nein</pre><textarea>nein</textarea>ja", ["ja"]),
        ("<title>ja</title><kbd>nein</kbd><p class='a NoTranslate'>nein</p>", ["ja"]),
        ("<div translate=no>nein<div>nein</div>nein</div>ja", ["ja"]),
        ("<ul><li translate=no>nein<li>ja</ul><p translate=no>nein<p>ja", ["ja", "ja"]),  # end tags left out
        ("<div><p translate=no>nein</div>ja", ["ja"]),
        ("<img alt='Ein Hund' src=Hund.png><input placeholder=Name value=Wert>", ["Ein Hund", "Name"]),
        ("<a title='Ein &quot;Titel&quot;'>x</a>", ['Ein "Titel"', "x"]),
        ("<!-- nein --><!DOCTYPE html><?xml nein?>ja", ["ja"]),
        ("a < b & c", ["a < b & c"]),
        ("&lt;x0&gt; ist <b>ein</b> Text", ["<x0> ist ein Text", "x0> ist", "ein", "Text"]),
    ],
)
def test_what_is_translated(html: str, texts: list[str]) -> None:
    assert sent(html) == texts


@pytest.mark.parametrize(
    ("html", "fake", "expected"),
    [
        ("<P Class=x>Auf\n</P >", "capitals", "<P Class=x>AUF\n</P >"),  # the markup as it was written
        ("a &lt; b&nbsp;&amp; c", "capitals", "A &lt; B\N{NO-BREAK SPACE}&amp; C"),
        ("a <b class=x>b</b> <i>c d</i>", "reversed", "<i>d c</i> <b class=x>b</b> a"),  # elements change places
        ("a <b>b</b> <i>c d</i>", "without tags", "a <b>b</b> <i>c d</i>"),
        ("a <b>b</b> <i></i>", "one more word", "Ja a <b>b</b> <i></i>"),  # what is new is outside
        ("<img alt=Hund> <a title='&lt;i&gt;'>x y</a>", "reversed", "<img alt=Hund> <a title='&lt;i&gt;'>y x</a>"),
        ("<img alt='a \"b\"' title=c>", "capitals", '<img alt="A &quot;B&quot;" title="C">'),
    ],
)
def test_what_comes_back(html: str, fake: str, expected: str) -> None:
    assert translated(html, FAKES[fake]) == expected


BLOCKS = ["p", "div", "li", "h1", "td", "section", "button"]
INLINE = ["b", "i", "a", "span", "em"]
WORDS = ["Guten", "Morgen", "Welt", "&", "<", "Straße,", "x1", "»ja«", "42", "<x0>", "\N{NO-BREAK SPACE}"]


def snippet(draw: random.Random) -> str:
    """Well-formed markup, every element with an id of its own."""
    number = 0

    def element(name: str, content: str) -> str:
        nonlocal number
        number += 1
        extra = draw.choice(["", "", ' title="Ein Titel"', " translate='no'", ' class="a &amp; b"'])
        closing = f">{content}</{name}>" if name not in ("br", "img") else "/>"
        return f'<{name} id="{number}"{extra}{closing}'

    def text() -> str:
        return escape(" ".join(draw.choices(WORDS, k=draw.randint(1, 5))), quote=False)

    def sentence(depth: int) -> str:
        parts = [text()]
        for _ in range(draw.randint(0, 3)):
            kind = draw.random()
            if kind < 0.6 and depth:
                parts.append(element(draw.choice(INLINE), sentence(depth - 1)))
            elif kind < 0.8:
                parts.append(
                    draw.choice([element("code", "nein"), element("img", ""), element("br", ""), "<!-- n -->"])
                )
            parts.append(text())
        return draw.choice(["", " "]).join(parts)

    def block(depth: int) -> str:
        inside = "\n".join(block(depth - 1) for _ in range(draw.randint(1, 3))) if depth else sentence(2)
        return element(draw.choice(BLOCKS), inside)

    return block(draw.randint(0, 2))


def parents(html: str) -> dict[str, str]:
    """Tag and id of each element, and those of the element around it; raises if it is not well-formed."""
    tree = ElementTree.fromstring(f"<root>{html}</root>")
    return {f"{child.tag} {child.get('id')}": f"{node.tag} {node.get('id')}" for node in tree.iter() for child in node}


@pytest.mark.parametrize("name", FAKES)
def test_500_well_formed_snippets_keep_their_tags_and_nesting(name: str) -> None:
    draw = random.Random(7)
    changed = 0
    for _ in range(500):
        html = snippet(draw)
        result = translated(html, FAKES[name])
        assert parents(result) == parents(html), html
        changed += result != html
    assert changed == 0 if name == "identity" else changed > 200


def test_the_bundled_model_translates_html() -> None:
    mt = lath.load("de-en", device="cpu")
    html = '<h1>Guten Morgen.</h1>\n<p lang="de">Ich habe <b>keine Zeit</b>.</p><code>Guten Morgen.</code>'
    result = translate_html(html, mt.translate)
    assert result.startswith("<h1>Good morning.</h1>\n")
    assert result.endswith("<code>Guten Morgen.</code>")
    assert TAGS.findall(result) == TAGS.findall(html)
    assert "Zeit" not in result
    whole = translate_html(
        "<p>Guten <b>Morgen</b>, Tom. Er wohnt <i>in <a>Berlin</a></i>.</p>", mt.translate, mt.lay_out
    )
    assert whole == "<p>Good <b>morning</b>, Tom. He lives <i>in <a>Berlin</a></i>.</p>"
