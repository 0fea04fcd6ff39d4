/** The page of `lath serve`: text on the left, its translation on the right, and below it how that came about. */
import { get, latest, post, postFile } from "./api.js";
import { id, make } from "./dom.js";
import * as how from "./how.js";

const AUTO = "auto";
const PAUSE = 150; // ms without a key until a text is translated
const LONGEST_LINK = 2000; // characters of text that a link holds
const SURE = 50; // % from which a detected language may change the target
const state = { languages: [], settings: {}, detected: null, chosen: false, timer: 0 };
const text = id("text"), result = id("result"), source = id("source"), target = id("target");

const named = (code) => state.languages.find((language) => language.code === code);
const reads = () => (source.value === AUTO ? state.detected : source.value);
const fill = (select, languages) => select.replaceChildren(...languages.map(({ code, name }) => new Option(name, code)));

/** What can be translated into, from the chosen language; and whether the other direction exists. */
function offerTargets(wanted = target.value) {
  const from = named(source.value);
  const codes = new Set(from ? from.targets : state.languages.flatMap((language) => language.targets));
  fill(target, state.languages.filter(({ code }) => codes.has(code) && code !== source.value));
  if (codes.has(wanted)) target.value = wanted;
  offerSwitch();
  offerChecks();
}

function offerSwitch() {
  const from = reads();
  const back = from && named(target.value)?.targets.includes(from);
  const names = [named(target.value)?.name, named(from)?.name];
  id("switch").disabled = !back;
  id("switch-reason").textContent = back ? "" : from
    ? `This server does not translate from ${names[0]} to ${names[1] ?? from}.`
    : "The direction can be switched when the language is known.";
}

/** Offer the ways to check a translation, if every model that may be meant has a verifier. */
function offerChecks() {
  const sources = source.value === AUTO
    ? state.languages.filter(({ targets }) => targets.includes(target.value)).map(({ code }) => code) : [source.value];
  const modes = sources.map((code) => state.settings.verify?.[`${code}-${target.value}`]);
  const offered = modes.length > 0 && modes.every((mode) => mode !== undefined);
  if (offered && id("checks").hidden) id("verify").value = modes[0];
  id("checks").hidden = !offered;
}

function switchDirection() {
  if (id("switch").disabled) return;
  const from = reads();
  if (result.textContent) text.value = result.textContent;
  source.value = target.value;
  offerTargets(from);
  translate();
}

function fields() {
  const key = id("key").value;
  return { source: source.value, target: target.value, ...(key && { api_key: key }) };
}

const ask = latest(async (signal, q, extra) => (q.trim() ? post("translate", { q, format: "text", ...fields(), ...extra }, signal) : null));

/** Translate what stands on the left, now. */
async function translate() {
  clearTimeout(state.timer);
  const [q, limit, begin] = [text.value, state.settings.charLimit, performance.now()];
  id("count").textContent = q.length > 0.8 * limit ? `${q.length} of ${limit} characters` : "";
  result.setAttribute("aria-busy", "true");
  const checks = id("checks").hidden ? {} : { verify: id("verify").value };
  const { found, failure } = await ask(q, { iterations: Number(id("passes").value), trace: id("how").open, ...checks });
  if (found === undefined && !failure) return; // a newer question is on its way
  result.removeAttribute("aria-busy");
  if (failure) return fail(failure);
  draw(found, performance.now() - begin);
}

function fail(failure) {
  const busy = failure.wait > 0;
  say(busy ? `${failure.message} Trying again in ${failure.wait} s.` : failure instanceof TypeError ? "The server does not answer." : failure.message, true);
  if (busy) state.timer = setTimeout(translate, 1000 * failure.wait);
}

function say(message, wrong = false) {
  id("state").textContent = message;
  id("state").classList.toggle("wrong", wrong);
}

function draw(found, whole) {
  result.textContent = found?.translatedText ?? "";
  id("copy").disabled = id("share").disabled = !found;
  const { language, confidence } = found?.detectedLanguage ?? {};
  state.detected = language ?? null;
  id("detected").textContent = language ? `Detected: ${named(language)?.name ?? language} (${Math.round(confidence)} %)` : "";
  const same = language === target.value;
  const [other] = named(language)?.targets ?? [];
  if (same && other && confidence >= SURE && !state.chosen) {
    target.value = other;
    offerChecks();
    soon();
  }
  offerSwitch();
  if (!found) say("");
  const hypothesis = found?.lath?.hypotheses?.[0];
  const { total = 0, ...times } = found?.lath?.ms ?? {};
  if (found) {
    const notes = [`${Math.round(whole)} ms`];
    if (same) notes[0] = `The text is in ${named(language).name} already.`;
    else if (hypothesis?.copied) notes.push("parts came through unchanged");
    if (hypothesis?.doubtful) notes.push("doubtful: let a person check it");
    say(notes.join(" · "));
  }
  how.show(hypothesis?.passes, { ...times, "everything else": Math.max(0, whole - total) });
}

function soon() {
  clearTimeout(state.timer);
  state.timer = setTimeout(translate, PAUSE);
}

async function copy(words, button) {
  try {
    await navigator.clipboard.writeText(words);
  } catch { // without a secure connection a page may copy only what is selected
    const held = make("textarea", { value: words, className: "unseen" });
    document.body.append(held);
    held.select();
    document.execCommand("copy");
    held.remove();
    button.focus();
  }
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = label), 1500);
}

function share() {
  const short = text.value.length <= LONGEST_LINK;
  const held = short ? encodeURIComponent(text.value) : "";
  history.replaceState(null, "", `#${source.value}-${target.value}|${held}`);
  if (!short) say(`The link holds no text: over ${LONGEST_LINK} characters.`);
  return copy(location.href, id("share"));
}

/** Take direction and text from the address: #de-en|Guten%20Morgen. */
function readAddress() {
  const [, from, to, words] = location.hash.match(/^#(\w+)-(\w+)\|(.*)$/s) ?? [];
  if (!from) return;
  if ([...source.options].some(({ value }) => value === from)) source.value = from;
  offerTargets(to);
  try {
    text.value = decodeURIComponent(words);
  } catch {
    text.value = words; // not written by this page
  }
  translate();
}

async function translateFile(file) {
  const line = make("li", {}, `${file.name}: translating …`);
  id("files").append(line);
  try {
    const href = await postFile(file, fields());
    const [, name, ending] = file.name.match(/^(.*?)(\.[^.]*)?$/s);
    line.replaceChildren(make("a", { href, download: `${name}.${target.value}${ending ?? ""}` }, `${name}.${target.value}${ending ?? ""}`));
  } catch (failure) {
    line.textContent = `${file.name}: ${failure.message}`;
    line.className = "wrong";
  }
}

function listenForFiles() {
  const holdsFile = (event) => event.dataTransfer?.types.includes("Files");
  for (const kind of ["dragenter", "dragover"])
    addEventListener(kind, (event) => {
      if (!holdsFile(event)) return;
      event.preventDefault();
      document.body.classList.add("dropping");
    });
  addEventListener("dragleave", (event) => !event.relatedTarget && document.body.classList.remove("dropping"));
  addEventListener("drop", (event) => {
    if (!holdsFile(event)) return;
    event.preventDefault();
    document.body.classList.remove("dropping");
    for (const file of event.dataTransfer.files) translateFile(file);
  });
  id("file").addEventListener("change", ({ target: chosen }) => {
    for (const file of chosen.files) translateFile(file);
    chosen.value = "";
  });
}

const KEYS = {
  KeyS: switchDirection,
  KeyC: () => id("copy").click(),
  KeyL: () => id("share").click(),
  KeyH: () => (id("how").open = !id("how").open),
  KeyP: () => id("how").open && how.play(),
  KeyJ: () => id("how").open && how.step(-1),
  KeyK: () => id("how").open && how.step(1),
};

function press(event) {
  const { altKey, ctrlKey, metaKey, code } = event;
  let act = null;
  if ((ctrlKey || metaKey) && code.endsWith("Enter")) act = translate;
  else if (altKey && !ctrlKey && !metaKey) act = KEYS[code];
  if (event.key === "Escape") how.pause();
  if (!act) return;
  event.preventDefault();
  act();
}

function listen() {
  text.addEventListener("input", soon);
  source.addEventListener("change", () => { offerTargets(); translate(); });
  target.addEventListener("change", () => { state.chosen = true; offerSwitch(); offerChecks(); translate(); });
  id("switch").addEventListener("click", switchDirection);
  id("passes").addEventListener("input", ({ target: slider }) => { id("passes-shown").textContent = slider.value; soon(); });
  for (const name of ["verify", "key"]) id(name).addEventListener("change", translate);
  id("copy").addEventListener("click", () => copy(result.textContent, id("copy")));
  id("share").addEventListener("click", share);
  id("how").addEventListener("toggle", () => (id("how").open ? translate() : how.pause()));
  id("help").addEventListener("click", () => id("keys").showModal());
  id("close").addEventListener("click", () => id("keys").close());
  addEventListener("keydown", press);
  addEventListener("hashchange", readAddress);
  listenForFiles();
}

async function start() {
  listen();
  try {
    [state.languages, state.settings] = await Promise.all([get("languages"), get("frontend/settings")]);
  } catch (failure) {
    return say(failure.message, true);
  }
  for (const part of [id("key"), id("key").labels[0]]) part.hidden = !state.settings.keyRequired;
  fill(source, [{ code: AUTO, name: "Detect language" }, ...state.languages.filter((language) => language.targets.length)]);
  offerTargets(state.settings.language?.target.code);
  readAddress();
  document.documentElement.dataset.ready = "yes";
}

start();
