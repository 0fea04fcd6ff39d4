"use strict";
/* The report of lath analyse. All text reaches the page as textContent; nothing is fetched.
   report.py writes the data: see `_data` there for its shape, and `_packed_pass` for that of a pass. */
(() => {
  const HEIGHT = 56; // of an item of the list, as in style.css
  const SPARE = 8; // items drawn above and below the visible ones
  const LONGEST_DIFF = 4e6; // cells of the table that compares two lines; longer lines are shown unmarked
  const [LETTER, CELL] = [7.25, 13]; // pixels: a letter of the picture, and the rest of a cell
  const STATES = ["kept", "lost", "aside", "given"];
  const SAID = { masked: "masked for the next pass", accepted: "accepted by the verifier", refused: "refused by the verifier" };
  const data = JSON.parse(id("data").textContent);
  const chunks = new Map(); // unpacked pictures: the promise of each chunk
  const view = { order: [], at: -1, traced: -1, pass: 0, passes: [], turn: 0, drawn: [0, 0] };
  let text; // {source, reference, systems, chrf}: line by line
  let words, spread, folded;

  function id(name) {
    return document.getElementById(name);
  }

  /** A new element: properties by name, children as elements or text. */
  function make(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name in element) element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  async function unpack(packed) {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  // ---- notes, tables, plots ---------------------------------------------------------------------------------------

  function drawTable(table) {
    const figures = table.header.map((_, n) => table.rows.every((cells) => /^([-+]?[\d.]+ ?%?)?$/.test(cells[n])));
    const kind = (n) => (figures[n] ? "" : "word");
    const head = make("tr", {}, ...table.header.map((cell, n) => make("th", { scope: "col", className: kind(n) }, cell)));
    const rows = table.rows.map((cells) => make("tr", {}, ...cells.map((cell, n) =>
      n ? make("td", { className: kind(n) }, cell) : make("th", { scope: "row" }, cell))));
    const drawn = make("table", { ariaLabel: table.title }, make("thead", {}, head), make("tbody", {}, ...rows));
    const frame = make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: table.title }, drawn);
    return make("figure", {}, make("h3", {}, table.title), frame, make("figcaption", {}, table.note.replaceAll("`", ""))); // notes are Markdown
  }

  function drawPlot(plot) {
    return make("figure", {}, make("img", { src: "data:image/svg+xml;base64," + plot.svg, alt: plot.title }));
  }

  // ---- what differs -----------------------------------------------------------------------------------------------

  /** The longest common subsequence of two lists: which elements of each belong to it. */
  function common(left, right) {
    const inLeft = new Array(left.length).fill(false);
    const inRight = new Array(right.length).fill(false);
    const width = right.length + 1;
    if (left.length * width > LONGEST_DIFF) return [inLeft.fill(true), inRight.fill(true)];
    const table = new Uint16Array((left.length + 1) * width);
    for (let i = left.length - 1; i >= 0; i--)
      for (let j = right.length - 1; j >= 0; j--)
        table[i * width + j] =
          left[i] === right[j]
            ? table[(i + 1) * width + j + 1] + 1
            : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    for (let i = 0, j = 0; i < left.length && j < right.length; ) {
      if (left[i] === right[j]) inLeft[i++] = inRight[j++] = true;
      else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) i++;
      else j++;
    }
    return [inLeft, inRight];
  }

  const WORDS = /[\p{L}\p{M}\p{N}]+(?:['’.,-][\p{L}\p{M}\p{N}]+)*|\S/gu;

  /** A translation: words that are not in the reference marked, words of the reference that are missing struck. */
  function marked(translation, reference) {
    const found = [...translation.matchAll(WORDS)];
    const wanted = reference.match(WORDS) ?? [];
    const [kept, met] = common(found.map((word) => word[0]), wanted);
    const parts = [];
    let end = 0, next = 0;
    const missing = (until) => {
      for (; next < until; next++) if (!met[next]) parts.push(" ", make("del", {}, wanted[next]), " ");
    };
    found.forEach((word, n) => {
      const before = translation.slice(end, word.index);
      end = word.index + word[0].length;
      parts.push(before);
      if (kept[n]) {
        missing(met.indexOf(true, next));
        next++;
        parts.push(word[0]);
      } else parts.push(make("mark", {}, word[0]));
    });
    parts.push(translation.slice(end));
    missing(wanted.length);
    return parts;
  }

  // ---- the list ---------------------------------------------------------------------------------------------------

  const control = (name) => id(name).value;
  const system = () => Number(control("system"));
  const rival = () => Number(control("rival"));
  const number = (line) => (text.lines ? text.lines[line] : line) + 1; // in the files
  const difference = (line) => text.chrf[system()][line] - text.chrf[rival()][line];

  function limit(name, otherwise) {
    return control(name) === "" ? otherwise : Number(control(name));
  }

  /** Filter and sort. The selected sentence stays selected if the list stays the same. */
  function refresh() {
    const wanted = control("text").trim().toLowerCase();
    if (wanted) folded ??= text.reference.map((line, n) =>
      [text.source?.[n] ?? "", line, ...text.systems.map((lines) => lines[n])].join("\n").toLowerCase());
    const chrf = text.chrf[system()];
    const [shortest, longest] = [limit("words-low", 0), limit("words-high", Infinity)];
    const [worst, best] = [limit("chrf-low", 0), limit("chrf-high", 100)];
    const gap = limit("gap", 0);
    const before = view.order;
    view.order = text.reference.map((_, line) => line).filter((line) =>
      words[line] >= shortest && words[line] <= longest && chrf[line] >= worst && chrf[line] <= best &&
      (!gap || Math.abs(difference(line)) >= gap) && (!wanted || folded[line].includes(wanted)) &&
      (!id("traced").checked || tracedAt(line).length));
    const keys = { line: (n) => n, length: (n) => words[n], chrf: (n) => chrf[n], difference, spread: (n) => spread[n] };
    const key = keys[control("sort")];
    const sign = id("down").checked ? -1 : 1;
    view.order.sort((one, other) => sign * (key(one) - key(other)) || one - other);
    id("count").textContent = `${view.order.length} of ${text.reference.length} sentences`;
    id("spacer").style.height = `${view.order.length * HEIGHT}px`;
    const same = before.length === view.order.length && before.every((line, n) => line === view.order[n]);
    if (!same) id("list").scrollTop = 0;
    select(same ? view.at : 0);
  }

  function drawItem(place) {
    const line = view.order[place];
    const score = text.chrf[system()][line];
    const other = system() === rival() ? "" : `, ${difference(line) < 0 ? "−" : "+"}${Math.abs(difference(line)).toFixed(1)}`;
    const meter = make("meter", { min: 0, max: 100, low: 40, high: 60, optimum: 100, value: score, ariaLabel: "chrF" });
    const top = make("span", { className: "top" }, meter, `${number(line)}, ${words[line]} words, chrF ${score.toFixed(1)}${other}`);
    const item = make("div", { className: "item", id: `item-${place}`, role: "option",
      "aria-selected": String(place === view.at), "aria-setsize": view.order.length, "aria-posinset": place + 1 },
      top, make("span", { className: "line" }, (text.source ?? text.reference)[line]));
    item.style.top = `${place * HEIGHT}px`;
    item.addEventListener("click", () => select(place));
    return item;
  }

  /** Draw what is in sight; after scrolling only if something in sight has not been drawn. */
  function drawList(scrolled = false) {
    const list = id("list");
    const [top, end] = [Math.floor(list.scrollTop / HEIGHT), Math.ceil((list.scrollTop + list.clientHeight) / HEIGHT)];
    if (scrolled && top >= view.drawn[0] && end <= view.drawn[1]) return;
    const first = Math.max(0, top - SPARE);
    const last = Math.min(view.order.length, end + SPARE);
    view.drawn = [top - SPARE, end + SPARE];
    const items = [];
    for (let place = first; place < last; place++) items.push(drawItem(place));
    id("spacer").replaceChildren(...items);
    if (view.order.length) list.setAttribute("aria-activedescendant", `item-${view.at}`);
    else list.removeAttribute("aria-activedescendant");
  }

  function select(place) {
    view.at = Math.min(Math.max(place, 0), view.order.length - 1);
    const list = id("list");
    const top = view.at * HEIGHT;
    if (top < list.scrollTop) list.scrollTop = top;
    if (top + HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = top + HEIGHT - list.clientHeight;
    drawList();
    drawDetail();
  }

  // ---- one sentence -----------------------------------------------------------------------------------------------

  function card(name, score, ...content) {
    const title = make("div", { className: "name" }, make("b", {}, name), make("span", {}, score));
    return make("div", { className: "card" }, title, make("p", { dir: "auto" }, ...content));
  }

  function button(label, pressed, act, properties = {}) {
    const made = make("button", { type: "button", ...properties }, label);
    if (pressed !== null) made.setAttribute("aria-pressed", String(pressed));
    made.addEventListener("click", act);
    return made;
  }

  function drawDetail() {
    const detail = id("detail");
    const line = view.order[view.at];
    view.passes = [];
    if (line === undefined) return detail.replaceChildren(make("p", {}, "No sentence fits. Widen the filters, or reset them."));
    history.replaceState(null, "", `#sentence-${number(line)}`);
    const hidden = detail.classList.contains("hide-missing");
    const missing = make("input", { type: "checkbox", checked: !hidden });
    missing.addEventListener("change", () => detail.classList.toggle("hide-missing", !missing.checked));
    const bar = make("div", { className: "bar" }, make("h3", {}, `Sentence ${number(line)}`),
      make("label", { className: "controls faint" }, missing, " show missing words"),
      button("Previous", null, () => select(view.at - 1)), button("Next", null, () => select(view.at + 1)));
    const pair = make("div", { className: "pair" });
    if (text.source) pair.append(card("Source", "", text.source[line]));
    pair.append(card("Reference", `${words[line]} words`, text.reference[line]));
    const systems = make("div", { className: "systems" }, ...data.systems.map((one, n) =>
      card(one.name, `chrF ${text.chrf[n][line].toFixed(1)}`, ...marked(text.systems[n][line], text.reference[line]))));
    detail.replaceChildren(bar, pair, systems, make("div", { id: "passes" }));
    loadPasses(line);
  }

  // ---- passes -----------------------------------------------------------------------------------------------------

  const tracedAt = (line) => data.systems.map((one, n) => n).filter((n) => place(n, line) >= 0);

  function place(system, line) {
    const { traced } = data.systems[system];
    return typeof traced === "number" ? (line < traced ? line : -1) : traced.indexOf(line);
  }

  async function loadPasses(line) {
    const turn = ++view.turn;
    const choices = tracedAt(line);
    if (!choices.length) {
      const any = data.systems.some((one) => one.pictures.length);
      if (any) id("passes").append(make("p", { className: "faint" }, "The passes of this sentence are not in the report."));
      return;
    }
    if (!choices.includes(view.traced)) view.traced = choices.includes(system()) ? system() : choices[0];
    const at = place(view.traced, line);
    const chunk = Math.floor(at / data.chunk);
    const key = `${view.traced}/${chunk}`;
    if (!chunks.has(key)) chunks.set(key, unpack(data.systems[view.traced].pictures[chunk]));
    const [texts, fragments] = (await chunks.get(key))[at % data.chunk];
    if (turn !== view.turn) return; // another sentence has been selected meanwhile
    view.passes = fragments.flatMap((passes, n) => passes.map((packed, m) => ({
      label: (fragments.length > 1 ? `${n + 1}.` : "") + (m + 1),
      before: m ? passes[m - 1][0] : null, text: texts[m] ?? "", packed })));
    view.pass = Math.min(view.pass, view.passes.length - 1);
    drawPasses(choices);
  }

  function drawPasses(choices) {
    const tokens = data.systems[view.traced].tokens;
    const bar = make("div", { className: "bar" }, make("h3", {}, `Passes of ${data.systems[view.traced].name}`), ...choices.map((n) =>
      button(data.systems[n].name, n === view.traced, () => { view.traced = n; loadPasses(view.order[view.at]); })));
    const tabs = make("div", { className: "bar controls", role: "group", "aria-label": "Pass" }, ...view.passes.map((pass, n) =>
      button(`Pass ${pass.label}`, n === view.pass, () => { view.pass = n; drawPasses(choices); })));
    if (!view.passes.length) return id("passes").replaceChildren();
    const { packed, before, label, text: written } = view.passes[view.pass];
    const picture = unpackPass(packed);
    const line = make("p", { id: "written", dir: "auto", ariaLive: "polite" }, written);
    id("passes").replaceChildren(bar, tabs, line, drawPicture(picture, before, label, tokens), drawKey(picture), drawVerdicts(picture, tokens));
  }

  function showPass(pass) {
    if (!(pass in view.passes)) return;
    view.pass = pass;
    drawPasses(tracedAt(view.order[view.at]));
  }

  /** The fields of a pass as `_packed_pass` in report.py writes them; a kept token is that of its column's output. */
  function unpackPass([output, gaps, masked, change, inputs, starts, percents, odd, verdicts, prefix = [], check = null]) {
    const inserted = new Map(gaps);
    const hidden = new Set(masked);
    const atColumn = new Map();
    let column = -1;
    const placed = output.map((token, n) => {
      column += 1 + (inserted.get(n) ?? 0);
      atColumn.set(column, token);
      const judged = check && n ? (n <= check[0] ? "accepted" : "refused") : "";
      return { column, token, state: hidden.has(n) ? "masked" : judged };
    });
    const own = check && check[1] !== null ? { column: placed[1 + check[0]]?.column ?? column + 1, token: check[1] } : null;
    const size = percents.length / starts.length;
    const strange = new Map(odd.map((cell) => [cell[0] * size + cell[1], cell]));
    let start = -1, columns = Math.max(column, own?.column ?? 0) + 1;
    const rows = starts.map((moved, row) => {
      start += moved;
      let at = start - 1;
      const cells = [];
      for (let inner = 0; inner < size; inner++) {
        const [, , skip, token, state, conflict] = strange.get(row * size + inner) ?? [0, 0, 0, -1, 0, -1];
        at += 1 + skip;
        cells.push({ column: at, token: token < 0 ? atColumn.get(at) : token, state: STATES[state], conflict,
          percent: percents.charCodeAt(row * size + inner) - 35 });
      }
      columns = Math.max(columns, at + 1);
      return { position: inputs ? row : null, input: inputs?.[row], cells };
    });
    return { columns, rows, output: placed, verdicts, change, prefix, own, checked: check !== null };
  }

  /** A row of a table whose cells stand in given columns. */
  function drawRow(head, cells, from, to, draw) {
    const row = make("tr", {}, make("th", { scope: "row" }, head));
    let next = from;
    for (const cell of cells) {
      if (cell.column > next) row.append(make("td", { colSpan: cell.column - next }));
      row.append(draw(cell));
      next = cell.column + 1;
    }
    if (next < to) row.append(make("td", { colSpan: to - next }));
    return row;
  }

  function drawCell(cell, tokens) {
    const drawn = make("td", { className: cell.state }, make("span", {}, tokens[cell.token] ?? `#${cell.token}`));
    if (cell.state !== "given") drawn.append(make("small", {}, String(cell.percent)));
    drawn.style.setProperty("--p", `${cell.percent}%`);
    if (cell.conflict >= 0) {
      drawn.append(make("sup", {}, String(cell.conflict + 1)));
      drawn.dataset.conflict = cell.conflict;
      drawn.title = `lost in conflict ${cell.conflict + 1}`;
    }
    return drawn;
  }

  /** Columns that fit beside each other: what is wider than the page continues below. */
  function bands(picture, name, head) {
    const widths = new Array(picture.columns).fill(0);
    const widen = (column, letters) => (widths[column] = Math.max(widths[column], letters * LETTER + CELL));
    picture.rows.forEach((row) => row.cells.forEach((cell) =>
      widen(cell.column, name(cell.token).length + (cell.state === "given" ? 0 : 3) + (cell.conflict >= 0 ? 1 : 0))));
    for (const cell of [...picture.output, ...(picture.own ? [picture.own] : [])]) widen(cell.column, name(cell.token).length);
    const room = id("passes").clientWidth - head * LETTER - 2 * CELL;
    const found = [];
    let used = Infinity;
    widths.forEach((width, column) => {
      if (used + width > room) { found.push({ from: column }); used = 0; }
      used += width;
      found.at(-1).to = column + 1;
    });
    return found;
  }

  /** A table for each band, with the rows that have tokens there. */
  function drawPicture(picture, before, label, tokens) {
    const name = (token) => tokens[token] ?? `#${token}`;
    const known = before ? common(picture.output.map((cell) => cell.token), before)[0] : picture.output.map(() => true);
    const marks = picture.output.filter((cell) => cell.state === "accepted").map(({ column }) => ({ column, sign: "✓" }));
    if (picture.own) marks.push({ column: picture.own.column, sign: name(picture.own.token) });
    picture.output.forEach((cell, n) => (cell.fresh = !known[n]));
    const heads = picture.rows.map((row) => (row.position === null ? "filled" : `${row.position} ${name(row.input)}`));
    const tables = bands(picture, name, Math.max(...heads.map((head) => head.length), 7)).map(({ from, to }) => {
      const inside = (cells) => cells.filter((cell) => cell.column >= from && cell.column < to);
      const rows = picture.rows.map((row, n) => [heads[n], inside(row.cells)]).filter(([, cells]) => cells.length);
      const body = rows.map(([head, cells]) => drawRow(head, cells, from, to, (cell) => drawCell(cell, tokens)));
      const foot = drawRow("merged", inside(picture.output), from, to, (cell) => {
        const fresh = cell.fresh && cell.state !== "refused"; // one line through or under a token
        const classes = [cell.state, fresh ? "new" : ""].filter(Boolean).join(" ");
        const notes = [SAID[cell.state], fresh ? "new in this pass" : ""].filter(Boolean);
        return make("td", { className: classes, title: notes.join(", ") }, make("span", {}, name(cell.token)));
      });
      const below = picture.checked
        ? [drawRow("checked", inside(marks), from, to, ({ sign }) => make("td", { className: "own" }, sign))] : [];
      return make("table", { className: "picture", ariaLabel: `Pass ${label}: pieces under their positions` },
        make("tbody", {}, ...body), make("tfoot", {}, foot, ...below));
    });
    const kept = picture.prefix.length
      ? [make("p", { className: "prefix" }, "kept: ", make("b", {}, picture.prefix.map(name).join(" ")))] : [];
    return make("div", { className: "picture-frame", tabIndex: 0, role: "region", ariaLabel: "Picture of the pass" }, ...kept, ...tables);
  }

  function drawKey(picture) {
    const signs = ["small figures: probability in percent"];
    if (picture.rows[0].position !== null) signs.push("a row is the piece of one position; aligned tokens share a column",
      "struck: lost to a higher score");
    if (picture.checked) signs.push("✓ accepted by the verifier", "below a token that it refused stands its own; the rest is drafted again");
    else signs.push("dashed: masked for the next pass");
    signs.push("underlined below: new in this pass");
    return make("ul", { className: "key" }, ...signs.map((sign) => make("li", {}, sign)));
  }

  function drawVerdicts(picture, tokens) {
    const list = make("ol", { className: "verdicts" });
    const shown = (ids) => ids.map((token) => tokens[token] ?? `#${token}`).join(" ") || "nothing";
    picture.verdicts.forEach(([piece, winner, high, loser, low], n) => {
      if (loser === undefined)
        return list.append(make("li", { className: "plain" }, `Piece ${piece} shares nothing with the text before it and is appended: ${shown(winner)}`));
      const item = make("li", {}, `Piece ${piece}: `, make("b", {}, shown(winner)), ` (${high.toFixed(2)}) wins against `,
        make("span", { className: "loser" }, shown(loser)), ` (${low.toFixed(2)})`);
      for (const [event, on] of [["mouseenter", true], ["mouseleave", false]])
        item.addEventListener(event, () => document.querySelectorAll(`[data-conflict="${n}"]`)
          .forEach((cell) => cell.classList.toggle("lit", on)));
      list.append(item);
    });
    if (picture.checked) {
      const refused = picture.output.filter((cell) => cell.state === "refused").map((cell) => cell.token);
      const accepted = picture.output.length - 1 - refused.length;
      const written = picture.own ? [" and writes ", make("b", {}, shown([picture.own.token])),
        refused.length ? ` for ${shown(refused.slice(0, 1))}` : " behind it"] : [];
      list.append(make("li", { className: "plain" },
        `The verifier accepts ${refused.length ? `${accepted} of ${picture.output.length - 1} tokens` : "all of the draft"}`, ...written));
    }
    if (picture.change) list.append(make("li", { className: "plain" }, picture.change > 0
      ? `Length: ${picture.change} masks inserted` : `Length: ${-picture.change} masks to delete, if there are enough`));
    return list;
  }

  // ---- keys, theme, start -----------------------------------------------------------------------------------------

  function turnTheme() {
    const dark = document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    nameTheme();
  }

  function nameTheme() {
    const theme = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    id("theme").textContent = theme === "dark" ? "Light" : "Dark";
  }

  function nextSystem() {
    const choices = tracedAt(view.order[view.at]);
    if (!choices.length) return;
    view.traced = choices[(choices.indexOf(view.traced) + 1) % choices.length];
    loadPasses(view.order[view.at]);
  }

  const KEYS = {
    j: () => select(view.at + 1), k: () => select(view.at - 1), s: nextSystem, t: turnTheme,
    n: () => showPass((view.pass + 1) % view.passes.length),
    "/": () => { id("text").focus(); id("text").select(); }, "?": () => id("keys").showModal(),
  };
  const PAGE = 8; // items that Page Up and Page Down move by
  const LIST_KEYS = { ArrowDown: (at) => at + 1, ArrowUp: (at) => at - 1, PageDown: (at) => at + PAGE, PageUp: (at) => at - PAGE,
    Home: () => 0, End: () => Infinity };

  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || id("keys").open) return;
    if (event.key === "Escape") return document.activeElement.blur();
    if (event.target.closest("input:not([type=checkbox]), select, textarea")) return;
    let act = KEYS[event.key];
    if (/^[1-9]$/.test(event.key)) act = () => showPass(Number(event.key) - 1);
    if (event.target === id("list") && LIST_KEYS[event.key]) act = () => select(LIST_KEYS[event.key](view.at));
    if (!act || !text) return;
    event.preventDefault();
    act();
  }

  function fillControls() {
    for (const name of ["system", "rival"])
      id(name).append(...data.systems.map((one, n) => make("option", { value: String(n) }, one.name)));
    id("system").value = String(Math.min(1, data.systems.length - 1));
    id("traced").parentElement.hidden = !data.systems.some((one) => one.pictures.length);
    const starting = new Map(["system", "rival", "sort"].map((name) => [name, control(name)]));
    for (const field of id("filters").querySelectorAll("input, select"))
      field.addEventListener(field.matches("select, [type=checkbox]") ? "change" : "input", refresh);
    id("reset").addEventListener("click", () => {
      for (const field of id("filters").querySelectorAll("input")) [field.value, field.checked] = ["", false];
      for (const [name, value] of starting) id(name).value = value;
      refresh();
    });
  }

  async function start() {
    id("notes").append(...data.notes.map((note) => make("li", {}, note)));
    id("tables").append(make("h2", {}, "Tables"), ...data.tables.map(drawTable));
    id("figures").append(...data.plots.map(drawPlot));
    id("plots").hidden = id("to-plots").hidden = !data.plots.length;
    id("signature").textContent = data.signature;
    id("theme").addEventListener("click", turnTheme);
    id("help").addEventListener("click", KEYS["?"]);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
    nameTheme();
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve))); // paint first
    if (!("DecompressionStream" in window)) {
      id("count").textContent = "The sentences need a browser of 2023 or later (Chrome 80, Firefox 113, Safari 16.4).";
      return;
    }
    text = await unpack(data.text);
    words = text.reference.map((line) => (line.match(/\S+/g) ?? []).length);
    spread = words.map((_, n) => { const all = text.chrf.map((scores) => scores[n]); return Math.max(...all) - Math.min(...all); });
    fillControls();
    const asked = /^#sentence-(\d+)$/.exec(location.hash);
    const hash = location.hash;
    refresh();
    if (asked) select(view.order.findIndex((line) => number(line) === Number(asked[1])));
    else history.replaceState(null, "", hash || location.pathname);
    let waiting = false;
    id("list").addEventListener("scroll", () => {
      if (!waiting) requestAnimationFrame(() => { waiting = false; drawList(true); });
      waiting = true;
    });
    addEventListener("resize", () => { drawList(); showPass(view.pass); });
    document.addEventListener("keydown", press);
    document.documentElement.dataset.ready = "true";
  }

  start();
})();
