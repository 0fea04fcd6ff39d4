/** The "how" view: plays the passes of a translation. A pass is drawn in stages:
    its input, the pieces where they were written, aligned by the tokens they share, merged, and what is masked next;
    or, of a draft, what a verifier says of it. */
import { id, make } from "./dom.js";

const SLIDE = 600; // ms a token slides
const SPECIAL = new Set(["<s>", "</s>", "<mask>", "<pad>"]);
const STAGES = ["input", "pieces", "align", "merge", "mask", "check"];
const still = matchMedia("(prefers-reduced-motion: reduce)");
const view = { fragments: [], fragment: 0, steps: [], at: 0, timer: 0, pause: 1800, chips: [], drawn: null, width: 0, started: false };

/** Where the tokens of each piece stand: `raw` columns as written, `column` aligned with the output, and who lost. */
export function layOut(pass) {
  const into = new Map(pass.output.flatMap(({ from = [] }, place) => from.map((source) => [source.join(), place])));
  let before = -1; // first column of the last piece
  return pass.pieces.map((piece, position) => {
    const columns = piece.map((_, offset) => into.get([position, offset].join()));
    const anchor = columns.findIndex((column) => column !== undefined);
    let column = anchor < 0 ? before : columns[anchor] - anchor - 1;
    const tokens = piece.map(({ t, p }, offset) => {
      const next = columns.slice(offset).find((found) => found !== undefined) ?? Infinity;
      column = columns[offset] ?? Math.max(0, Math.min(column + 1, next));
      const state = columns[offset] !== undefined ? "kept" : SPECIAL.has(t) ? "aside" : "lost";
      return { t, p, raw: position + offset, column, state };
    });
    before = tokens[0].column;
    return { position, tokens };
  });
}

/** The first row in which each strip, given as [start, end), fits beside those before it. */
export function rows(strips) {
  const ends = []; // of each row, the column after its last strip
  return strips.map(([start, end]) => {
    let row = ends.findIndex((taken) => taken <= start);
    if (row < 0) row = ends.length;
    ends[row] = end;
    return row;
  });
}

/** Places of the output that the next pass reads as masks. */
export function masked(pass, next) {
  if (pass.masked) return new Set(pass.masked);
  const left = next.input.filter((token) => token !== null);
  return new Set(pass.output.flatMap(({ t }, place) => (left[0] === t ? (left.shift(), []) : [place])));
}

function chip({ t, p }) {
  if (t === null) return make("span", { className: "chip mask", role: "img", ariaLabel: "mask" });
  const made = make("span", { className: "chip" }, make("span", { className: "word" }, t));
  if (p === undefined || p === null) return made;
  made.classList.add("rated");
  made.style.setProperty("--p", `${Math.round(100 * p)}%`);
  made.append(make("small", {}, `${Math.round(100 * p)}`));
  return made;
}

/** Whether the pieces are single tokens (CMLM), so that there is nothing to align. */
const isSingle = (pass) => pass.pieces.every((piece) => piece.length === 1);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** What a verifier said of a draft, in words. */
function judged({ check, output }) {
  const [accepted, of] = [check.accepted, output.length - 1];
  const place = accepted < of ? `for ${output[1 + accepted].t}` : "behind it";
  const own = check.correction === null ? "" : ` and writes ${check.correction} ${place}`;
  return `the verifier reads the draft at once: it accepts ${accepted < of ? `${accepted} of ${of} tokens` : "all of it"}${own}.`;
}

function describe({ stage, pass, number, of, next }) {
  const single = isSingle(pass);
  const masks = pass.input.filter((token) => token === null).length;
  const what = {
    check: () => `${judged(pass)}${next ? " The rest is drafted again." : ""}`,
    input: () => pass.prefix?.length
      ? `the decoder reads what is kept, and ${plural(masks, "mask")} behind it.`
      : number === 1
      ? `the decoder reads ${plural(masks, "mask")}: places for words that are not known yet.`
      : `the decoder reads the text again; ${plural(masks, "token")} of it ${masks === 1 ? "is" : "are"} masked.`,
    pieces: () => single
      ? "it writes a token at every position at once."
      : `it writes a piece of ${pass.pieces[0].length} tokens at every position at once. Neighbours overlap.`,
    align: () => "the pieces slide until the tokens they share stand in one column.",
    merge: () => single ? "the tokens fill the masks." : "tokens in one column become one; where pieces contradict each other, the surer one wins.",
    mask: () => `the least certain ${plural(masked(pass, next).size, "token")} will be masked and written again.`,
  }[stage]();
  return `Pass ${number} of ${of}: ${what}`;
}

/** The steps of a fragment: each pass in its stages. */
function stepsOf(passes) {
  return passes.flatMap((pass, n) => {
    const left = { align: isSingle(pass), mask: pass.check || n + 1 === passes.length, check: !pass.check };
    return STAGES.filter((stage) => !left[stage])
      .map((stage) => ({ stage, pass, number: n + 1, of: passes.length, next: passes[n + 1] }));
  });
}

/** New chips for a pass; they stay the same elements while its stages move them. */
function newChips(pass) {
  view.chips = layOut(pass).map((strip) => ({
    ...strip, tokens: strip.tokens.map((token) => ({ ...token, element: chip(token) })) }));
  view.drawn = pass;
}

/** The columns that a strip takes, [start, end). */
function extent({ tokens }, where) {
  const columns = tokens.map((token) => token[where]);
  return [Math.min(...columns), Math.max(...columns) + 1];
}

/** The verifier's own token. */
const own = ({ check }) => make("span", { className: "own" }, check.correction);

/** A grid of the columns [from, to): strips, and the output below; a strip that goes on in the next board is cut. */
function board(pass, where, hidden, from, to) {
  const cut = view.chips.map((strip) => [strip, ...extent(strip, where)]).filter(([, start, end]) => start < to && end > from)
    .map(([strip, start, end]) => [strip, Math.max(start, from), Math.min(end, to)]);
  const inRow = rows(cut.map(([, start, end]) => [start, end]));
  const strips = cut.map(([{ position, tokens }, start, end], n) => {
    const strip = make("div", { className: "strip" });
    strip.style.gridArea = `${inRow[n] + 1} / ${start - from + 1} / auto / ${end - from + 1}`;
    strip.dataset.position = position;
    for (let column = start; column < end; column++) {
      const here = tokens.filter((token) => token[where] === column).map((token) => token.element);
      strip.append(make("span", { className: "cell" }, ...here));
    }
    return strip;
  });
  const output = pass.output.slice(from, to).map(({ t, p, from: sources }, n) => {
    const made = chip({ t, p: SPECIAL.has(t) ? null : p });
    made.classList.add("out");
    made.classList.toggle("hide", hidden.has(from + n));
    const place = from + n - 1; // in the draft, which has no begin
    if (pass.check && place >= 0) made.classList.add(place < pass.check.accepted ? "accepted" : "refused");
    if (place === pass.check?.accepted && pass.check.correction !== null) made.append(own(pass));
    made.style.gridArea = `${Math.max(-1, ...inRow) + 2} / ${n + 1}`;
    made.dataset.from = (sources ?? []).map(([position]) => position).join(" ");
    return made;
  });
  return make("div", { className: "board" }, ...strips, ...output);
}

/** Draw strips and output in one board, or in several below each other where one would be too wide. */
function drawBoards(pass, where, hidden) {
  const boards = id("boards");
  const width = Math.max(pass.output.length, ...view.chips.map((strip) => extent(strip, where)[1]));
  const whole = board(pass, where, hidden, 0, width);
  boards.replaceChildren(whole);
  const gap = parseFloat(getComputedStyle(whole).columnGap);
  const cuts = [0];
  let used = 0;
  getComputedStyle(whole).gridTemplateColumns.split(" ").forEach((one, column) => {
    used += parseFloat(one) + gap;
    if (used - gap <= boards.clientWidth || column === cuts.at(-1)) return;
    cuts.push(column);
    used = parseFloat(one) + gap;
  });
  if (cuts.length > 1) boards.replaceChildren(...cuts.map((from, n) => board(pass, where, hidden, from, cuts[n + 1] ?? width)));
}

/** Give the boards of all stages of a pass one height, so that nothing below moves while it plays. */
function keepHeight(pass) {
  const boards = id("boards");
  view.width = boards.clientWidth;
  boards.style.minHeight = "";
  const heights = [["pieces", "raw"], ["merge", "column"], ["check", "column"]].map(([stage, where]) => {
    boards.dataset.stage = stage;
    drawBoards(pass, where, new Set());
    return boards.offsetHeight;
  });
  boards.style.minHeight = `${Math.max(...heights)}px`;
}

function draw() {
  const step = view.steps[view.at];
  const { pass, stage, number } = step;
  const fresh = view.drawn !== pass;
  if (fresh) newChips(pass);
  const strips = view.chips;
  const level = STAGES.indexOf(stage);
  const before = new Map(strips.flatMap(({ tokens }) => tokens.map(({ element }) => [element, element.getBoundingClientRect()])));
  if (fresh) keepHeight(pass);
  id("boards").dataset.stage = stage;
  drawBoards(pass, level < 2 ? "raw" : "column", stage === "mask" ? masked(pass, step.next) : new Set());
  for (const { tokens } of strips)
    for (const { element, state } of tokens) {
      element.classList.toggle("lost", state === "lost" && level > 2);
      element.classList.toggle("aside", state === "aside");
    }
  const kept = (pass.prefix ?? []).map((t) => make("span", { className: "chip prefix" }, t));
  const mine = pass.check && pass.check.correction !== null && pass.check.accepted === pass.output.length - 1;
  if (mine) id("boards").lastChild.append(own(pass));
  id("input").replaceChildren(...kept, ...pass.input.slice(kept.length ? 1 : 0).map((t, index) => {
    const position = index + (kept.length ? 1 : 0);
    const made = chip({ t });
    made.dataset.position = position;
    return made;
  }));
  if (!fresh && !still.matches) slide(before);
  id("step").textContent = describe(step);
  id("conflicts").replaceChildren(...(level > 2 ? (pass.conflicts ?? []).map(drawConflict) : []));
  for (const button of id("pass-tabs").children) button.setAttribute("aria-pressed", button.dataset.number === `${number}`);
  id("back").disabled = view.at === 0;
  id("forward").disabled = view.at === view.steps.length - 1;
}

function slide(before) {
  for (const [element, old] of before) {
    const now = element.getBoundingClientRect();
    const [x, y] = [old.x - now.x, old.y - now.y];
    if (old.width && (x || y))
      element.animate([{ transform: `translate(${x}px, ${y}px)` }, { transform: "none" }], { duration: SLIDE, easing: "ease-in-out" });
  }
}

function drawConflict({ piece, left, right, kept }) {
  const [won, lost] = kept === "left" ? [left, right] : [right, left];
  const words = (tokens) => tokens.join(" ") || "nothing";
  return make("li", {}, make("b", {}, words(won)), " wins against ", make("s", {}, words(lost)), ` (piece ${piece + 1})`);
}

/** Show which pieces a token of the output comes from, and the reverse. */
function light({ target }) {
  const chosen = target.closest?.("[data-from], [data-position]");
  const wanted = new Set((chosen?.dataset.from ?? chosen?.dataset.position ?? "").split(" "));
  for (const one of document.querySelectorAll("#boards .strip, #input .chip"))
    one.classList.toggle("lit", wanted.has(one.dataset.position));
}

function go(at) {
  view.at = Math.min(Math.max(at, 0), view.steps.length - 1);
  draw();
}

export function pause() {
  clearTimeout(view.timer);
  view.timer = 0;
  id("play").textContent = "▶ Play";
}

function tick() {
  if (view.at === view.steps.length - 1) return pause();
  view.timer = setTimeout(() => { go(view.at + 1); tick(); }, view.pause);
}

/** Play from here, or from the beginning after the end; or pause. */
export function play() {
  if (view.timer) return pause();
  if (!view.steps.length) return;
  if (!view.started || view.at === view.steps.length - 1) go(0);
  view.started = true;
  id("play").textContent = "❚❚ Pause";
  tick();
}

/** How many ms a stage stays while playing. */
export function setPause(pause) {
  view.pause = pause;
}

export function step(by) {
  pause();
  view.started = true;
  if (view.steps.length) go(view.at + by);
}

function choose(fragment) {
  pause();
  view.fragment = fragment;
  view.started = false;
  view.steps = stepsOf(view.fragments[fragment]);
  const first = (number) => view.steps.findIndex((found) => found.number === number);
  id("pass-tabs").replaceChildren(...view.fragments[fragment].map((_, n) => {
    const tab = make("button", { type: "button", onclick: () => step(first(n + 1) - view.at) }, `${n + 1}`);
    tab.setAttribute("aria-label", `Pass ${n + 1}`);
    tab.dataset.number = n + 1;
    return tab;
  }));
  go(view.steps.findIndex(({ stage }) => stage === "merge"));
}

function drawTimes(times) {
  const listed = Object.entries(times).flatMap(([name, ms]) =>
    Array.isArray(ms) ? ms.map((one, n) => [`${name} ${n + 1}`, one]) : [[name, ms]]);
  const longest = Math.max(...listed.map(([, ms]) => ms), 1e-9);
  id("times").replaceChildren(...listed.flatMap(([name, ms]) => {
    const bar = make("span", { className: "bar" });
    bar.style.width = `${(60 * ms) / longest}%`;
    return [make("dt", {}, name.replaceAll("_", " ")), make("dd", {}, bar, ` ${ms.toFixed(1)}`)];
  }));
}

/** The tokens that stand after a pass. */
function written({ output, prefix = [], check }) {
  const tokens = output.map(({ t }) => t);
  return check ? [...prefix, ...tokens.slice(1, 1 + check.accepted), check.correction ?? ""] : tokens;
}

/** Show the passes of a translation (a list for each fragment) and what each step took. */
export function show(fragments, times) {
  view.fragments = (fragments ?? []).filter((passes) => passes.length);
  const some = view.fragments.length > 0;
  pause();
  id("how-empty").hidden = some;
  id("how-body").hidden = !some;
  if (!some) {
    view.steps = [];
    id("how-empty").textContent = fragments ? "No passes to show: nothing was translated, or the model writes word by word." : "Type a text to see its passes.";
    return;
  }
  const choice = id("sentence");
  choice.replaceChildren(...view.fragments.map((passes, n) => {
    const words = written(passes.at(-1)).filter((t) => !SPECIAL.has(t)).join("").replaceAll("▁", " ").trim();
    return new Option(`${n + 1}: ${words.length > 40 ? words.slice(0, 40) + "…" : words}`, n);
  }));
  id("key-checks").hidden = !view.fragments.flat().some(({ check }) => check);
  id("choice").hidden = view.fragments.length === 1;
  drawTimes(times);
  choose(Math.min(view.fragment, view.fragments.length - 1));
}

id("play").addEventListener("click", play);
id("back").addEventListener("click", () => step(-1));
id("forward").addEventListener("click", () => step(1));
id("sentence").addEventListener("change", (event) => choose(Number(event.target.value)));
new ResizeObserver(() => {
  const width = id("boards").clientWidth;
  if (!view.steps.length || !width || width === view.width) return;
  view.drawn = null;
  draw();
}).observe(id("how-body"));
for (const kind of ["pointerover", "click"]) id("how-body").addEventListener(kind, light);
