// The log page: a window of lines over a log of any length. What is far from the window is not kept.

import { $, el, getJson, put, say } from "./page.js";
import { bytes as size, whole } from "./words.js";
import { lineNode } from "./lines.js";
import { backward, CHUNK, forward, lineStart } from "./chunks.js";
import { find } from "./find.js";
import { Stream } from "./stream.js";

const box = $("log");
const ID = Number(box.dataset.run);
const MAX_CHUNKS = 6;
const NEAR = 3_000; // pixels from an edge at which more is fetched
const FOLLOW_MS = 1_000;
const AGAIN_MS = 10_000; // after a look that failed
const LINE_PX = 17;

const query = new URLSearchParams(location.search);
let attempt = Number(query.get("attempt")) || null;
let chunks = []; // {start, end, node}
let total = 0;
let rest = null; // the node of a last line that has no end yet
let follows = !query.has("at");
let isBusy = false;
let isJumping = false; // nothing is appended meanwhile
let wanted = 0; // jumps so far: what an older one fetches is dropped
let marked = null;
let searching = null;

// -- the frame

const view = el("div", { class: "view", tabindex: "0", role: "region", "aria-label": "The log's text" });
const place = el("input", { type: "range", class: "place", min: "0", max: "1000", step: "1", value: "0", "aria-label": "Place in the log" });
const empty = el("span"); // what is said where there is no line
const where = el("span");
const state = el("span", { role: "status" });
const attempts = el("select", { "aria-label": "Attempt" });
const at = el("input", { class: "at", "aria-label": "Go to byte or percent", placeholder: "byte or 50%", autocomplete: "off" });
const follow = el("button", { type: "button", text: "Follow", title: "Keep the end in view" });
const text = el("input", { type: "search", "aria-label": "Search the log", placeholder: "Search ( / )", autocomplete: "off", spellcheck: "false" });
const next = el("button", { type: "button", text: "Next" });
const previous = el("button", { type: "button", text: "Previous" });
const cancel = el("button", { type: "button", text: "Cancel", hidden: true });
const wrap = el("label", {}, el("input", { type: "checkbox", checked: true }), " wrap");
$("log-tools").append(attempts, el("button", { type: "button", text: "Start", on: { click: () => jump(0) } }), el("button", { type: "button", text: "End", on: { click: () => toEnd() } }), at, follow, text, next, previous, cancel, wrap);
$("log-view").append(view, place, el("div", { class: "status" }, where, state));

// -- chunks

function asNode(chunk) {
  const node = el("div");
  node.append(...chunk.lines.map(lineNode));
  return node;
}

function learn(got) {
  total = got.size;
  if (attempt === null) attempt = got.attempt;
}

function clear() {
  chunks = [];
  view.replaceChildren();
  rest = null;
  marked = null;
}

function dropRest() {
  rest?.remove();
  rest = null;
}

function append(got) {
  dropRest();
  empty.remove();
  if (got.lines.length) {
    const chunk = { start: got.start, end: got.end, node: asNode(got) };
    chunks.push(chunk);
    view.append(chunk.node);
  }
  if (got.rest) {
    rest = lineNode(got.rest);
    view.append(rest);
  }
  while (chunks.length > MAX_CHUNKS) {
    const height = view.scrollHeight;
    chunks.shift().node.remove();
    view.scrollTop -= height - view.scrollHeight;
  }
}

function prepend(got) {
  const chunk = { start: got.start, end: got.end, node: asNode(got) };
  const height = view.scrollHeight;
  chunks.unshift(chunk);
  view.prepend(chunk.node);
  view.scrollTop += view.scrollHeight - height;
  while (chunks.length > MAX_CHUNKS) {
    dropRest();
    chunks.pop().node.remove();
  }
}

/** Fetch what is missing near the edges of the view, one piece at a time. */
async function fill() {
  if (isBusy || isJumping || !chunks.length) return;
  const turn = wanted;
  const below = view.scrollHeight - view.scrollTop - view.clientHeight;
  const isUp = view.scrollTop < NEAR && chunks[0].start > 0;
  if (!isUp && !(below < NEAR && chunks.at(-1).end < total && !rest)) return;
  isBusy = true;
  try {
    const got = isUp ? await backward(ID, attempt, chunks[0].start) : await forward(ID, attempt, chunks.at(-1).end);
    if (turn !== wanted) return;
    learn(got);
    if (isUp) prepend(got);
    else append(got);
    noLongerBad();
  } catch (error) {
    told(error.message, "bad");
    return;
  } finally {
    isBusy = false;
  }
  showPlace();
  fill();
}

/** Show the log around a byte. `isMarked`: the line is marked. */
async function jump(byte, isMarked = false) {
  setFollow(false);
  await load(Math.max(0, Math.min(byte, Math.max(0, total - 1))), isMarked);
}

async function load(byte, isMarked) {
  const turn = ++wanted;
  isJumping = true;
  told("reading…");
  try {
    const start = await lineStart(ID, attempt, byte);
    const got = await forward(ID, attempt, start);
    if (turn !== wanted) return;
    clear();
    learn(got);
    append(got);
    told("");
    if (start > 0) {
      const before = await backward(ID, attempt, start);
      if (turn !== wanted) return;
      if (before.lines.length) prepend(before);
    }
    reveal(byte, isMarked);
  } catch (error) {
    if (turn === wanted) told(error.message, "bad");
    return;
  } finally {
    if (turn === wanted) isJumping = false;
  }
  showPlace();
  fill();
}

function reveal(byte, isMarked) {
  marked?.classList.remove("hit");
  marked = null;
  let node = rest && Number(rest.dataset.at) <= byte ? rest : null;
  for (const chunk of node ? [] : chunks) {
    if (byte < chunk.start || byte >= chunk.end) continue;
    for (const line of chunk.node.children) {
      if (Number(line.dataset.at) > byte) break;
      node = line;
    }
  }
  if (!node) return;
  if (isMarked) {
    node.classList.add("hit");
    marked = node;
  }
  view.scrollTop = node.offsetTop - view.offsetTop - (isMarked ? view.clientHeight / 3 : 0);
}

async function toEnd() {
  const turn = ++wanted;
  isJumping = true;
  told("reading…");
  try {
    const start = total ? await lineStart(ID, attempt, Math.max(0, total - CHUNK / 2)) : -1;
    const first = start >= 0 ? start : await newestStart();
    let got = await forward(ID, attempt, first);
    if (turn !== wanted) return;
    clear();
    learn(got);
    append(got);
    while (got.end < got.size && !got.rest && got.lines.length) {
      got = await forward(ID, attempt, got.end);
      if (turn !== wanted) return;
      learn(got);
      append(got);
    }
    told(total ? "" : "the log is empty so far");
    view.scrollTop = view.scrollHeight;
  } catch (error) {
    if (turn === wanted) told(error.status === 404 ? "there is no log yet" : error.message, error.status === 404 ? "" : "bad");
    return;
  } finally {
    if (turn === wanted) isJumping = false;
  }
  setFollow(true);
  showPlace();
  fill();
}

async function newestStart() {
  const got = await forward(ID, attempt, 0);
  learn(got);
  return got.size <= CHUNK ? 0 : lineStart(ID, attempt, got.size - CHUNK / 2);
}

async function followOn() {
  if (!follows || isBusy || isJumping || performance.now() < followAt || document.hidden || !isKnown) return;
  const turn = wanted;
  isBusy = true;
  try {
    const from = chunks.at(-1)?.end ?? 0;
    const got = await forward(ID, attempt, from);
    if (turn !== wanted || !follows) return;
    if (got.size - got.end > 2 * CHUNK) {
      toEnd(); // it grows faster than it can be followed
      return;
    }
    const isNew = got.size !== total;
    learn(got);
    if (got.lines.length || isNew) append(got);
    view.scrollTop = view.scrollHeight;
    noLongerBad();
  } catch (error) {
    if (error.status !== 404) told(`not live: ${error.message}`, "bad");
    followAt = performance.now() + AGAIN_MS;
    return;
  } finally {
    isBusy = false;
  }
  showPlace();
}

let isKnown = false;
let followAt = 0;

function setFollow(value) {
  follows = value;
  follow.setAttribute("aria-pressed", String(value));
}

// -- what is told

function told(words, tone = "") {
  put(state, words);
  state.className = tone;
  empty.remove();
  if (chunks.length || rest) return;
  put(empty, words);
  empty.className = `l ${tone}`;
  view.append(empty);
}

/** What a search said stays; what went wrong is over. */
function noLongerBad() {
  if (state.className === "bad") told("");
}

function firstInView() {
  const top = view.scrollTop + view.offsetTop;
  const chunk = chunks.find(({ node }) => node.offsetTop + node.offsetHeight > top);
  if (!chunk) return chunks.at(-1)?.end ?? 0;
  const share = Math.max(0, (top - chunk.node.offsetTop) / Math.max(1, chunk.node.offsetHeight));
  return Math.round(chunk.start + share * (chunk.end - chunk.start));
}

let isSliding = false;

function showPlace() {
  const isEnd = chunks.length && chunks.at(-1).end >= total - (rest ? CHUNK : 0) && view.scrollHeight - view.scrollTop - view.clientHeight < 2 * LINE_PX;
  const byte = isEnd ? total : firstInView();
  const share = total ? byte / total : 0;
  if (!isSliding) place.value = String(Math.round(share * 1000));
  const words = total ? `byte ${whole(byte)} of ${whole(total)} (${size(total)}), ${(100 * share).toFixed(1)} %` : "";
  place.setAttribute("aria-valuetext", words);
  put(where, words);
}

// -- search

async function search(isForward) {
  const wish = text.value;
  if (!wish) return;
  searching?.abort();
  const mine = new AbortController();
  searching = mine;
  cancel.hidden = false;
  const from = marked ? Number(marked.dataset.at) : firstInView();
  const begin = isForward && marked ? endOf(marked) : from;
  try {
    const found = await find(ID, attempt, wish, begin, isForward, mine.signal, (pos, all) => told(`searching: ${whole(pos)} of ${whole(all)} (${((100 * pos) / all).toFixed(1)} %)`));
    if (found === null) {
      told(`no ${isForward ? "further" : "earlier"} match`);
      say("no match");
    } else {
      setFollow(false);
      await load(found, true);
      highlight(wish);
      told(`found at byte ${whole(found)}`);
    }
  } catch (error) {
    told(error.name === "AbortError" ? "search cancelled" : error.message, error.name === "AbortError" ? "" : "bad");
  } finally {
    if (searching === mine) {
      searching = null;
      cancel.hidden = true;
    }
  }
}

const endOf = (node) => Number((node.nextElementSibling ?? node.parentElement?.nextElementSibling?.firstElementChild)?.dataset.at ?? Number(node.dataset.at) + 1);

/** Underline the match inside of the marked line, without touching its text. */
function highlight(wish) {
  if (!marked || !globalThis.Highlight) return;
  const ranges = [];
  const walker = document.createTreeWalker(marked, NodeFilter.SHOW_TEXT);
  const low = wish.toLowerCase();
  while (walker.nextNode()) {
    const data = walker.currentNode.data.toLowerCase();
    for (let i = data.indexOf(low); i >= 0; i = data.indexOf(low, i + low.length)) {
      const range = new Range();
      range.setStart(walker.currentNode, i);
      range.setEnd(walker.currentNode, i + low.length);
      ranges.push(range);
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}

// -- events

let frame = null;
view.addEventListener("scroll", () => {
  frame ??= requestAnimationFrame(() => {
    frame = null;
    const isAtEnd = view.scrollHeight - view.scrollTop - view.clientHeight < 2 * LINE_PX;
    if (follows && !isAtEnd && !isBusy) setFollow(false);
    else if (!follows && isAtEnd && chunks.length && chunks.at(-1).end >= total) setFollow(true);
    showPlace();
    fill();
  });
});
place.addEventListener("input", () => {
  isSliding = true;
  put(where, `to byte ${whole(Math.round((place.value / 1000) * total))}`);
});
place.addEventListener("change", () => {
  isSliding = false;
  if (Number(place.value) >= 1000) toEnd();
  else jump(Math.round((place.value / 1000) * total));
});
at.addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  const word = at.value.trim().replaceAll(/[,_ ]/g, "");
  const byte = word.endsWith("%") ? (total * Number(word.slice(0, -1))) / 100 : Number(word);
  if (!word || !Number.isFinite(byte) || byte < 0) told("write a byte, or a percent like 50%", "bad");
  else if (byte >= total) toEnd();
  else jump(Math.floor(byte), !word.endsWith("%"));
});
follow.addEventListener("click", () => (follows ? setFollow(false) : toEnd()));
next.addEventListener("click", () => search(true));
previous.addEventListener("click", () => search(false));
cancel.addEventListener("click", () => searching?.abort());
text.addEventListener("keydown", (event) => event.key === "Enter" && search(!event.shiftKey));
text.addEventListener("input", () => searching?.abort());
wrap.firstElementChild.addEventListener("change", (event) => view.classList.toggle("nowrap", !event.target.checked));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=range]):not([type=checkbox]), select")) return;
  if (event.key === "/") {
    event.preventDefault();
    text.focus();
    text.select();
  } else if (event.key === "Home" && event.target === view) {
    event.preventDefault();
    jump(0);
  } else if (event.key === "End" && event.target === view) {
    event.preventDefault();
    toEnd();
  }
});
attempts.addEventListener("change", () => {
  attempt = Number(attempts.value);
  total = 0;
  marked = null;
  history.replaceState(null, "", `${location.pathname}?attempt=${attempt}`);
  toEnd();
});

async function begin() {
  try {
    const detail = await getJson(`/api/v1/runs/${ID}`);
    offer(detail.logs.map((each) => each.attempt));
  } catch (error) {
    told(error.message, "bad");
  }
  isKnown = true;
  const byte = query.get("at");
  if (byte === null) return toEnd();
  setFollow(false);
  total = Number(byte) + 1; // until the first answer tells it
  return load(Number(byte), true);
}

function offer(numbers) {
  const known = [...attempts.options].map((option) => Number(option.value));
  for (const n of numbers.toReversed()) if (!known.includes(n)) attempts.add(el("option", { value: String(n), text: `attempt ${n}` }), known.length && n > Math.max(...known) ? 0 : null);
  if (attempt === null && numbers.length) attempt = Math.max(...numbers);
  if (attempt !== null) attempts.value = String(attempt);
  attempts.hidden = !attempts.options.length;
}

function takeRuns(body) {
  const card = body.runs.find((each) => each.id === ID);
  if (!card?.attempt || !isKnown) return;
  const known = [...attempts.options].map((option) => Number(option.value));
  if (known.includes(card.attempt)) return;
  const wasNewest = follows && attempt === Math.max(0, ...known);
  offer([card.attempt]);
  say(`attempt ${card.attempt} has started`);
  if (wasNewest) {
    attempt = card.attempt;
    attempts.value = String(attempt);
    total = 0;
    toEnd();
  } else told(`attempt ${card.attempt} has started`);
}

setFollow(follows);
setInterval(followOn, FOLLOW_MS);
begin().then(() => new Stream("/api/v1/stream", { fleet: takeRuns, runs: takeRuns, told: () => {} }));
