"""The report in a real browser: it opens, sorts, filters, shows passes, obeys the keyboard, and makes no request."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from reports import HOSTILE, LINES, checked_passes, small_analysis

from lath.analysis.analysis import Trace
from lath.analysis.report import build_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)")


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, str]]:
    """The browser and the address of a report."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "report.html").write_text(build_report(small_analysis()), encoding="utf-8")
    with Browser(folder) as browser:
        yield browser, f"file://{folder}/report.html"


@pytest.fixture
def browser(window: tuple[Browser, str]) -> Iterator[Browser]:
    """The report freshly opened; whatever a test does, the page logs no error and makes no request."""
    browser, address = window
    browser.errors.clear()
    browser.show_as(1400, 900, "light")
    browser.call("Page.navigate", url="about:blank")
    browser.open(address)
    yield browser
    assert browser.run("window.hacked") is None
    assert browser.errors == []
    assert browser.requests == []


def text(browser: Browser, selector: str) -> list[str]:
    """What the elements of a selector say."""
    return list(browser.run(f"[...document.querySelectorAll({selector!r})].map(found => found.textContent)"))


def fill(browser: Browser, **controls: object) -> None:
    """Set controls by their ids, as a reader would."""
    for name, value in controls.items():
        kind = "checked" if isinstance(value, bool) else "value"
        shown = str(value).lower() if isinstance(value, bool) else repr(str(value))
        found = f"document.getElementById({name.replace('_', '-')!r})"
        browser.run(f"{found}.{kind} = {shown}")
        browser.run(
            f"{found}.dispatchEvent(new Event({found}.matches('select, [type=checkbox]') ? 'change' : 'input'))"
        )


def first_lines(browser: Browser, count: int = 3) -> list[int]:
    """The numbers of the first sentences in the list."""
    return [int(top.split(",")[0]) for top in text(browser, ".item .top")[:count]]


def selected(browser: Browser) -> str:
    (heading,) = text(browser, "#detail h3:first-of-type")[:1]
    return heading


def test_it_opens_with_tables_plots_and_the_first_sentence(browser: Browser) -> None:
    assert text(browser, "#tables h3") == [f"BLEU {HOSTILE}"]
    assert text(browser, "#tables tbody tr:last-child th") == [HOSTILE]
    assert text(browser, "#notes li") == ["A"]
    browser.wait("document.querySelector('#figures img').naturalWidth === 9")  # the policy lets plots in
    assert text(browser, "#count") == [f"{LINES} of {LINES} sentences"]
    assert selected(browser) == "Sentence 1"
    assert text(browser, ".systems .name b") == ["near", "far", "lat", "cmlm"]
    assert text(browser, ".systems .card:nth-child(1) mark") == ["wrong"]
    assert text(browser, ".systems .card:nth-child(2) mark") == ["nothing", "at", "all", "extra"]
    assert text(browser, ".systems .card:nth-child(2) del") == ["word0"]
    assert len(text(browser, ".item")) < 40  # of 400: only what is in sight is drawn


def test_hostile_text_is_shown_as_text(browser: Browser) -> None:
    browser.press("j", "j", "j")
    assert text(browser, ".pair p")[1] == HOSTILE
    browser.press("j")
    assert text(browser, ".pair p")[0] == HOSTILE
    browser.press("k", "k")
    browser.wait("document.querySelector('.picture')")
    browser.press("2")
    assert text(browser, "#written") == [HOSTILE]
    assert "old<b>" in text(browser, ".picture tfoot td span")


def test_sorting(browser: Browser) -> None:
    fill(browser, sort="length", down=True)
    assert first_lines(browser) == [40, 80, 120]
    fill(browser, system="1", sort="chrf", down=False)
    scores = [float(top.split("chrF ")[1].split(",")[0]) for top in text(browser, ".item .top")]
    assert scores == sorted(scores)
    assert scores[0] < scores[-1]
    fill(browser, system="0", rival="2", sort="difference")
    assert all((line - 1) % 7 == 0 for line in first_lines(browser, 10))
    browser.press("j")
    second = selected(browser)
    fill(browser, rival="3")  # the same order: the selected sentence stays selected
    assert selected(browser) == second
    fill(browser, sort="spread")
    assert selected(browser) == f"Sentence {first_lines(browser, 1)[0]}"


def test_filters(browser: Browser) -> None:
    fill(browser, words_low="3", words_high="4")
    assert first_lines(browser, 4) == [3, 43, 44, 83]  # line 4 of the first 40 is the hostile one
    fill(browser, text="ZEILE 43")
    assert first_lines(browser) == [44]
    assert text(browser, "#count") == [f"1 of {LINES} sentences"]
    fill(browser, text="not to be found")
    assert text(browser, "#detail") == ["No sentence fits. Widen the filters, or reset them."]
    browser.press("j", "1", "s", "n")  # nothing to go to, and no error
    browser.run("document.getElementById('reset').click()")
    assert text(browser, "#count") == [f"{LINES} of {LINES} sentences"]
    fill(browser, traced=True)
    assert first_lines(browser, 9) == [1, 3, 6]
    fill(browser, traced=False, system="0", rival="2", gap="1")
    assert text(browser, "#count") == [f"{len(range(0, LINES, 7))} of {LINES} sentences"]
    fill(browser, gap="", chrf_high="99")
    assert text(browser, "#count") == [f"{len(range(0, LINES, 7))} of {LINES} sentences"]


def picture(browser: Browser) -> list[list[str]]:
    """The rows of the picture, without empty cells."""
    rows = "[...document.querySelectorAll('.picture tr')]"
    return list(browser.run(f"{rows}.map(row => [...row.cells].map(cell => cell.textContent).filter(Boolean))"))


def test_scrolling_draws_what_comes_into_sight(browser: Browser) -> None:
    for top in (30, 3000, 3056, 1000000, 0):
        browser.run(f"document.getElementById('list').scrollTop = {top}")
        browser.wait(f"document.getElementById('list').scrollTop === {top} || {top} === 1000000")
        browser.wait(SIGHT)
    assert len(text(browser, ".item")) < 40


SIGHT = """
(() => {  // whether the list shows an item at its top, middle and end
  const box = document.getElementById("list").getBoundingClientRect();
  const shown = [...document.querySelectorAll(".item")].map((item) => item.getBoundingClientRect());
  return [box.top + 2, box.top + box.height / 2, box.bottom - 4].every(
    (y) => shown.some((item) => item.top <= y && item.bottom >= y));
})()
"""


def test_passes_are_drawn(browser: Browser) -> None:
    browser.wait("document.querySelector('.picture')")
    assert text(browser, "#passes .controls button") == ["Pass 1", "Pass 2"]
    assert picture(browser) == [
        ["0 <mask>", "<s>100", "the90"],
        ["1 <mask>", "the82", "old<b>74"],
        ["2 <mask>", "dog61", "barks55"],
        ["3 <mask>", "cat411", "barks50"],
        ["4 <mask>", "</s>99", "</s>98"],
        ["merged", "<s>", "the", "old<b>", "dog", "barks", "</s>"],
    ]
    cell = "[...document.querySelectorAll('.picture td')].find(cell => cell.textContent.startsWith('{}'))"
    left = f"{cell}.getBoundingClientRect().x"
    assert browser.run(left.format("cat41")) == browser.run(left.format("dog61"))
    assert text(browser, ".picture .lost span") == ["cat"]
    assert text(browser, ".picture .masked") == ["dog"]
    assert text(browser, ".verdicts li")[0] == "Piece 3: dog (-0.50) wins against cat (-0.90)"
    assert text(browser, ".verdicts li")[-1] == "Length: 1 masks inserted"
    browser.press("2")
    assert picture(browser)[-1] == ["merged", "<s>", "the", "old<b>", "cat", "barks", "</s>"]
    assert text(browser, ".picture .new") == ["cat"]
    assert text(browser, ".verdicts li") == []


def test_a_checked_draft_is_drawn(window: tuple[Browser, str], tmp_path: Path) -> None:
    browser, _ = window
    found = small_analysis()
    trace = Trace(0, "the cat barks", -0.2, [checked_passes()], ["the old dog barks", "the cat barks"])
    lat = dataclasses.replace(found.systems[2], traces=[trace])
    (tmp_path / "report.html").write_text(build_report(dataclasses.replace(found, systems=[lat])), encoding="utf-8")
    browser.show_as(1400, 900, "light")
    browser.open(f"file://{tmp_path}/report.html")
    browser.wait("document.querySelector('.picture')")
    assert picture(browser)[-2:] == [
        ["merged", "<s>", "the", "old<b>", "dog", "barks", "</s>"],
        ["checked", "✓", "cat"],
    ]
    assert text(browser, ".picture .accepted") == ["the"]
    assert text(browser, ".picture .refused") == ["old<b>", "dog", "barks", "</s>"]
    cell = "[...document.querySelectorAll('.picture tfoot td')].find(cell => cell.textContent === '{}')"
    left = f"{cell}.getBoundingClientRect().x"
    assert browser.run(left.format("cat")) == browser.run(left.format("old<b>"))
    assert text(browser, ".verdicts li")[-1] == "The verifier accepts 1 of 5 tokens and writes cat for old<b>"
    browser.press("2")
    assert text(browser, ".prefix") == ["kept: the cat"]
    assert picture(browser)[-2:] == [["merged", "<s>", "barks", "</s>"], ["checked", "✓", "✓"]]
    assert text(browser, ".verdicts li") == ["The verifier accepts all of the draft"]
    browser.show_as(300, 700, "light")
    assert browser.run("document.documentElement.scrollWidth") <= 300
    assert browser.errors == []


def test_another_system_and_fragments(browser: Browser) -> None:
    browser.wait("document.querySelector('.picture')")
    browser.press("s")
    browser.wait("document.querySelectorAll('#passes .controls button')[1].textContent === 'Pass 2.1'")
    assert picture(browser) == [
        ["filled", "<s>", "the61", "old<b>", "cat61", "</s>"],
        ["merged", "<s>", "the", "old<b>", "cat", "</s>"],
    ]
    assert text(browser, ".picture .given") == ["<s>", "old<b>", "</s>"]
    browser.press("j")
    assert text(browser, "#passes") == ["The passes of this sentence are not in the report."]
    browser.press("j")  # the system of before has no passes here
    browser.wait("document.querySelector('.picture .lost')")


def test_a_wide_picture_continues_below(browser: Browser) -> None:
    browser.wait("document.querySelector('.picture')")
    browser.show_as(300, 700, "light")
    browser.wait("document.querySelectorAll('.picture').length > 1")
    merged = [cell for row in picture(browser) if row[0] == "merged" for cell in row[1:]]
    assert merged == ["<s>", "the", "old<b>", "dog", "barks", "</s>"]


def test_the_keyboard(browser: Browser) -> None:
    browser.press("j", "j", "k")
    assert selected(browser) == "Sentence 2"
    assert browser.run("location.hash") == "#sentence-2"
    browser.press("/", "j", "7")  # a letter typed into the field is a letter
    assert browser.run("document.getElementById('text').value") == "j7"
    browser.press("Escape")
    assert browser.run("document.activeElement === document.body")
    browser.run("document.getElementById('reset').click()")
    browser.run("document.getElementById('list').focus()")
    browser.press("End")
    assert selected(browser) == f"Sentence {LINES}"
    browser.press("ArrowUp", "PageDown", "Home", "ArrowDown")
    assert selected(browser) == "Sentence 2"
    browser.press("?")
    assert browser.run("document.getElementById('keys').open")
    browser.press("Escape")
    assert not browser.run("document.getElementById('keys').open")
    assert browser.run("document.getElementById('list').getAttribute('aria-activedescendant')") == "item-1"


def test_light_and_dark(browser: Browser) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(paper)
    browser.press("t")
    dark = browser.run(paper)
    assert dark != light
    browser.show_as(1400, 900, "dark")
    browser.press("t")  # what the reader chose counts more than what the system prefers
    assert browser.run(paper) == light


def test_a_link_leads_to_a_sentence(browser: Browser, window: tuple[Browser, str]) -> None:
    browser.call("Page.navigate", url="about:blank")
    browser.open(f"{window[1]}#sentence-300")
    assert selected(browser) == "Sentence 300"
    assert "300" in [top.split(",")[0] for top in text(browser, ".item[aria-selected=true] .top")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_it_fits_and_is_readable(browser: Browser, width: int, scheme: str, tmp_path: Path) -> None:
    browser.show_as(width, 800, scheme)
    browser.wait("document.querySelector('.picture')")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out
    assert browser.run(CONTRAST) == []
    browser.photograph(tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 10_000


CONTRAST = """
(() => {  // elements with text whose colour is closer than 4.5 to 1 to what lies behind (WCAG AA)
  const paint = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const bytes = (colour, under) => {
    paint.clearRect(0, 0, 1, 1);
    for (const layer of [...under, colour]) { paint.fillStyle = layer; paint.fillRect(0, 0, 1, 1); }
    return [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (values) => values.map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const bad = new Set();
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("script, option, noscript")) continue;
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.unshift(getComputedStyle(at).backgroundColor);
    const [one, other] = [light(bytes(getComputedStyle(element).color, layers)), light(bytes("transparent", layers))];
    if ((Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05) < 4.5)
      bad.add(element.tagName + "." + element.className + ": " + element.textContent.slice(0, 20));
  }
  return [...bad];
})()
"""


def test_every_control_has_a_name(browser: Browser) -> None:
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    roles = set(["button", "searchbox", "combobox", "checkbox", "spinbutton", "listbox", "image", "table", "meter"])
    found = [node for node in tree if not node["ignored"] and node["role"]["value"] in roles]
    assert len({node["role"]["value"] for node in found}) >= 7
    assert [node for node in found if not node["name"]["value"]] == []
