// A strip a GPU: its readings over time as colours, and what it reads now.

import { atMost, colour, el, getJson, now, onTheme, put } from "./page.js";
import { bytes, clock, duration } from "./words.js";

const REFETCH_MS = 10_000;
const KINDS = {
  utilization_pct: ["Utilization", () => 100, (value) => `${Math.round(value)} %`],
  memory_used_bytes: ["Memory", (gpu) => gpu.memory_total_bytes, bytes],
  power_w: ["Power", (gpu) => Math.max(...gpu.power_w.filter((value) => value !== null), 1), (value) => `${Math.round(value)} W`],
  temperature_c: ["Temperature", () => 100, (value) => `${Math.round(value)} °C`],
};
const SPANS = [["all", null], ["last hour", 3_600], ["last 6 h", 21_600], ["last day", 86_400]];

export class Heat {
  constructor(box, run) {
    this.box = box;
    this.path = `/api/v1/runs/${run}/gpus`;
    this.kind = "utilization_pct";
    this.span = null;
    this.history = new Map();
    this.cards = [];
    this.strips = new Map();
    this.fetchSoon = atMost(REFETCH_MS, () => this.fetch());
    onTheme(() => this.#paint());
    new ResizeObserver(atMost(200, () => this.#paint())).observe(box);
  }

  async fetch() {
    try {
      const { gpus } = await getJson(this.path);
      this.history = new Map(gpus.map((gpu) => [gpu.index, gpu]));
    } catch {
      return; // what was drawn stays; the page says by itself that the server is lost
    }
    this.#lay();
    this.#paint();
  }

  /** What the GPUs read now. */
  now(card) {
    this.card = card;
    this.cards = card.gpus;
    this.#lay();
    for (const gpu of this.cards) {
      const strip = this.strips.get(gpu.index);
      if (strip) this.#values(strip, gpu);
    }
  }

  #lay() {
    const seen = [...new Set([...this.history.keys(), ...this.cards.map((gpu) => gpu.index)])].sort((a, b) => a - b);
    const problem = this.card?.gpu_problem ?? "";
    const shape = `${seen.join()}/${problem}`;
    if (shape === this.shape) return;
    this.shape = shape;
    this.strips.clear();
    const note = problem ? el("p", { class: "note warn", text: `The GPUs cannot be read: ${problem}` }) : null;
    if (!seen.length) {
      this.box.replaceChildren(note ?? el("p", { class: "faint", text: "No GPU has been seen in its container." }));
      return;
    }
    const kinds = el("select", { "aria-label": "What is shown", on: { change: () => this.#choose(kinds.value, this.span) } }, ...Object.entries(KINDS).map(([key, [title]]) => el("option", { value: key, text: title, selected: key === this.kind })));
    const spans = el("select", { "aria-label": "How far back", on: { change: () => this.#choose(this.kind, SPANS[spans.selectedIndex][1]) } }, ...SPANS.map(([title, span]) => el("option", { text: title, selected: span === this.span })));
    this.legend = el("span", { class: "faint" });
    const grid = el("div", { class: "heat" });
    for (const index of seen) {
      const strip = { canvas: el("canvas", { role: "img" }), title: el("span"), values: el("span", { class: "now-values" }) };
      this.strips.set(index, strip);
      grid.append(strip.title, strip.canvas, strip.values);
      put(strip.title, `GPU ${index}`);
    }
    this.from = el("span");
    this.to = el("span");
    grid.append(el("span"), el("div", { class: "axis" }, this.from, this.to), el("span"));
    this.box.replaceChildren(...[note, el("div", { class: "tools-row" }, kinds, spans, this.legend), grid].filter(Boolean));
    for (const gpu of this.cards) this.#values(this.strips.get(gpu.index), gpu);
  }

  #choose(kind, span) {
    this.kind = kind;
    this.span = span;
    this.#paint();
  }

  #values(strip, gpu) {
    const memory = gpu.memory_used_bytes === null ? "" : `${bytes(gpu.memory_used_bytes)}${gpu.memory_total_bytes ? ` of ${bytes(gpu.memory_total_bytes)}` : ""}`;
    const held = gpu.pids.length ? `held by pid ${gpu.pids.join(", ")}` : "";
    const parts = [gpu.utilization_pct === null ? "" : `${Math.round(gpu.utilization_pct)} %`, memory, gpu.power_w === null ? "" : `${Math.round(gpu.power_w)} W`, gpu.temperature_c === null ? "" : `${Math.round(gpu.temperature_c)} °C`, held, gpu.problem ?? ""];
    put(strip.values, parts.filter(Boolean).join(" · "));
    strip.values.classList.toggle("bad", Boolean(gpu.problem));
    put(strip.title, `GPU ${gpu.index}${gpu.is_own ? "" : " (not this run's)"}`);
    strip.title.title = gpu.name ?? "";
  }

  #paint() {
    const times = [...this.history.values()].flatMap((gpu) => [gpu.times[0], gpu.times.at(-1)]).filter((at) => at !== undefined);
    if (!times.length || !this.strips.size) return;
    const high = Math.max(...times);
    const low = this.span === null ? Math.min(...times) : high - this.span;
    const [name, topOf, words] = KINDS[this.kind];
    const cold = rgb(colour("--over"));
    const hot = rgb(colour("--link"));
    for (const [index, strip] of this.strips) {
      const gpu = this.history.get(index);
      if (gpu) this.#strip(strip, gpu, low, high, topOf(gpu) || 1, cold, hot);
      strip.canvas.setAttribute("aria-label", gpu ? `GPU ${index}: ${said(gpu, this.kind, low, name, words)}` : `GPU ${index}: no reading is kept`);
      strip.canvas.title = strip.canvas.getAttribute("aria-label");
    }
    put(this.legend, `pale 0, dark ${this.kind === "memory_used_bytes" ? "full" : this.kind === "power_w" ? "its most" : this.kind === "temperature_c" ? "100 °C" : "100 %"}; blank: not read`);
    put(this.from, `${clock(new Date(low * 1000).toISOString(), now())} (${duration(high - low)} before)`);
    put(this.to, clock(new Date(high * 1000).toISOString(), now()));
  }

  #strip({ canvas }, gpu, low, high, top, cold, hot) {
    const width = Math.max(1, Math.round(canvas.clientWidth));
    canvas.width = width;
    canvas.height = 1;
    const ctx = canvas.getContext("2d");
    const image = ctx.createImageData(width, 1);
    const span = Math.max(high - low, 1);
    const sums = new Float64Array(width);
    const counts = new Uint32Array(width);
    const gap = Math.max((span / width) * 1.5, 35); // a reading stands for the time until the next one, if that is near
    for (let i = 0; i < gpu.times.length; i += 1) {
      const value = gpu[this.kind][i];
      if (value === null || gpu.times[i] < low) continue;
      const until = Math.min(gpu.times[i + 1] ?? gpu.times[i], gpu.times[i] + gap);
      const begin = Math.floor(((gpu.times[i] - low) / span) * (width - 1));
      const end = Math.max(begin, Math.ceil(((until - low) / span) * (width - 1)) - 1);
      for (let x = begin; x <= end; x += 1) {
        sums[x] += value;
        counts[x] += 1;
      }
    }
    for (let x = 0; x < width; x += 1) {
      if (!counts[x]) continue;
      const share = Math.min(1, sums[x] / counts[x] / top);
      for (let part = 0; part < 3; part += 1) image.data[4 * x + part] = cold[part] + (hot[part] - cold[part]) * share;
      image.data[4 * x + 3] = 255;
    }
    ctx.putImageData(image, 0, 0);
  }
}

const rgb = (text) => (text.match(/[\d.]+/g) ?? [0, 0, 0]).slice(0, 3).map(Number);

function said(gpu, kind, low, name, words) {
  const values = gpu[kind].filter((value, i) => value !== null && gpu.times[i] >= low);
  if (!values.length) return `no ${name.toLowerCase()} was read`;
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return `${name.toLowerCase()} ${words(values.at(-1))} at last, mean ${words(mean)}, from ${words(values.reduce((a, b) => Math.min(a, b)))} to ${words(values.reduce((a, b) => Math.max(a, b)))}`;
}
