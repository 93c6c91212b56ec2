// Numbers, times and states as people read them. Pure.

const group = new Intl.NumberFormat("en-US");
const short = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 });

export const whole = (number) => (number === null || number === undefined ? "" : group.format(number));

export function loss(value) {
  if (value === null || value === undefined) return "";
  if (!Number.isFinite(Number(value))) return String(value);
  return Math.abs(value) >= 100 || (value !== 0 && Math.abs(value) < 0.001) ? Number(value).toPrecision(3) : Number(value).toFixed(3);
}

export function rate(value) {
  if (value === null || value === undefined) return "";
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)}M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  return value >= 100 ? group.format(Math.round(value)) : short.format(value);
}

/** 3 s, 4 m 20 s, 5 h 3 m, 2 d 4 h */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  const pairs = [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]];
  const [big, name, small, rest] = pairs.find(([size]) => s >= size);
  const left = Math.floor((s % big) / small);
  return `${Math.floor(s / big)} ${name}${left ? ` ${left} ${rest}` : ""}`;
}

export function bytes(size) {
  if (size === null || size === undefined) return "";
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (size >= 1024 && at < names.length - 1) {
    size /= 1024;
    at += 1;
  }
  return `${at && size < 100 ? size.toFixed(1) : Math.round(size)} ${names[at]}`;
}

/** 14:03:22 of today, else with the day; of the reader's own time zone. */
export function clock(text, nowMs) {
  const at = new Date(text);
  if (!text || Number.isNaN(at.getTime())) return "";
  const pad = (number) => String(number).padStart(2, "0");
  const time = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  if (new Date(nowMs).toDateString() === at.toDateString()) return time;
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${time}`;
}

/** "last known: step 32, attempt 2, 10:43:12": of a run that only the record has seen; empty for any other. */
export function remembered(card, nowMs) {
  if (!card.known_at) return "";
  const parts = [card.step === null ? "" : `step ${whole(card.step)}`, card.attempt === null ? "" : `attempt ${card.attempt}`, card.failure_title ?? "", clock(card.known_at, nowMs)];
  return `last known: ${parts.filter(Boolean).join(", ")}`;
}

/** "last step 2 m 5 s ago" of a run in training that got no further for far longer than a step takes; `agoS`: since then. */
export const still = (card, agoS) => (!card.is_overdue || card.blind ? "" : card.step ? `last step ${duration(agoS)} ago` : `no step for ${duration(agoS)}`);

// state: [glyph, word, level, how urgent in a list (0 first)]
const STATES = {
  dead: ["✕", "dead", "bad", 0],
  hung: ["▲", "hung", "bad", 1],
  blind: ["?", "blind", "blind", 2],
  container_stopped: ["□", "CT stopped", "warn", 3],
  container_frozen: ["✻", "CT frozen", "warn", 4],
  unsupervised: ["◐", "unsupervised", "warn", 5],
  ending: ["◌", "ending", "warn", 6],
  new: ["○", "new", "plain", 7],
  healthy: ["●", "healthy", "good", 8],
  stopped: ["■", "stopped", "plain", 9],
  finished: ["✓", "finished", "plain", 10],
};

/** How a card's state is shown: a run that cannot be seen is blind, whatever it was. */
export function stateOf(card) {
  const name = card.blind ? "blind" : card.state;
  const [glyph, word, level, rank] = STATES[name] ?? ["·", name.replaceAll("_", " "), "plain", 7];
  return { name, glyph, word, level, rank };
}

const ACTS = {
  wait: "waits",
  relaunch: "relaunch",
  relaunch_with: "relaunch with changes",
  call: "calls a person",
  give_up: "gave up",
};

export const act = (kind) => ACTS[kind] ?? kind.replaceAll("_", " ");

/** "relaunch in 12 s, 2 left after it": `dueS`: seconds until then, null if it has no time. */
export function nextAct(next, dueS, isActing) {
  if (!next) return "";
  const isRelaunch = next.kind.startsWith("relaunch");
  const who = !isRelaunch || isActing ? "" : "would ";
  const when = !isRelaunch || dueS === null ? "" : dueS > 0.5 ? ` in ${duration(dueS)}` : " now";
  const count = isRelaunch ? next.attempts_left ?? null : null;
  const left = count === null ? "" : count === 0 ? ", the last one" : `, ${count} left after it`;
  return `${who}${act(next.kind)}${when}${left}`;
}

const LEVELS = { good: "good", bad: "bad", warning: "warn", info: "plain", detail: "plain" };
export const level = (name) => LEVELS[name] ?? "plain";
