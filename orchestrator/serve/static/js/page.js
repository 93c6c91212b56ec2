// What every page uses: elements, requests, the server's clock. Text from outside is only ever set as text.

const meta = (name) => document.querySelector(`meta[name=${name}]`)?.content ?? "";
export const ROOT = meta("root");
const CSRF = meta("csrf");
export const mayAct = CSRF !== "";
export const loginHref = () => `${ROOT}/login?next=${encodeURIComponent(location.pathname.slice(ROOT.length) + location.search)}`;
export const $ = (id) => document.getElementById(id);

/** Make an element. `props`: `text`, `class`, `data` (an object), `on` (an object); else an attribute, left out if null or false. */
export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") made.textContent = value;
    else if (key === "class") made.className = value;
    else if (key === "data") Object.assign(made.dataset, value);
    else if (key === "on") for (const [name, call] of Object.entries(value)) made.addEventListener(name, call);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

/** What the server or the way to it answered instead; `message` is for people. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function asked(path, options = {}) {
  let answer;
  try {
    answer = await fetch(ROOT + path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("the server does not answer", 0);
  }
  if (answer.status === 401) location.assign(loginHref());
  if (!answer.ok) {
    const { error } = await answer.json().catch(() => ({}));
    const said = [error?.message, error?.hint].filter(Boolean);
    throw new Refused(said.join("; ") || `the server answered ${answer.status}`, answer.status);
  }
  return answer;
}

export const raw = asked;
export const getJson = async (path, options) => (await asked(path, options)).json();
export const post = async (path) => (await asked(path, { method: "POST", headers: { "X-CSRF-Token": CSRF } })).json();

// -- the server's clock: ages are told by it, whatever the clock of this machine says

let atServer = null;
let atHere = 0;

/** Learn the server's time from an answer. */
export function learnNow(text) {
  const at = Date.parse(text);
  if (Number.isFinite(at)) {
    atServer = at;
    atHere = performance.now();
  }
}

/** The server's time in ms. */
export const now = () => (atServer === null ? Date.now() : atServer + performance.now() - atHere);

/** Seconds since a time of the server's; null if that is not known. */
export function since(text) {
  const at = text ? Date.parse(text) : NaN;
  return Number.isFinite(at) ? Math.max(0, (now() - at) / 1000) : null;
}

/** Set text only where it differs: an unchanged node costs no layout. */
export function put(node, text) {
  if (node.firstChild?.nodeType === 3 && node.childNodes.length === 1) {
    if (node.firstChild.data !== text) node.firstChild.data = text;
  } else if (text !== "" || node.firstChild) node.textContent = text;
}

/** Say something to who listens to a screen reader; several at once are said as one. */
let saying = [];
export function say(text) {
  if (!saying.length) {
    setTimeout(() => {
      const [first, ...rest] = saying;
      saying = [];
      $("said").textContent = rest.length > 2 ? `${first}, and ${rest.length} more` : [first, ...rest].join(". ");
    }, 500);
  }
  saying.push(text);
}

/** Call `work` at most once every `everyMs`, the last call always. */
export function atMost(everyMs, work) {
  let due = 0;
  let timer = null;
  return () => {
    if (timer !== null) return;
    const wait = Math.max(0, due - performance.now());
    timer = setTimeout(() => {
      timer = null;
      due = performance.now() + everyMs;
      work();
    }, wait);
  };
}

/** The colour that a custom property stands for now, for a canvas. */
export function colour(name) {
  const probe = $("main").appendChild(el("i"));
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** Call it when the colours change. */
export function onTheme(call) {
  document.addEventListener("theme", call);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", call);
}
