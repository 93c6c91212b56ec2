// The server's stream: what comes, and whether it still comes. What was shown last stays, and is said to be old.

import { $, ROOT, getJson, learnNow, now, put } from "./page.js";
import { clock, duration } from "./words.js";

const SILENCE_MS = 15_000; // the server says something every few seconds
const HIDDEN_MS = 60_000; // a browser has six connections to a server: a tab that nobody sees gives its one back
const POLL_MS = 30_000; // and looks now and then, for its title
const AGAIN_MS = [500, 1_000, 2_000, 5_000, 10_000];

export class Stream {
  /** `on`: event name -> call(data); `changed`(isLive) after each change of that. */
  constructor(path, on, changed = () => {}) {
    this.path = path;
    this.on = on;
    this.changed = changed;
    this.source = null;
    this.heardAt = null; // performance.now() of the last word
    this.lostAt = null;
    this.tries = 0;
    this.timer = null;
    this.hiding = null;
    this.polling = null;
    document.addEventListener("visibilitychange", () => this.#seen());
    addEventListener("pagehide", () => this.#close());
    addEventListener("pageshow", (event) => event.persisted && this.#open());
    addEventListener("online", () => this.lostAt !== null && this.#open());
    setInterval(() => this.#look(), 1_000);
    this.#open();
  }

  get isLive() {
    return this.lostAt === null && this.heardAt !== null;
  }

  #open() {
    this.#close();
    const source = new EventSource(ROOT + this.path);
    this.source = source;
    this.openedAt = performance.now();
    for (const [name, call] of Object.entries(this.on)) {
      source.addEventListener(name, (event) => {
        this.#heard();
        const data = JSON.parse(event.data);
        if (name !== "told") learnNow(data.at);
        call(data);
      });
    }
    source.addEventListener("ping", (event) => {
      this.#heard();
      learnNow(JSON.parse(event.data).at);
    });
    source.onerror = () => this.#lost();
  }

  #close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  #heard() {
    this.heardAt = performance.now();
    this.tries = 0;
    if (this.lostAt !== null) {
      this.lostAt = null;
      this.changed(true);
    }
    this.#show();
  }

  #lost() {
    this.#close();
    if (this.lostAt === null) {
      this.lostAt = this.heardAt ?? performance.now();
      this.changed(false);
    }
    this.#show();
    const wait = AGAIN_MS[Math.min(this.tries, AGAIN_MS.length - 1)];
    this.tries += 1;
    // An EventSource does not tell a refusal from a lost way: this request leads to the login, or fails as well.
    this.timer = setTimeout(() => getJson("/api/v1/session").catch(() => {}).finally(() => this.#open()), wait * (0.8 + 0.4 * Math.random()));
  }

  #look() {
    if (this.source && performance.now() - (this.heardAt ?? this.openedAt) > SILENCE_MS && performance.now() - this.openedAt > SILENCE_MS) this.#lost();
    else this.#show();
  }

  #seen() {
    clearTimeout(this.hiding);
    clearInterval(this.polling);
    if (document.hidden) this.hiding = setTimeout(() => this.#rest(), HIDDEN_MS);
    else if (!this.source) this.#open();
  }

  #rest() {
    this.#close();
    this.heardAt = null; // what is shown is not live until something comes
    this.polling = setInterval(() => getJson("/api/v1/fleet").then(this.on.fleet, () => {}), POLL_MS);
  }

  #show() {
    const chip = $("live");
    chip.hidden = false;
    const isLost = this.lostAt !== null;
    chip.className = isLost ? "live lost" : this.heardAt === null ? "live slow" : "live";
    document.body.classList.toggle("lost-view", isLost);
    const quietS = this.heardAt === null ? null : (performance.now() - this.heardAt) / 1000;
    put(chip, isLost ? "not live" : quietS === null ? "connecting" : "live");
    const banner = $("banner");
    if (isLost) {
      const old = quietS === null ? "Nothing has come yet." : `What is shown is ${duration(quietS)} old, of ${clock(new Date(now() - quietS * 1000).toISOString(), now())}.`;
      banner.hidden = false;
      banner.className = "banner bad top-lost";
      banner.dataset.kind = "lost";
      delete banner.dataset.text;
      put(banner, `No connection to the server. ${old} Trying again.`);
    } else if (banner.dataset.kind === "lost") {
      banner.hidden = true;
      banner.textContent = "";
      delete banner.dataset.kind;
    }
  }
}

/** Say how the watch itself does: `why` is what is wrong with it, each for people. */
export function showHealth(why) {
  const banner = $("banner");
  if (banner.dataset.kind === "lost") return;
  const text = why.join("\n");
  if (banner.dataset.text === text) return;
  banner.dataset.text = text;
  banner.hidden = !why.length;
  banner.className = "banner";
  banner.dataset.kind = "health";
  if (!why.length) return;
  const list = document.createElement("ul");
  for (const each of why.slice(0, 5)) list.append(Object.assign(document.createElement("li"), { textContent: each }));
  const more = why.length > 5 ? ` (the first 5 of ${why.length})` : "";
  banner.replaceChildren(`The watch does not see everything${more}:`, list);
}
