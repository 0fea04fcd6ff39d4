"""The page of the translation server in a real browser: it translates, switches, plays passes, asks no other host."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import CHROMIUM, Browser
from page_stub import HOSTILE, Stub, checked, passes, serving, tokens

import lath

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)")

ALT, CTRL = 1, 2


class Page:
    """The page in a browser, as a person uses it."""

    def __init__(self, browser: Browser, stub: Stub, address: str = "") -> None:
        self.browser, self.stub = browser, stub
        self.run, self.wait = browser.run, browser.wait
        self.address = address or f"http://127.0.0.1:{stub.server_port}/"

    def open(self, fragment: str = "") -> None:
        """Load the page afresh."""
        self.browser.call("Page.navigate", url="about:blank")
        self.browser.open(self.address + fragment)

    def type(self, text: str) -> None:
        """Replace the text by another."""
        self.run("(id => (id.focus(), id.select()))(document.getElementById('text'))")
        self.browser.call("Input.insertText", text=text)

    def translate(self, text: str) -> None:
        """Type a text and wait for its translation."""
        self.type(text)
        self.shows("#result", text.upper().strip())

    def chord(self, modifiers: int, code: str, key: str) -> None:
        """A key together with Alt or Ctrl."""
        for kind in ("rawKeyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=kind, modifiers=modifiers, code=code, key=key)

    def set(self, name: str, value: object) -> None:
        """Move a slider or choose an option."""
        control = f"document.getElementById('{name}')"
        self.run(f"{control}.value = {str(value)!r}")
        for kind in ("input", "change"):
            self.run(f"{control}.dispatchEvent(new Event('{kind}'))")

    def click(self, name: str) -> None:
        """Press a button."""
        self.run(f"document.getElementById('{name}').click()")

    def drop(self, name: str, content: str) -> None:
        """Drop a file somewhere on the page."""
        self.run(f"""(() => {{
            const data = new DataTransfer();
            data.items.add(new File([{json.dumps(content)}], {name!r}));
            const options = {{ dataTransfer: data, bubbles: true, cancelable: true }};
            for (const kind of ['dragenter', 'dragover', 'drop'])
                document.body.dispatchEvent(new DragEvent(kind, options));
        }})()""")

    def asked_only_its_server(self) -> bool:
        """Whether every request went to the server that the page came from."""
        return all(request.startswith((self.address, "about:blank")) for request in self.browser.requests)

    def texts(self, selector: str) -> list[str]:
        """What the elements of a selector say."""
        return list(self.run(f"[...document.querySelectorAll({selector!r})].map(one => one.textContent.trim())"))

    def shows(self, selector: str, text: str) -> None:
        """Wait until an element says a text."""
        self.wait(f"document.querySelector({selector!r}).textContent.trim() === {json.dumps(text)}")

    def explain(self, text: str = "Der Hund bellt.") -> None:
        """Translate a text with the view of its passes open."""
        self.open("#de-en|")
        self.run("document.getElementById('how').open = true")
        self.translate(text)
        self.wait("document.querySelector('#boards .strip')")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, Stub]]:
    with serving() as stub, Browser(tmp_path_factory.mktemp("page")) as browser:
        yield browser, stub


@pytest.fixture
def page(parts: tuple[Browser, Stub]) -> Iterator[Page]:
    """The page freshly opened; whatever a test does, it logs no error and asks no other host."""
    browser, stub = parts
    stub.both_directions, stub.delays, stub.key, stub.traced = True, {}, "", [passes(), passes()[:1]]
    stub.verify = {}
    stub.asked.clear()
    browser.show_as(1400, 900, "light")
    page = Page(browser, stub)
    page.open()
    yield page
    assert page.run("window.hacked") is None
    assert browser.errors == []
    assert page.asked_only_its_server()


def test_it_translates_while_one_types(page: Page) -> None:
    page.translate("Guten")
    page.translate("Guten Morgen.\n\n- Tag")
    assert page.texts("#detected") == ["Detected: German (93 %)"]
    assert page.texts("#state")[0].endswith("doubtful: let a person check it")
    assert page.stub.asked[-1] == {
        "q": "Guten Morgen.\n\n- Tag", "format": "text", "source": "auto", "target": "en",
        "iterations": 4, "trace": False,
    }  # fmt: skip
    assert page.texts("#count") == [""]
    page.translate("ja " * 600)
    assert page.texts("#count") == ["1800 of 2000 characters"]
    page.type(" ")
    page.shows("#result", "")
    assert page.run("document.getElementById('copy').disabled")
    assert page.texts("#detected, #state") == ["", ""]


def test_an_answer_that_comes_too_late_is_dropped(page: Page) -> None:
    page.open("#de-en|")
    page.stub.delays = {"langsam": 0.4}
    page.type("langsam")
    page.browser.until(lambda: len(page.stub.asked) == 1, "the slow text is asked for")
    page.translate("schnell")
    page.run("new Promise(done => setTimeout(done, 500))")
    assert page.texts("#result") == ["SCHNELL"]
    page.type("langsam")
    page.browser.until(lambda: len(page.stub.asked) == 3, "the slow text is asked for again")
    page.type("")
    page.run("new Promise(done => setTimeout(done, 500))")
    assert page.texts("#result") == [""]


def test_keys_typed_fast_are_one_request(page: Page) -> None:
    page.open("#de-en|")
    for text in ("W", "Wi", "Wie", "Wie "):
        page.run(f"(t => (t.value = {text!r}, t.dispatchEvent(new Event('input'))))(document.getElementById('text'))")
    page.shows("#result", "WIE")
    assert len(page.stub.asked) <= 2  # two if the machine was slower than the pause


def test_markup_is_text(page: Page) -> None:
    page.translate(HOSTILE)
    page.open("#de-en|" + quote(HOSTILE))
    page.shows("#result", HOSTILE.upper())


def test_the_direction_is_switched_if_the_server_has_the_other(page: Page) -> None:
    assert page.run("document.getElementById('switch').disabled")
    assert page.texts("#switch-reason") == ["The direction can be switched when the language is known."]
    page.translate("Hallo")
    page.click("switch")
    page.browser.until(lambda: page.stub.asked[-1]["source"] == "en", "the other direction is asked for")
    assert page.run("[source, target, text].map(control => control.value)") == ["en", "de", "HALLO"]
    assert {name: page.stub.asked[-1][name] for name in ("q", "source", "target")} == {
        "q": "HALLO", "source": "en", "target": "de"
    }  # fmt: skip
    page.stub.both_directions = False
    page.open("#de-en|Hallo")
    page.shows("#result", "HALLO")
    assert page.run("document.getElementById('switch').disabled")
    assert page.texts("#switch-reason") == ["This server does not translate from English to German."]
    assert page.texts("#target option") == ["English"]


def test_a_text_that_is_in_the_target_language_already_changes_the_target(page: Page) -> None:
    assert page.run("[source, target].map(control => control.value)") == ["auto", "de"]
    page.translate("Hallo")
    page.browser.until(lambda: page.stub.asked[-1]["target"] == "en", "the other target is asked for")
    page.set("target", "de")  # a person who insists gets their way
    page.wait("document.getElementById('state').textContent.startsWith('The text is in German already.')")


def test_the_number_of_passes(page: Page) -> None:
    page.translate("Hallo")
    page.set("passes", 9)
    page.browser.until(lambda: page.stub.asked[-1]["iterations"] == 9, "nine passes are asked for")
    assert page.texts("#passes-shown") == ["9"]


def test_a_busy_server_is_asked_again_and_errors_are_shown(page: Page) -> None:
    page.stub.failures = [(503, "The queue is full.", {"Retry-After": "1"})]
    page.type("Hallo")
    page.shows("#state", "The queue is full. Trying again in 1 s.")
    page.shows("#result", "HALLO")
    page.stub.failures = [(400, "No such language.", {})]
    page.type("Tag")
    page.shows("#state", "No such language.")
    assert len(page.browser.errors) == 2  # what the browser says of the two answers
    assert all("status of" in error for error in page.browser.errors)
    page.browser.errors.clear()


def test_a_key_is_asked_for_where_the_server_needs_one(page: Page) -> None:
    assert page.run("document.getElementById('key').hidden")
    page.stub.key = "geheim"
    page.open("#de-en|Hallo")
    page.shows("#state", "wrong or missing api_key")
    page.set("key", "geheim")
    page.shows("#result", "HALLO")
    assert len(page.browser.errors) == 1
    page.browser.errors.clear()


def stage(page: Page) -> tuple[str, str]:
    """The pressed pass and the drawn stage."""
    (number,) = page.texts("#pass-tabs [aria-pressed='true']")
    return number, page.run("document.getElementById('boards').dataset.stage")


def column(page: Page, token: str) -> float:
    """The middle of the first chip of a piece that shows a token."""
    found = f"[...document.querySelectorAll('.strip .chip')].find(one => one.textContent.startsWith({token!r}))"
    return float(page.run(f"(box => box.x + box.width / 2)({found}.getBoundingClientRect())"))


def test_passes_are_drawn_and_stepped_through(page: Page) -> None:
    page.explain()
    assert page.stub.asked[-1]["trace"]
    assert stage(page) == ("1", "merge")
    assert page.texts(".out") == ["<s>", "▁the60", "▁dog60", "▁barks60", "</s>"]
    assert page.texts(".lost .word")[:1] == ["▁cat"]
    assert page.texts("#conflicts li") == ["▁dog wins against ▁cat (piece 3)"]
    assert column(page, "▁cat") == pytest.approx(column(page, "▁dog"), abs=20)  # one column
    assert [row.split() for row in page.texts("#times dt")] == [["queue"], ["translate"], ["everything", "else"]]
    assert page.texts("#times dd")[:2] == ["0.5", "12.0"]
    seen = []
    page.click("back")
    page.click("back")
    page.click("back")
    assert page.run("document.getElementById('back').disabled")
    for _ in range(9):
        seen.append(stage(page))
        if seen[-1][1] == "pieces" and seen[-1][0] == "1":
            assert column(page, "▁dog") == pytest.approx(column(page, "▁cat"), abs=20)
            assert column(page, "▁barks") > column(page, "▁cat")
        if seen[-1] == ("1", "mask"):
            assert page.texts(".out.hide .word") == ["▁dog"]
        if seen[-1] == ("2", "input"):
            assert page.texts("#input .chip") == ["<s>", "▁the", "", "▁barks"]
        page.click("forward")
    assert seen == [
        *(("1", name) for name in ("input", "pieces", "align", "merge", "mask")),
        *(("2", name) for name in ("input", "pieces", "align", "merge")),
    ]
    assert HOSTILE in page.texts(".out .word")
    page.set("sentence", 1)
    assert page.texts("#pass-tabs button") == ["1"]
    assert page.texts("#sentence option") == [f"1: the{HOSTILE} barks"[:43] + "…", "2: the dog barks"]


def test_where_tokens_stand(page: Page) -> None:
    how = "import('./static/how.js').then(how => {})"
    pieces = [tokens(("a", 0.9), ("b", 0.9)), tokens(("x", 0.1), ("b", 0.9)), tokens(("b", 0.9), ("y", 0.1))]
    output = [{"t": "a", "p": 0.9, "from": [[0, 0]]}, {"t": "b", "p": 0.9, "from": [[0, 1], [1, 1], [2, 0]]}]
    given = json.dumps({"pieces": pieces, "output": output})
    laid_out = f"how.layOut({given}).map(strip => strip.tokens.map(({{ column, state }}) => [column, state]))"
    assert page.run(how.format(laid_out)) == [
        [[0, "kept"], [1, "kept"]],
        [[0, "lost"], [1, "kept"]],  # in the column of its rival
        [[1, "kept"], [2, "lost"]],
    ]
    assert page.run(how.format("how.rows([[0, 3], [1, 4], [3, 5], [3, 4], [5, 6]])")) == [0, 1, 0, 2, 0]


def test_a_token_shows_the_pieces_that_it_comes_from(page: Page) -> None:
    page.explain()
    page.run("document.querySelectorAll('.out')[1].dispatchEvent(new Event('pointerover', { bubbles: true }))")
    assert page.run("[...document.querySelectorAll('.lit')].map(one => one.dataset.position)") == ["0", "1", "0", "1"]
    page.run("document.querySelector('#times').dispatchEvent(new Event('pointerover', { bubbles: true }))")
    assert page.texts(".lit") == []


def test_models_without_pieces(page: Page) -> None:
    filled = [{**token, "from": [[place, 0]]} for place, token in enumerate(tokens(("▁the", 1.0), ("▁dog", 0.7)))]
    page.stub.traced = [[{
        "input": ["▁the", None], "pieces": [[filled[0]], [filled[1]]], "output": filled, "masked": [], "conflicts": []
    }]]  # fmt: skip
    page.explain()  # CMLM
    assert page.texts("#step") == ["Pass 1 of 1: the tokens fill the masks."]
    page.click("back")
    assert stage(page) == ("1", "pieces")
    assert page.texts("#step") == ["Pass 1 of 1: it writes a token at every position at once."]
    page.stub.traced = []
    page.translate("Wort für Wort")  # AT
    assert page.run("document.getElementById('how-body').hidden")
    assert page.texts("#how-empty")[0].startswith("No passes to show")


def test_a_draft_is_checked_and_the_rest_drafted_again(page: Page) -> None:
    page.stub.traced = [checked()]
    page.explain()
    assert page.texts("#sentence option") == [f"1: the{HOSTILE} barks"[:43] + "…"]
    assert page.run("document.getElementById('key-checks').offsetHeight") > 0
    page.click("back")
    page.click("back")
    page.click("back")
    seen = []
    for _ in range(9):
        seen.append(stage(page))
        if seen[-1] == ("1", "check"):
            assert page.texts(".out.accepted .word") == ["▁the"]
            assert page.texts(".out.refused .word") == ["▁dog", "▁barks", "</s>"]
            assert page.run("[...document.querySelectorAll('.own')].filter(one => one.offsetWidth).length") == 1
            assert page.texts("#step") == [
                f"Pass 1 of 2: the verifier reads the draft at once: it accepts 1 of 4 tokens and writes {HOSTILE} "
                f"for ▁dog. The rest is drafted again."
            ]
        if seen[-1] == ("2", "input"):
            assert page.texts("#input .chip") == ["▁the", HOSTILE, ""]
            assert page.texts("#step") == ["Pass 2 of 2: the decoder reads what is kept, and 1 mask behind it."]
        page.click("forward")
    assert seen == [
        *(("1", name) for name in ("input", "pieces", "align", "merge", "check")),
        *(("2", name) for name in ("input", "pieces", "align", "merge")),
    ]
    assert stage(page) == ("2", "check")
    assert page.texts(".out.refused") == []
    page.stub.traced = [passes()]
    page.translate("Ohne Prüfer.")
    assert page.run("document.getElementById('key-checks').offsetHeight") == 0


def test_checks_are_offered_where_the_server_has_a_verifier(page: Page) -> None:
    shown = "document.getElementById('checks').offsetHeight > 0"
    assert not page.run(shown)
    page.stub.verify = {"de-en": "exact"}
    page.open("#de-en|")
    assert page.run(shown)
    page.translate("Hund")
    assert page.stub.asked[-1]["verify"] == "exact"
    page.set("verify", "rerank")
    page.browser.until(lambda: page.stub.asked[-1]["verify"] == "rerank", "the mode is asked for")
    page.set("verify", "")
    page.browser.until(lambda: page.stub.asked[-1]["verify"] == "", "no checks are asked for")
    page.set("source", "en")
    assert not page.run(shown), "nothing checks the other direction"
    page.translate("dog")
    assert "verify" not in page.stub.asked[-1]


def test_play_pause_and_reduced_motion(page: Page) -> None:
    speed = "import('./static/how.js').then(how => how.setPause({}))"
    page.explain()
    page.run(speed.format(40))
    page.click("play")
    assert stage(page) == ("1", "input")
    page.wait("document.getAnimations().some(one => !(one instanceof CSSTransition))")  # tokens slide
    page.wait("document.getElementById('play').textContent === '▶ Play'")
    assert stage(page) == ("2", "merge")
    page.run(speed.format(60_000))
    page.click("play")
    assert stage(page) == ("1", "input")
    page.browser.press("Escape")
    assert page.texts("#play") == ["▶ Play"]
    page.browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    for _ in range(4):
        page.click("forward")
        assert page.run("document.getAnimations().length") == 0
    assert stage(page) == ("1", "mask")


def test_a_wide_board_continues_below(page: Page) -> None:
    page.explain()
    assert page.run("document.querySelectorAll('.board').length") == 1
    for width in (400, 320):
        page.browser.show_as(width, 900, "dark")
        page.run("new Promise(done => setTimeout(done, 100))")
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.texts(".out .word") == ["<s>", "▁the", "▁dog", "▁barks", "</s>"]
    assert page.run("document.querySelectorAll('.board').length") > 1


def test_files_are_dropped_or_chosen(page: Page, tmp_path: Path) -> None:
    page.open("#de-en|")
    page.stub.uploads.clear()
    page.drop("brief.1.txt", "Schöne Grüße")
    page.shows("#files li:first-child", "brief.1.en.txt")
    assert "Schöne Grüße".encode() in page.stub.uploads[0]
    assert b'name="target"\r\n\r\nen\r\n' in page.stub.uploads[0]
    assert page.run("document.querySelector('#files a').download") == "brief.1.en.txt"
    assert page.run("document.querySelector('#files a').href") == "data:text/plain;base64,R1VURU4="
    (tmp_path / "seite.html").write_text("<p>Tag")
    root = page.browser.call("DOM.getDocument")["root"]["nodeId"]
    chooser = page.browser.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    page.browser.call("DOM.setFileInputFiles", nodeId=chooser, files=[str(tmp_path / "seite.html")])
    page.shows("#files li:last-child", "seite.en.html")


def test_a_link_brings_the_text_back(page: Page) -> None:
    page.browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.browser.call("Page.bringToFront")
    words = "100 % sicher? #1 | ja\nund ä"
    page.translate(words)
    page.chord(ALT, "KeyL", "l")
    page.shows("#share", "Copied")
    link = page.run("navigator.clipboard.readText()")
    assert link == page.run("location.href") == f"{page.address}#auto-en|{quote(words)}"
    page.chord(ALT, "KeyC", "c")
    page.shows("#copy", "Copied")
    assert page.run("navigator.clipboard.readText()") == words.upper()
    page.open("#" + link.partition("#")[2].replace("auto", "de"))
    page.shows("#result", words.upper())
    assert page.run("[source, target, text].map(control => control.value)") == ["de", "en", words]
    page.run("location.hash = '#de-en|%zz'")  # not written by this page
    page.shows("#result", "%ZZ")


def test_keys_and_labels(page: Page) -> None:
    page.type("Hallo")
    page.chord(CTRL, "Enter", "Enter")
    page.shows("#result", "HALLO")
    page.chord(ALT, "KeyH", "h")
    page.wait("document.getElementById('how').open && document.querySelector('#boards .strip')")
    page.chord(ALT, "KeyJ", "j")
    assert stage(page) == ("1", "align")
    page.chord(ALT, "KeyK", "k")
    assert stage(page) == ("1", "merge")
    page.chord(ALT, "KeyP", "p")
    assert page.texts("#play") == ["❚❚ Pause"]
    page.chord(ALT, "KeyP", "p")
    page.chord(ALT, "KeyS", "s")
    assert page.run("document.getElementById('source').value") == "en"
    page.click("help")
    assert page.run("document.getElementById('keys').open")
    page.browser.press("Escape")
    assert not page.run("document.getElementById('keys').open")
    tree = page.browser.call("Accessibility.getFullAXTree")["nodes"]
    controls = {"button", "combobox", "textbox", "slider", "DisclosureTriangle", "status"}
    names = [(node["role"]["value"], node.get("name", {}).get("value")) for node in tree if "role" in node]
    found = [(role, name) for role, name in names if role in controls - {"status"}]
    assert len(found) > 12
    assert [role for role, name in found if not name] == []


FOCUS = """(() => {
    const seen = document.activeElement.id === 'file' ? document.querySelector('[for=file]') : document.activeElement;
    return getComputedStyle(seen).outlineStyle === 'solid';
})()"""


def test_tab_goes_through_the_controls_in_reading_order(page: Page) -> None:
    page.translate("Hallo")
    page.run("document.getElementById('source').focus()")
    visited = []
    for _ in range(9):
        visited.append(page.run("document.activeElement.id || document.activeElement.tagName"))
        assert page.run(FOCUS), visited[-1]
        for kind in ("rawKeyDown", "keyUp"):
            page.browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert visited == ["source", "switch", "target", "text", "file", "copy", "share", "passes", "SUMMARY"]


CONTRAST = """(() => {
    const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgba = (colour) => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        return [...context.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
        .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, n) => sum + part * [0.2126, 0.7152, 0.0722][n], 0);
    const behind = (element) => {
        for (let one = element; one; one = one.parentElement) {
            const found = rgba(getComputedStyle(one).backgroundColor);
            if (found[3] === 255) return found;
        }
    };
    const found = [];
    for (const element of document.querySelectorAll('body *')) {
        const said = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        if (!said || !element.checkVisibility({ visibilityProperty: true }) || element.closest(':disabled')) continue;
        const [one, other] = [light(rgba(getComputedStyle(element).color)), light(behind(element))];
        const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        found.push([ratio, element.className + ' ' + element.textContent]);
    }
    return found;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(page: Page, scheme: str) -> None:
    page.browser.show_as(1400, 900, scheme)
    page.explain()
    page.run("new Promise(done => setTimeout(done, 400))")  # colours fade in
    found = page.run(CONTRAST)
    assert len(found) > 40
    assert [text for ratio, text in found if ratio < 4.5] == []


@pytest.fixture
def real(parts: tuple[Browser, Stub]) -> Iterator[Page]:
    """The page of the server itself, with the bundled model."""
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    from serving import listening

    from lath.serve.app import Server
    from lath.serve.guard import Metrics
    from lath.serve.limits import Keys
    from lath.serve.settings import ServeSettings
    from lath.serve.worker import Worker

    settings = ServeSettings()
    worker = Worker(lath.load("de-en", device="cpu", threads=1), settings)
    worker.start()
    assert worker.ready.wait(60)
    browser, stub = parts
    browser.requests.clear()
    with listening(Server({("de", "en"): worker}, settings, Keys([]), Metrics())) as address:
        page = Page(browser, stub, address + "/")
        page.open()
        yield page
        assert browser.errors == []
        assert page.asked_only_its_server()
        page.browser.call("Page.navigate", url="about:blank")
    worker.stop()


def test_the_server_itself(real: Page) -> None:
    real.type("Guten Morgen. Die alte Brücke ist wieder offen.")
    real.wait("document.getElementById('result').textContent.startsWith('Good morning. The old bridge')")
    assert real.texts("#detected")[0].startswith("Detected: German")
    assert real.texts("#switch-reason") == ["This server does not translate from English to German."]
    real.chord(ALT, "KeyH", "h")
    real.wait("document.querySelector('#boards .strip')")
    assert len(real.texts("#sentence option")) == 2
    assert real.texts("#pass-tabs button") == ["1", "2", "3", "4"]
    output = real.texts(".out .word")
    assert output[0] == "<s>"
    assert output[-1] == "</s>"
    assert "".join(output[1:-1]).replace("▁", " ").strip() == "Good morning."
    assert {"queue", "translate", "everything else"} <= set(real.texts("#times dt"))
    real.run("import('./static/how.js').then(how => how.setPause(5))")
    real.click("play")
    real.wait("document.getElementById('forward').disabled")
    assert stage(real) == ("4", "merge")
    real.drop("seite.html", "<p>Guten Morgen.</p>")
    real.wait("document.querySelector('#files a')")
    link = real.run("document.querySelector('#files a').href")
    assert base64.b64decode(link.partition(",")[2]) == b"<p>Good morning.</p>"
