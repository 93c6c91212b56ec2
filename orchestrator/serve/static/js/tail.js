// The newest lines of a log, as they come; it follows while its end is in view.

import { el, getJson, put } from "./page.js";
import { drawText } from "./lines.js";

const EVERY_MS = 1_000;
const MAX_LINES = 400;

export class Tail {
  constructor(box, run) {
    this.path = `/api/v1/runs/${run}/lines`;
    this.last = 0;
    this.isSeen = false;
    this.isAsking = false;
    this.follows = true;
    this.view = el("div", { class: "tail", tabindex: "0", role: "region", "aria-label": "The newest lines of the log" });
    this.note = el("p", { class: "faint" });
    this.view.addEventListener("scroll", () => (this.follows = this.view.scrollHeight - this.view.scrollTop - this.view.clientHeight < 24));
    box.replaceChildren(this.view, this.note);
    new IntersectionObserver(([entry]) => {
      this.isSeen = entry.isIntersecting;
      if (this.isSeen) this.look();
    }).observe(this.view);
    setInterval(() => this.look(), EVERY_MS);
  }

  async look() {
    if (!this.isSeen || document.hidden || this.isAsking) return;
    this.isAsking = true;
    try {
      const { last, lines } = await getJson(`${this.path}?after=${this.last}`);
      if (last < this.last) this.view.replaceChildren(); // the service began anew, and counts from 1
      this.last = last;
      this.#add(lines);
      put(this.note, this.view.childElementCount ? (this.follows ? "Follows." : "Scroll to the end to follow.") : "No line has come since the service began; the log's page has all of it.");
    } catch (error) {
      put(this.note, `Not live: ${error.message}`);
    } finally {
      this.isAsking = false;
    }
  }

  #add(lines) {
    if (!lines.length) return;
    const made = lines.slice(-MAX_LINES).map(({ text }) => {
      const node = el("span", { class: "l" });
      drawText(node, text || " ");
      return node;
    });
    this.view.append(...made);
    while (this.view.childElementCount > MAX_LINES) this.view.firstElementChild.remove();
    if (this.follows) this.view.scrollTop = this.view.scrollHeight;
  }
}
