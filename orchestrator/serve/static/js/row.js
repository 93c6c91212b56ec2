// One row of the fleet: a cell is touched only when its text differs.

import { el, now, put, ROOT, since } from "./page.js";
import { duration, loss, nextAct, rate, remembered, stateOf, still, whole } from "./words.js";

const FRESH_S = 8; // a look alone is told every few seconds
const STALE_S = 10;
const END = 10; // characters of a target that are always shown

const cell = (name, props = {}) => el("div", { role: "cell", class: name, ...props });

export class Row {
  /** `place`: its place in the table, which it keeps; the run that it shows changes. */
  constructor(place) {
    this.id = null;
    this.link = el("a");
    this.glyph = el("span", { class: "glyph", "aria-hidden": "true" });
    this.word = el("span");
    this.count = el("span");
    this.fill = el("i");
    this.state = cell("state");
    this.state.append(this.glyph, this.word);
    this.name = el("div", { role: "rowheader", class: "name" }, this.link);
    this.step = cell("step was");
    this.bar = el("span", { class: "bar", "aria-hidden": "true" }, this.fill);
    this.step.append(this.count, this.bar);
    this.target = cell("target", { data: { label: "at" } });
    this.start = el("span", { class: "start" });
    this.end = el("span", { class: "end" });
    this.target.append(this.start, this.end);
    this.phase = cell("phase was");
    this.loss = cell("loss num was", { data: { label: "loss" } });
    this.speed = cell("speed num was", { data: { label: "tok/s" } });
    this.eta = cell("eta num was", { data: { label: "ETA" } });
    this.seen = cell("seen num", { data: { label: "seen" } });
    this.try = cell("try num", { data: { label: "attempt" } });
    this.next = cell("next");
    this.node = el("div", { role: "row", class: "row", data: { place } }, this.state, this.name, this.target, this.phase, this.step, this.loss, this.speed, this.eta, this.seen, this.try, this.next);
    this.share = -1;
    this.card = null;
  }

  draw(card, acting) {
    if (this.card?.id !== card.id) this.link.href = `${ROOT}/runs/${card.id}`;
    this.card = card;
    const state = stateOf(card);
    if (this.node.dataset.level !== state.level) this.node.dataset.level = state.level;
    put(this.glyph, state.glyph);
    put(this.word, state.word);
    put(this.link, card.name);
    if (this.link.title !== card.name) this.link.title = card.name;
    // It gives way in its middle: where many are at one address, the end tells them apart.
    put(this.start, card.target.slice(0, -END));
    put(this.end, card.target.slice(-END));
    if (this.target.title !== card.target) this.target.title = card.target;
    put(this.phase, card.phase ?? "");
    put(this.count, card.step === null ? "" : card.total_steps ? `${whole(card.step)} / ${whole(card.total_steps)}` : whole(card.step));
    const share = card.step !== null && card.total_steps ? Math.round((1000 * card.step) / card.total_steps) / 1000 : 0;
    if (share !== this.share) {
      this.share = share;
      this.fill.style.transform = `scaleX(${Math.min(1, share)})`;
    }
    this.bar.hidden = card.step === null;
    put(this.loss, loss(card.loss));
    put(this.speed, rate(card.tokens_per_s));
    put(this.eta, card.blind ? "" : duration(card.eta_s));
    put(this.try, card.attempt === null ? "" : String(card.attempt));
    this.tick(acting);
  }

  /** What changes with time alone. */
  tick(acting) {
    const card = this.card;
    if (!card) return;
    const age = since(card.looked_at ?? card.known_at);
    put(this.seen, age === null ? (card.has_ended ? "" : "never") : age < FRESH_S ? "now" : duration(age));
    this.seen.classList.toggle("warn", !card.has_ended && (age === null ? card.state !== "new" : age > STALE_S));
    const text = said(card, acting);
    put(this.next, text);
    if (this.next.title !== text) this.next.title = text;
  }
}

/** What happened to it and what comes next, in a line. */
function said(card, acting) {
  const due = card.next_act?.due_at ? (Date.parse(card.next_act.due_at) - now()) / 1000 : null;
  const state = stateOf(card);
  const what = card.blind ? [remembered(card, now()), `not seen: ${card.blind}`].filter(Boolean).join("; ") : state.level === "good" || state.level === "plain" ? still(card, since(card.moved_at)) : card.failure ?? card.summary;
  const next = card.is_busy ? "acting now" : nextAct(card.next_act, due, acting && card.is_acting);
  return [what, next, card.remark].filter(Boolean).join("; ");
}
