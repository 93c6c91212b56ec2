// The page of one run.

import { $, atMost, el, getJson, learnNow, loginHref, mayAct, now, post, put, say, since } from "./page.js";
import { showHealth, Stream } from "./stream.js";
import { clock, duration, loss, nextAct, rate, remembered, stateOf, still, whole } from "./words.js";
import { Charts } from "./charts.js";
import { Heat } from "./heat.js";
import { drawAttempts, drawEnvironment, drawPlan, drawProofs, drawStory } from "./story.js";
import { Tail } from "./tail.js";

const page = $("run");
const ID = Number(page.dataset.run);
const NAME = page.dataset.name;
const PATH = `/api/v1/runs/${ID}`;
const ACT_KINDS = new Set(["act", "outcome"]);

let card = null;
let acting = true;
let staleS = 10;
let tickPlan = () => {};
let asked = false; // an act asked for here is under way

const charts = new Charts($("curves-body"), ID);
const heat = new Heat($("gpus-body"), ID);
new Tail($("tail-body"), ID);

// -- now

const big = el("p", { class: "big" });
const glyph = el("span", { class: "glyph", "aria-hidden": "true" });
const word = el("span");
const after = el("span");
big.append(el("span", { class: "state" }, glyph, word), after);
const summary = el("p");
const fill = el("i");
const bar = el("div", { class: "bar", role: "progressbar", "aria-label": "Steps done", "aria-valuemin": "0" }, fill);
const facts = el("dl", { class: "facts" });
const values = new Map();
for (const key of ["step", "loss", "tok/s", "a step takes", "ETA", "phase", "attempt", "attempt began", "checkpoint", "target", "seen", "next", "watch", "container clock", "held by"]) {
  const dd = el("dd");
  const row = el("div", {}, el("dt", { text: key }), dd);
  values.set(key, [row, dd]);
  facts.append(row);
}
const old = el("p", { class: "blind" });
const stuck = el("p", { class: "warn" });
const remark = el("p", { class: "warn" });

function fact(key, text) {
  const [row, dd] = values.get(key);
  row.hidden = !text;
  put(dd, text ?? "");
}

function drawNow() {
  const state = stateOf(card);
  big.dataset.level = state.level;
  put(glyph, state.glyph);
  put(word, state.word);
  put(after, card.failure_title && ["bad", "warn"].includes(state.level) ? `: ${card.failure_title}` : card.is_busy ? ": acting now" : "");
  put(summary, card.blind ?? (card.summary === word.textContent ? "" : card.summary));
  const share = card.step !== null && card.total_steps ? Math.min(1, card.step / card.total_steps) : null;
  bar.hidden = share === null;
  if (share !== null) {
    fill.style.transform = `scaleX(${share})`;
    bar.setAttribute("aria-valuemax", card.total_steps);
    bar.setAttribute("aria-valuenow", card.step);
  }
  fact("step", card.step === null ? "" : `${whole(card.step)}${card.total_steps ? ` of ${whole(card.total_steps)} (${((100 * card.step) / card.total_steps).toFixed(1)} %)` : ""}`);
  fact("loss", loss(card.loss));
  fact("tok/s", rate(card.tokens_per_s));
  fact("a step takes", card.step_s === null ? "" : card.step_s < 10 ? `${card.step_s.toFixed(2)} s` : duration(card.step_s));
  fact("phase", card.phase);
  fact("attempt", card.attempt === null ? "" : String(card.attempt));
  fact("checkpoint", card.checkpoint_step === null ? "" : `step ${whole(card.checkpoint_step)}`);
  fact("target", card.target);
  fact("held by", card.holders);
  fact("watch", acting ? "" : "only looks: it neither stops nor relaunches");
  const skew = card.clock_skew_s ?? 0;
  fact("container clock", Math.abs(skew) > 2 ? `${duration(Math.abs(skew))} ${skew > 0 ? "ahead" : "behind"}; times here are by the server's` : "");
  put(remark, card.remark);
  remark.hidden = !card.remark;
  const bad = state.level === "bad" || state.level === "blind" ? `${state.word}: ` : "";
  document.title = `${bad}${NAME} · dflashctl`;
  heat.now(card);
  drawTimes();
  drawActs();
}

function drawTimes() {
  if (!card) return;
  const age = since(card.looked_at);
  fact("seen", age === null ? (card.has_ended ? "" : card.known_at ? `not by this watch; known ${duration(since(card.known_at))} ago` : "never") : age < 8 ? "now" : `${duration(age)} ago`);
  values.get("seen")[1].className = !card.has_ended && age !== null && age > staleS ? "warn" : "";
  put(old, card.blind ? (age === null ? remembered(card, now()) || "It was never seen." : `What is shown here is of the last look, ${duration(age)} ago.`) : "");
  put(stuck, still(card, since(card.moved_at)));
  fact("ETA", card.blind ? "" : duration(card.eta_s));
  fact("attempt began", card.started_at ? `${clock(card.started_at, now())} (${duration(since(card.started_at))} ago)` : "");
  const due = card.next_act?.due_at ? (Date.parse(card.next_act.due_at) - now()) / 1000 : null;
  fact("next", card.is_busy ? "acting now" : nextAct(card.next_act, due, acting && card.is_acting));
  tickPlan();
}

function take(fresh) {
  const before = card;
  card = fresh;
  if (!$("now-body").contains(big)) $("now-body").replaceChildren(big, summary, old, stuck, bar, facts, remark);
  drawNow();
  if (!before) return;
  const [was, is] = [stateOf(before), stateOf(card)];
  if (was.name !== is.name) say(`${NAME} is ${is.word}${card.failure_title && is.level === "bad" ? `: ${card.failure_title}` : ""}`);
  if (before.step !== card.step || before.attempt !== card.attempt) charts.fetchSoon();
  if (before.state !== card.state || before.attempt !== card.attempt || before.next_act?.kind !== card.next_act?.kind || before.is_busy !== card.is_busy) detailSoon();
  heat.fetchSoon();
}

// -- on record

async function fetchDetail() {
  let detail;
  try {
    detail = await getJson(PATH);
  } catch (error) {
    if (error.status === 404) gone();
    else if (!card) $("now-body").replaceChildren(el("p", { class: "note bad", text: `Not there: ${error.message}` }));
    return;
  }
  learnNow(detail.at);
  if (!card) take(detail);
  // A part that says the same is left alone: what is open in it and selected stays so.
  draw("why-body", [detail.diagnoses, detail.attempts.at(-1)?.n], (box) => drawProofs(box, detail));
  draw("attempts-body", detail.attempts, (box) => drawAttempts(box, detail));
  draw("story-body", detail.timeline, (box) => drawStory(box, detail));
  draw("differs-body", detail.environment, (box) => drawEnvironment(box, detail));
  draw("plan-body", detail.playbook, (box) => (tickPlan = drawPlan(box, detail)));
}

const drawn = new Map();
function draw(id, about, work) {
  const key = JSON.stringify(about);
  if (drawn.get(id) === key) return;
  drawn.set(id, key);
  work($(id));
}

const detailSoon = atMost(1_500, fetchDetail);

function gone() {
  $("outcome").hidden = false;
  put($("outcome"), "This run was removed from the record.");
}

// -- stop and relaunch

function newestCheckpoint() {
  if (card?.checkpoint_step) return ` Its newest checkpoint is of step ${whole(card.checkpoint_step)}.`;
  return card?.kind === "command" ? "" : " It has no checkpoint yet.";
}

function from() {
  if (card?.checkpoint_step) return `, from the checkpoint of step ${whole(card.checkpoint_step)}`;
  return card?.kind === "command" ? ": its command is started again; it resumes by itself if it keeps checkpoints" : ", from the beginning: there is no checkpoint";
}

const ASK = {
  stop: {
    title: () => `Stop ${NAME}?`,
    text: () => `Its trainer is asked to end, and ended after a grace if it does not. The run stays stopped: nothing relaunches it by itself.${newestCheckpoint()}`,
    yes: "Stop it",
  },
  relaunch: {
    title: () => `Relaunch ${NAME}?`,
    text: () => `What lives of attempt ${card?.attempt ?? "?"} is stopped, then attempt ${(card?.attempt ?? 0) + 1} starts, unchanged${from()}.`,
    yes: "Relaunch it",
  },
};

function drawActs() {
  const state = card.state;
  $("stop").hidden = !mayAct || !acting || ["stopped", "finished", "new"].includes(state);
  $("relaunch").hidden = !mayAct || !acting;
  $("stop").disabled = $("relaunch").disabled = asked;
  $("login").hidden = mayAct || !acting;
}

function ask(kind) {
  const words = ASK[kind];
  put($("ask-title"), words.title());
  put($("ask-text"), words.text());
  put($("ask-yes"), words.yes);
  const dialog = $("ask");
  dialog.returnValue = "no";
  dialog.showModal();
  $("ask-no").focus();
  dialog.onclose = () => dialog.returnValue === "yes" && perform(kind);
}

async function perform(kind) {
  asked = true;
  drawActs();
  outcome("", "Asked for…");
  try {
    outcome("", (await post(`${PATH}/${kind}`)).text);
  } catch (error) {
    asked = false;
    outcome("bad", `Not done: ${error.message}`);
    drawActs();
  }
}

function outcome(kind, text) {
  const box = $("outcome");
  box.hidden = false;
  box.className = `note ${kind}`;
  put(box, text);
}

$("login").href = loginHref();
$("stop").addEventListener("click", () => ask("stop"));
$("relaunch").addEventListener("click", () => ask("relaunch"));

// -- the stream

function takeTold(told) {
  if (told.run_id !== ID) return;
  detailSoon();
  if (!asked || !ACT_KINDS.has(told.kind)) return;
  outcome(told.level === "bad" ? "bad" : told.level === "good" ? "good" : "", told.text);
  if (told.kind === "outcome") {
    asked = false;
    drawActs();
  }
}

function takeRuns(body) {
  const mine = body.runs.find((each) => each.id === ID);
  if (mine) take(mine);
  if (body.removed?.includes(ID)) gone();
  const why = body.health.why.filter((each) => !each.includes(" is not seen: ") || each.startsWith(`${NAME} at `));
  showHealth(why);
}

new Stream("/api/v1/stream", {
  fleet: (fleet) => {
    acting = fleet.acting;
    staleS = fleet.stale_after_s;
    takeRuns(fleet);
    detailSoon();
    charts.fetchSoon();
  },
  runs: takeRuns,
  told: takeTold,
});
fetchDetail();
charts.fetchSoon();
heat.fetchSoon();
setInterval(() => !document.hidden && drawTimes(), 1_000);
