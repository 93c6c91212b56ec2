// The fleet page. Only what changed is touched, once a frame, and of rows that nobody sees seldom.

import { $, atMost, el, now, put, ROOT, say, since } from "./page.js";
import { showHealth, Stream } from "./stream.js";
import { Row } from "./row.js";
import { clock, level, stateOf } from "./words.js";

const MAX_EVENTS = 30;
const LAZY_A_SECOND = 40; // rows out of sight that are brought up to date
const ARRANGE_MS = 3_000; // by a value that changes all the time

const COLUMNS = [
  ["state", "State", (card) => stateOf(card).rank],
  ["name", "Run", (card) => card.name.toLowerCase()],
  ["target", "Target", (card) => card.target.toLowerCase()],
  ["phase", "Phase", (card) => card.phase],
  ["step", "Step", (card) => card.step],
  ["loss", "Loss", (card) => card.loss, "num"],
  ["speed", "tok/s", (card) => card.tokens_per_s, "num"],
  ["eta", "ETA", (card) => card.eta_s, "num"],
  ["seen", "Seen", (card) => since(card.looked_at ?? card.known_at), "num"],
  ["try", "Att.", (card) => card.attempt, "num"],
  ["next", "What and what next", (card) => card.next_act?.due_at ?? (card.next_act ? "~" : null)],
];
const STEADY = new Set(["state", "name", "target"]);
const TITLES = { try: "Attempt", seen: "Age of the last good look", eta: "Time to the last step" };

const cards = new Map();
const pool = []; // rows by their place: to sort and filter, places get other runs, and no node moves
let byId = new Map();
const stale = new Set(); // rows that show something old
const wrong = new Set(); // and those that still show another run
const inView = new Set();
let shown = []; // the ids in their order
let told = [];
let acting = true;
let isWhole = false;

const query = new URLSearchParams(location.search);
const sorting = { by: COLUMNS.some(([key]) => key === query.get("sort")) ? query.get("sort") : "state", down: query.get("down") === "1" };
let only = query.get("state") ?? "";
const filter = $("filter");
filter.value = query.get("q") ?? "";

// -- the table's frame

const body = el("div", { class: "rows", role: "rowgroup" });
const heads = new Map();
const headRow = el("div", { class: "row heads", role: "row" });
for (const [key, title, , kind] of COLUMNS) {
  const button = el("button", { type: "button", text: title, title: TITLES[key], "aria-label": TITLES[key] ? `${title}: ${TITLES[key]}` : null, on: { click: () => sortBy(key) } });
  const head = el("div", { role: "columnheader", class: `${key} ${kind ?? ""}` }, button);
  heads.set(key, head);
  headRow.append(head);
}
const choose = el("select", { "aria-label": "Sort by", on: { change: () => sortBy(choose.value, false) } }, ...COLUMNS.map(([key, title]) => el("option", { value: key, text: title })));
$("counts").after(el("span", { class: "sortby" }, "Sort", choose));
$("runs").append(el("div", { role: "rowgroup" }, headRow), body);

const watcher = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) inView.add(pool[target.dataset.place]);
      else inView.delete(pool[target.dataset.place]);
    }
    paintSoon();
  },
  { rootMargin: "300px 0px" },
);

// -- what comes

function take(card) {
  const before = cards.get(card.id);
  cards.set(card.id, card);
  if (byId.has(card.id)) stale.add(byId.get(card.id));
  const state = stateOf(card);
  card.haystack = `${card.name} ${card.target} ${state.word} ${card.failure ?? ""} ${card.phase ?? ""}`.toLowerCase();
  if (before && isWhole) tellChange(before, card, state);
  if (!before || stateOf(before).name !== state.name || before.haystack !== card.haystack) needsArranging = true;
}

function tellChange(before, card, state) {
  const was = stateOf(before);
  if (was.name === state.name) return;
  if (["dead", "hung", "blind"].includes(state.name)) say(`${card.name} is ${state.word}: ${card.blind ?? card.failure_title ?? card.summary}`);
  else if (state.name === "healthy" && (was.level !== "plain" || (card.attempt ?? 1) > 1)) say(`${card.name} runs again, attempt ${card.attempt}`);
  else if (state.name === "finished") say(`${card.name} has finished`);
}

function forget(id) {
  cards.delete(id);
  needsArranging = true;
}

let needsArranging = false;
let drawnTold = -1;
let frame = null;

function paintSoon() {
  frame ??= requestAnimationFrame(paint);
}

function paint() {
  frame = null;
  if (needsArranging) arrange();
  for (const row of stale) if (inView.has(row)) bring(row);
  if (told.length && told.at(-1).seq !== drawnTold) drawEvents();
}

function bring(row) {
  stale.delete(row);
  wrong.delete(row);
  const card = cards.get(row.id);
  if (card) row.draw(card, acting);
}

const idly = globalThis.requestIdleCallback ?? ((call) => setTimeout(call, 50));
let isRighting = false;

/** Rows out of sight get their run when there is time: somebody may search the page, or hear it read. */
function right() {
  isRighting = false;
  let left = 20;
  for (const row of wrong) if (left-- > 0) bring(row);
  rightSoon();
}

function rightSoon() {
  if (!wrong.size || isRighting) return;
  isRighting = true;
  idly(right);
}

// -- order and filter

function wanted() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  return [...cards.values()].filter((card) => (!only || stateOf(card).name === only) && words.every((word) => card.haystack.includes(word)));
}

function arrange() {
  needsArranging = false;
  const of = COLUMNS.find(([key]) => key === sorting.by)[2];
  const side = sorting.down ? -1 : 1;
  const keyed = wanted().map((card) => [of(card), card]);
  keyed.sort(([a, one], [b, two]) => {
    if (a === b) return one.name < two.name ? -1 : one.name > two.name ? 1 : one.id - two.id;
    if (a === null || a === undefined) return 1; // what is not known comes last, whichever way
    if (b === null || b === undefined) return -1;
    return (a < b ? -1 : 1) * side;
  });
  const order = keyed.map(([, card]) => card.id);
  const focused = pool.find((row) => row.link === document.activeElement)?.id;
  while (pool.length < order.length) {
    const row = new Row(pool.length);
    pool.push(row);
    body.append(row.node);
    watcher.observe(row.node);
    if (pool.length < 40) inView.add(row); // until it is known
  }
  byId = new Map();
  pool.forEach((row, place) => {
    const id = order[place] ?? null;
    if (id !== null) byId.set(id, row);
    if (row.id === id) return;
    row.id = id;
    row.node.hidden = id === null;
    stale.add(row);
    wrong.add(row);
  });
  if (focused !== undefined && byId.has(focused) && byId.get(focused).link !== document.activeElement) {
    bring(byId.get(focused));
    byId.get(focused).link.focus({ preventScroll: true });
  }
  rightSoon();
  shown = order;
  share();
  drawCounts();
  drawFrame();
}

/** The columns of names and targets share the room by what is in them. */
function share() {
  for (const key of ["name", "target"]) {
    const longest = Math.max(12, ...[...cards.values()].map((card) => card[key].length));
    $("runs").style.setProperty(`--${key}`, `${Math.min(36, longest)}fr`);
  }
}

function drawFrame() {
  $("runs").hidden = !shown.length;
  $("empty").hidden = !isWhole || cards.size > 0;
  filter.parentElement.hidden = !cards.size;
  document.querySelector(".sortby").hidden = !cards.size;
  $("none").hidden = !cards.size || shown.length > 0;
  put($("none"), "No run matches the filter.");
}

function drawCounts() {
  const counts = new Map();
  for (const card of cards.values()) {
    const state = stateOf(card);
    counts.set(state.name, { ...state, count: (counts.get(state.name)?.count ?? 0) + 1 });
  }
  if (only && !counts.has(only)) counts.set(only, { ...stateOf({ state: only }), count: 0 });
  const order = [...counts.values()].sort((a, b) => a.rank - b.rank);
  const box = $("counts");
  const key = JSON.stringify([order, only]);
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  const focused = document.activeElement?.dataset?.state;
  box.replaceChildren(
    ...order.map((each) =>
      el("button", { type: "button", class: each.level, "aria-pressed": String(only === each.name), data: { state: each.name }, title: `Show only these`, on: { click: () => pick(each.name) } }, el("span", { class: "glyph", "aria-hidden": "true", text: each.glyph }), `${each.count} ${each.word}`),
    ),
  );
  if (focused) box.querySelector(`[data-state="${CSS.escape(focused)}"]`)?.focus();
  const bad = ["dead", "hung", "blind"].map((name) => counts.get(name)).filter((each) => each?.count);
  document.title = `${bad.length ? `(${bad.map((each) => `${each.count} ${each.word}`).join(", ")}) ` : ""}Runs · dflashctl`;
}

function pick(name) {
  only = only === name ? "" : name;
  changedView();
}

function sortBy(key, mayTurn = true) {
  if (sorting.by === key) sorting.down = mayTurn ? !sorting.down : sorting.down;
  else Object.assign(sorting, { by: key, down: ["step", "loss", "speed"].includes(key) });
  changedView();
}

const remember = atMost(500, () => {
  const words = new URLSearchParams();
  if (filter.value) words.set("q", filter.value);
  if (only) words.set("state", only);
  if (sorting.by !== "state") words.set("sort", sorting.by);
  if (sorting.down) words.set("down", "1");
  history.replaceState(null, "", `${location.pathname}${words.size ? `?${words}` : ""}`);
});

function changedView() {
  for (const [key, head] of heads) {
    if (key === sorting.by) head.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  choose.value = sorting.by;
  needsArranging = true;
  paintSoon();
  remember();
}

// -- what happened

function takeTold(fresh) {
  const last = told.at(-1)?.seq ?? 0;
  told.push(...fresh.filter((each) => each.seq > last));
  told = told.slice(-MAX_EVENTS);
}

function drawEvents() {
  drawnTold = told.at(-1).seq;
  $("recent").hidden = false;
  const list = $("events");
  const known = new Map([...list.children].map((item) => [item.dataset.seq, item]));
  list.replaceChildren(...told.toReversed().map((each) => known.get(String(each.seq)) ?? eventItem(each)));
}

function eventItem(each) {
  const words = `${each.kind}: ${each.text}`;
  return el(
    "li",
    { data: { seq: each.seq } },
    el("time", { datetime: each.at, text: clock(each.at, now()) }),
    each.run_id === null ? el("span", { text: each.run }) : el("a", { href: `${ROOT}/runs/${each.run_id}`, text: each.run }),
    el("span", { class: level(each.level), text: words.length > 300 ? `${words.slice(0, 300)}…` : words }),
  );
}

// -- time passes

function tick() {
  if (document.hidden) return;
  for (const row of inView) if (row.id !== null && !wrong.has(row)) row.tick(acting);
  let left = LAZY_A_SECOND;
  for (const row of stale) {
    if (left-- <= 0) break;
    bring(row);
  }
}

const rearrange = atMost(ARRANGE_MS, () => {
  if (STEADY.has(sorting.by)) return;
  needsArranging = true;
  paintSoon();
});

// -- keys

function openKeys() {
  const keys = [["/", "filter"], ["Esc", "clear the filter"], ["j, k", "next, previous run"], ["Enter", "open the run"], ["?", "this list"]];
  const list = el("table", {}, el("caption", { class: "unseen", text: "Keys" }), el("tbody", {}, ...keys.map(([key, what]) => el("tr", {}, el("th", { scope: "row" }, el("kbd", { text: key })), el("td", { text: what })))));
  const close = el("button", { text: "Close" });
  const dialog = el("dialog", { "aria-labelledby": "keys-title" }, el("h2", { id: "keys-title", text: "Keys" }), list, el("form", { method: "dialog", class: "acts" }, close));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function step(by) {
  const at = pool.findIndex((row) => row.link === document.activeElement);
  const next = pool[at < 0 ? 0 : Math.min(shown.length - 1, Math.max(0, at + by))];
  if (!next || next.id === null) return;
  bring(next);
  next.link.focus();
  next.node.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const isTyping = event.target.matches("input, select, textarea");
  if (event.key === "Escape" && event.target === filter) {
    filter.value = "";
    filter.blur();
    changedView();
  } else if (event.key === "Enter" && event.target === filter && shown.length) {
    pool[0].link.focus();
  } else if (!isTyping && event.key === "/") {
    event.preventDefault();
    filter.focus();
    filter.select();
  } else if (!isTyping && (event.key === "j" || event.key === "k")) step(event.key === "j" ? 1 : -1);
  else if (!isTyping && event.key === "?") openKeys();
});
filter.addEventListener("input", changedView);
$("keys").hidden = false;
$("keys").addEventListener("click", openKeys);

// -- the stream

function takeFleet(fleet) {
  acting = fleet.acting;
  $("mode").hidden = acting;
  const there = new Set(fleet.runs.map((card) => card.id));
  for (const id of [...cards.keys()]) if (!there.has(id)) forget(id);
  for (const card of fleet.runs) take(card);
  if (told.at(-1)?.seq > (fleet.told.at(-1)?.seq ?? 0)) told = []; // the service began anew
  takeTold(fleet.told);
  isWhole = true;
  needsArranging = true;
  showHealth(fleet.health.why);
  paintSoon();
}

function takeChanges(changes) {
  for (const id of changes.removed) forget(id);
  for (const card of changes.runs) take(card);
  showHealth(changes.health.why);
  rearrange();
  paintSoon();
}

changedView();
new Stream("/api/v1/stream", {
  fleet: takeFleet,
  runs: takeChanges,
  told: (data) => {
    takeTold(Array.isArray(data) ? data : data.told ?? [data]);
    paintSoon();
  },
});
setInterval(tick, 1_000);
