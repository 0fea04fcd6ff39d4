"""Whatever stands between two angle brackets: nothing raises, no tag is lost, and the time stays linear."""

from __future__ import annotations

import random
import re
import time

import pytest

from lath.document.html import translate_html

BITS = re.split(
    r"\s",
    "< > / ! -- [ <p <b> </b> </p> <i> </i> \" ' = a B c? &amp; &# x; &lt; <script> </script <![CDATA[ ]]> <!DOCTYPE "
    "<? <svg> <table> <td> </td> <![if <textarea> <select> <!- <template> <x0> </x0> <x0/> &lt;x0&gt; <code> </code> "
    "</title <img/alt= alt title= translate=no <li> </ul> <br/> ?> Wort",
)
BITS += [" ", "\n", "\0", "\N{NO-BREAK SPACE}", "\ud800", "ſ"]


def test_malformed_html_never_raises_and_keeps_every_tag() -> None:
    draw = random.Random(3)
    for _ in range(3000):
        html = "".join(draw.choices(BITS, k=draw.randint(1, 40)))
        assert translate_html(html, lambda texts: texts) == html
        result = translate_html(html, lambda texts: [" ".join(reversed(text.split())) + " <x1>" for text in texts])
        tags = re.compile(r"</?(?!x\d)[a-z]+")
        if not re.search("alt=|title=", html):  # which are translated, and may hold what looks like a tag
            assert sorted(tags.findall(result)) == sorted(tags.findall(html)), html


@pytest.mark.parametrize(
    "bit",
    ["<", "<a ", "<!--", "</", '<a b="', "<b>", "<b></i>", "<code>", "<title>", "<![", "<p translate=no>", "<x0>",
     "&lt;x0&gt;a<b>c</b>", "<li translate=no></ul>", "<a b = ", "<a     ", "<code><b></i>"],
)  # fmt: skip
def test_the_time_is_linear(bit: str) -> None:
    for start in ("", "<code>"):
        begin = time.process_time()
        translate_html(start + bit * 10_000, lambda texts: [text.upper() for text in texts])
        assert time.process_time() - begin < 5  # about half a second; a quadratic search takes a minute
