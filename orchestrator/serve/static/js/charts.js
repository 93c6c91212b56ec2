// Loss and speed by steps, one colour an attempt, each death a line with its name. Needs uPlot, which is there as a global.

import { atMost, colour, el, getJson, onTheme, put } from "./page.js";
import { loss, rate, whole } from "./words.js";

const MAX_POINTS = 8_000; // of all attempts together
const HEIGHT = 240;
const REFETCH_MS = 4_000;
const NUM_COLOURS = 8;
const colourOf = (place) => `--c${place % NUM_COLOURS}`;

/** Join the attempts' steps into one axis; what an attempt has no number for is a gap. */
function joined(series, field) {
  const share = Math.max(200, Math.floor(MAX_POINTS / Math.max(1, series.length)));
  const kept = series.map((each) => {
    const every = Math.ceil(each.steps.length / share);
    return each.steps.map((_, i) => i).filter((i) => i % every === 0 || i === each.steps.length - 1);
  });
  const steps = [...new Set(series.flatMap((each, n) => kept[n].map((i) => each.steps[i])))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, at) => [step, at]));
  const columns = series.map((each, n) => {
    const column = new Array(steps.length).fill(undefined);
    for (const i of kept[n]) column[place.get(each.steps[i])] = each[field][i];
    return column;
  });
  return [steps, ...columns];
}

export class Charts {
  constructor(box, run) {
    this.box = box;
    this.run = run;
    this.path = `/api/v1/runs/${run}/curves`;
    this.plots = [];
    this.isLog = false;
    this.showsAll = false; // losses far off the rest as well
    this.range = null; // [low, high] steps chosen by hand
    this.shape = "";
    this.fetchSoon = atMost(REFETCH_MS, () => this.fetch());
    onTheme(() => this.data && this.#build());
    new ResizeObserver(atMost(150, () => this.#resize())).observe(box);
  }

  async fetch() {
    try {
      this.data = await getJson(this.path);
    } catch (error) {
      if (!this.data) this.box.replaceChildren(el("p", { class: "note warn", text: `The curves are not there: ${error.message}` }));
      return;
    }
    const { series, deaths } = this.data;
    if (!series.length) {
      this.box.replaceChildren(el("p", { class: "faint", text: "No step has been logged yet." }));
      this.shape = "";
      return;
    }
    const shape = JSON.stringify([series.map((each) => each.attempt), deaths.map((each) => each.attempt)]);
    if (shape === this.shape) this.#update();
    else this.#build();
    this.shape = shape;
  }

  #build() {
    for (const { plot } of this.plots) plot.destroy();
    this.plots = [];
    const { series } = this.data;
    this.readout = el("p", { class: "readout", "aria-hidden": "true" });
    const log = el("button", { type: "button", "aria-pressed": String(this.isLog), text: "Log scale", on: { click: () => this.#turnLog() } });
    const whole_ = el("button", { type: "button", text: "All steps", on: { click: () => this.#zoom(null) } });
    const newest = el("button", { type: "button", text: "Newest attempt", on: { click: () => this.#zoomNewest() } });
    const key = el("ul", { class: "key", "aria-label": "Colours of the attempts" }, ...series.slice(-12).map((each) => this.#keyItem(each)));
    if (series.length > 12) key.prepend(el("li", { class: "faint", text: `${series.length - 12} earlier,` }));
    const boxes = [
      ["loss", "Training loss (nats a token)", loss],
      ["tokens_per_s", "Speed (tokens/s)", rate],
    ].filter(([field]) => series.some((each) => each[field].some((value) => value !== null)));
    this.table = el("tbody");
    this.all = el("button", { type: "button", "aria-pressed": String(this.showsAll), text: "All losses", on: { click: () => this.#turnAll() } });
    this.note = el("p", { class: "faint" });
    const hint = el("span", { class: "faint", text: "Drag over a chart to zoom, double-click for all." });
    this.box.replaceChildren(el("div", { class: "tools-row" }, whole_, newest, log, this.all, hint), key, this.note, this.readout);
    this.#drawNote();
    const sync = uPlot.sync(`run-${this.run}`);
    for (const [field, title, words] of boxes) {
      const place = el("div", { role: "img", "aria-label": `${title} by steps, a line an attempt. The table below has the newest values.` });
      this.box.append(el("div", { class: "chart" }, el("h3", { text: title }), place));
      this.plots.push({ field, plot: new uPlot(this.#options(field, words, place, sync), joined(series, field), place) });
    }
    const heads = ["Attempt", "Steps", "Newest loss", "Lowest loss", "Newest tok/s", "End"];
    this.box.append(
      el("details", {}, el("summary", { text: "The newest values as a table" }), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Newest values" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col", text })))), this.table))),
    );
    this.#fillTable();
    if (this.range) this.#zoom(this.range);
  }

  #keyItem(each) {
    const mark = el("i");
    mark.style.background = `var(${colourOf(this.data.series.indexOf(each))})`;
    return el("li", {}, mark, `attempt ${each.attempt}`);
  }

  #options(field, words, place, sync) {
    const ink = colour("--muted");
    const grid = { stroke: colour("--line"), width: 1 };
    const { series } = this.data;
    return {
      width: place.clientWidth || 600,
      height: HEIGHT,
      cursor: { sync: { key: sync.key, setSeries: false }, drag: { x: true, y: false, dist: 5 }, points: { show: false } },
      legend: { show: false },
      scales: { x: { time: false }, y: field === "loss" && this.isLog ? { distr: 3 } : { range: (_, low, high) => this.#limits(field, low, high) } },
      axes: [
        { stroke: ink, grid, ticks: grid, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? whole(tick) : "")) },
        { stroke: ink, grid, ticks: grid, size: 56, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : field === "loss" ? String(+tick.toPrecision(4)) : words(tick))) },
      ],
      series: [{}, ...series.map((each, n) => ({ label: `attempt ${each.attempt}`, stroke: colour(colourOf(n)), width: 1.6, dash: n >= NUM_COLOURS ? [6, 3] : undefined, spanGaps: true, points: { show: each.steps.length < 3 } }))],
      hooks: {
        draw: [(plot) => this.#drawDeaths(plot)],
        setCursor: [(plot) => this.#read(plot, field)],
        setSelect: [(plot) => plot.select.width > 0 && this.#chosen(plot)],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => this.#zoom(null))],
      },
    };
  }

  /** A spike or the first steps must not flatten the rest: the server tells the limits, and what is beyond them. */
  #limits(field, low, high) {
    if (low === null || high === null) return [0, 1];
    if (field !== "loss") return [0, high * 1.05 || 1];
    const limits = this.showsAll ? null : this.data.loss_limits;
    let [bottom, top] = limits ? [Math.max(low, limits.low), Math.min(high, limits.high)] : [low, high];
    if (bottom > top) [bottom, top] = [low, high]; // nothing but what is far off is looked at
    const room = (top - bottom || Math.abs(top) || 1) * 0.06;
    return [bottom - room, top + room];
  }

  #drawNote() {
    const note = this.data.loss_limits?.note ?? "";
    this.all.hidden = !note || this.isLog;
    this.note.hidden = !note || this.isLog || this.showsAll;
    put(this.note, note);
  }

  #turnAll() {
    this.showsAll = !this.showsAll;
    this.#build();
    this.all.focus();
  }

  #drawDeaths(plot) {
    const { ctx } = plot;
    const { left, top, width, height } = plot.bbox;
    const ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    ctx.strokeStyle = ctx.fillStyle = colour("--bad");
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    ctx.lineWidth = ratio;
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    const paper = colour("--bg");
    const taken = []; // [row, right edge]
    for (const death of this.data.deaths) {
      const x = Math.round(plot.valToPos(death.step, "x", true));
      if (x < left - 1 || x > left + width + 1) continue;
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      const text = `✕ ${death.label} (${death.attempt})`;
      const wide = ctx.measureText(text).width + 6 * ratio;
      const begin = x + wide > left + width ? x - wide : x;
      let row = 0;
      while (row < 6 && taken.some(([r, from, to]) => r === row && begin < to && begin + wide > from)) row += 1;
      if (row === 6) continue;
      taken.push([row, begin, begin + wide]);
      const y = top + (2 + row * 14) * ratio;
      ctx.globalAlpha = 0.85;
      ctx.fillStyle = paper;
      ctx.fillRect(begin + 1, y - ratio, wide - 2, 13 * ratio);
      ctx.globalAlpha = 1;
      ctx.fillStyle = ctx.strokeStyle;
      ctx.fillText(text, begin + 3 * ratio, y);
    }
    ctx.restore();
  }

  #read(plot, field) {
    if (plot.cursor.left < 0 || plot !== this.plots.find((each) => each.field === field)?.plot || this.plots[0].field !== field) {
      if (plot.cursor.left < 0) put(this.readout, "");
      return;
    }
    const step = Math.round(plot.posToVal(plot.cursor.left, "x"));
    const parts = this.data.series.map((each) => nearest(each, step)).filter(Boolean);
    const shown = parts.slice(-4).map(({ attempt, at, loss: value, speed }) => `attempt ${attempt}: step ${whole(at)}, loss ${loss(value)}, ${rate(speed)} tok/s`);
    put(this.readout, shown.join(" · "));
  }

  #chosen(plot) {
    const low = plot.posToVal(plot.select.left, "x");
    this.range = [low, plot.posToVal(plot.select.left + plot.select.width, "x")];
  }

  #zoom(range) {
    this.range = range;
    const steps = this.data.series.flatMap((each) => [each.steps[0], each.steps.at(-1)]);
    const [low, high] = range ?? [Math.min(...steps), Math.max(...steps)];
    for (const { plot } of this.plots) plot.setScale("x", { min: low, max: high > low ? high : low + 1 });
  }

  #zoomNewest() {
    const { steps } = this.data.series.at(-1);
    this.#zoom([steps[0], steps.at(-1)]);
  }

  #turnLog() {
    this.isLog = !this.isLog;
    this.#build();
    [...this.box.querySelectorAll("button")].find((button) => button.textContent === "Log scale").focus();
  }

  #update() {
    for (const { field, plot } of this.plots) {
      plot.setData(joined(this.data.series, field), this.range === null);
      if (this.range) plot.redraw();
    }
    this.#drawNote();
    this.#fillTable();
  }

  #fillTable() {
    const ends = new Map(this.data.deaths.map((each) => [each.attempt, each.label]));
    const rows = this.data.series.toReversed().map((each) => {
      const losses = each.loss.filter((value) => value !== null);
      const lowest = losses.reduce((least, value) => Math.min(least, value), Infinity);
      const cells = [`${whole(each.steps[0])} to ${whole(each.steps.at(-1))}`, loss(losses.at(-1)), losses.length ? loss(lowest) : "", rate(each.tokens_per_s.findLast((value) => value !== null)), ends.get(each.attempt) ?? ""];
      return el("tr", {}, el("th", { scope: "row", text: String(each.attempt) }), ...cells.map((text) => el("td", { text })));
    });
    this.table.replaceChildren(...rows);
  }

  #resize() {
    for (const { plot } of this.plots) {
      const width = plot.root.parentElement.clientWidth;
      if (width && width !== plot.width) plot.setSize({ width, height: HEIGHT });
    }
  }
}

function nearest(each, step) {
  if (step < each.steps[0] || step > each.steps.at(-1)) return null;
  let low = 0;
  let high = each.steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (each.steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return { attempt: each.attempt, at: each.steps[low], loss: each.loss[low], speed: each.tokens_per_s[low] };
}
