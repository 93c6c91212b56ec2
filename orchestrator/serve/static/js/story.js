// What is on record of a run: proofs with the log around them, the timeline, the playbook, the environment.

import { el, now, raw, ROOT } from "./page.js";
import { act, clock, duration, level, nextAct, whole } from "./words.js";
import { lineNode, split } from "./lines.js";

const AROUND = 6 << 10; // bytes on each side of a proof
const FIRST_ENTRIES = 60;
const BAD = new Set(["dead", "hung"]);

const faint = (text) => el("p", { class: "faint", text });

// -- proofs

/** The diagnoses that tell of something wrong, newest first; the newest is open. */
export function drawProofs(box, detail) {
  const newestAttempt = detail.attempts.at(-1)?.n ?? 0;
  const wrong = detail.diagnoses.filter((each) => BAD.has(each.state) || each.warnings.length).toReversed();
  if (!wrong.length) {
    box.replaceChildren(faint("No death and no warning is on record."));
    return;
  }
  const [newest, ...older] = wrong;
  const parts = [diagnosisNode(newest, detail.id, true)];
  if (older.length) {
    const fold = el("details", {}, el("summary", { text: `${older.length} earlier` }));
    fold.addEventListener("toggle", () => fold.open && fold.childElementCount === 1 && fold.append(...older.map((each) => diagnosisNode(each, detail.id, false))), { once: true });
    parts.push(fold);
  }
  const isOld = newest.attempt < newestAttempt;
  if (isOld) box.replaceChildren(ofThePast(newest, parts));
  else box.replaceChildren(...parts);
}

/** What an attempt before the newest died of is folded: it is not how the run is now. */
function ofThePast(newest, parts) {
  const title = newest.failure_title ?? newest.failure ?? newest.state;
  return el("details", { class: "past" }, el("summary", { text: `Attempt ${newest.attempt}, before the newest: ${title}` }), ...parts);
}

function diagnosisNode(diagnosis, run, isFirst) {
  const tone = BAD.has(diagnosis.state) ? "bad" : "warn";
  const title = diagnosis.failure_title ?? diagnosis.failure ?? diagnosis.state;
  const sure = diagnosis.confidence < 1 ? ` · ${Math.round(diagnosis.confidence * 100)} % sure` : "";
  const made = el("div", {}, el("h3", { class: tone, text: `Attempt ${diagnosis.attempt}: ${title}` }), el("p", { text: diagnosis.summary }), el("p", { class: "faint", text: `${clock(diagnosis.at, now())}${sure}${diagnosis.fingerprint ? ` · fingerprint ${diagnosis.fingerprint}` : ""}` }));
  const groups = [
    ["", diagnosis.evidence],
    ["What followed from it, and is not the cause", diagnosis.cascades],
    ["Warnings before it", diagnosis.warnings],
  ];
  let isOpen = isFirst;
  for (const [words, proofs] of groups) {
    const unique = [...new Map(proofs.map((proof) => [`${proof.source}/${proof.offset}/${proof.text}`, proof])).values()];
    if (!unique.length) continue;
    const nodes = unique.map((proof) => {
      const node = proofNode(proof, run, diagnosis.attempt, isOpen && proof.offset !== null);
      if (proof.offset !== null) isOpen = false;
      return node;
    });
    if (words) made.append(el("details", {}, el("summary", { text: `${words} (${unique.length})` }), ...nodes));
    else made.append(...nodes);
  }
  return made;
}

function proofNode(proof, run, attempt, isOpen) {
  const where = [proof.source, proof.rank === null ? "" : `rank ${proof.rank}`, proof.offset === null ? "" : `byte ${whole(proof.offset)}`, proof.role];
  const head = el("header", {}, el("span", { text: where.filter(Boolean).join(" · ") }));
  const node = el("div", { class: "proof" }, head, el("div", { class: "said", text: proof.text }));
  if (proof.offset === null || proof.source !== "log") return node;
  head.append(el("a", { href: `${ROOT}/runs/${run}/log?attempt=${attempt}&at=${proof.offset}`, text: "in the log" }));
  const around = el("div", { class: "around", tabindex: "0", role: "region", "aria-label": `The log of attempt ${attempt} around byte ${proof.offset}` });
  if (isOpen) {
    node.append(around);
    fillAround(around, proof, run, attempt);
  } else {
    const button = el("button", { type: "button", class: "quiet", text: "show the log around it" });
    button.addEventListener("click", () => {
      button.replaceWith();
      node.append(around);
      fillAround(around, proof, run, attempt).then(() => around.focus());
    });
    head.append(button);
  }
  return node;
}

async function fillAround(box, proof, run, attempt) {
  box.textContent = "Reading the log…";
  const start = Math.max(0, proof.offset - AROUND);
  let bytes;
  try {
    const answer = await raw(`/api/v1/runs/${run}/log?attempt=${attempt}&start=${start}&length=${proof.offset - start + AROUND}`);
    bytes = new Uint8Array(await answer.arrayBuffer());
  } catch (error) {
    box.replaceChildren(el("span", { class: "l warn", text: `The log cannot be read now: ${error.message}` }));
    return;
  }
  const lines = split(bytes, start);
  if (start > 0 && lines.length > 1) lines.shift(); // begins inside of a line
  let hit = null;
  box.replaceChildren(
    ...lines.map((line) => {
      const node = lineNode(line);
      if (line.start <= proof.offset && proof.offset < line.end) hit = node;
      return node;
    }),
  );
  if (!hit) return;
  hit.classList.add("hit");
  hit.prepend(el("span", { class: "unseen", text: "The evidence: " }));
  box.scrollTop = hit.offsetTop - box.offsetTop - box.clientHeight / 2;
}

// -- the timeline

export function drawStory(box, detail) {
  const entries = detail.timeline.filter((entry) => !isRepeated(entry, detail.timeline)).toReversed();
  if (!entries.length) {
    box.replaceChildren(faint("Nothing is on record yet."));
    return;
  }
  const isAll = box.dataset.all === "1";
  const list = el("ol", { class: "story", "aria-label": "What happened, newest first" });
  for (const entry of isAll ? entries : entries.slice(0, FIRST_ENTRIES)) {
    list.append(el("li", { data: { level: level(entry.level) } }, el("time", { class: "when", datetime: entry.at, text: clock(entry.at, now()) }), el("b", { text: entry.kind }), ` attempt ${entry.attempt}: `, el("span", { text: entry.text })));
  }
  const parts = [faint("Newest first."), list];
  if (!isAll && entries.length > FIRST_ENTRIES) {
    const more = el("button", { type: "button", text: `Show all ${entries.length}` });
    more.addEventListener("click", () => {
      box.dataset.all = "1";
      drawStory(box, detail);
    });
    parts.push(more);
  }
  box.replaceChildren(...parts);
}

/** A change of state that a diagnosis of the same moment tells in full. */
function isRepeated(entry, all) {
  const at = Date.parse(entry.at);
  return entry.kind === "transition" && all.some((each) => each.kind === "diagnosis" && each.attempt === entry.attempt && Math.abs(Date.parse(each.at) - at) < 1_000);
}

// -- tables

function table(caption, heads, rows, isTitled = false) {
  const long = (text) => (text.length > 28 ? "long" : null);
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": `${caption}, a table` },
    el("table", {}, el("caption", { class: isTitled ? "unseen" : null, text: caption }), el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col", text })))), el("tbody", {}, ...rows.map(([first, ...rest]) => el("tr", {}, el("th", { scope: "row", class: long(first), text: first }), ...rest.map((text) => el("td", { class: long(text), text })))))),
  );
}

export function drawAttempts(box, detail) {
  const rows = detail.attempts.toReversed().map((each) => {
    const steps = each.last_step === null ? "" : each.first_step === null ? `up to ${whole(each.last_step)}` : `${whole(each.first_step)} to ${whole(each.last_step)}`;
    const how = each.exit_signal !== null ? `signal ${each.exit_signal}` : each.exit_code !== null ? `exit code ${each.exit_code}` : "";
    const end = each.ended_at ? [each.failure_title ?? each.failure, how].filter(Boolean).join(", ") : "running";
    const lasted = each.started_at && each.ended_at ? duration((Date.parse(each.ended_at) - Date.parse(each.started_at)) / 1000) : "";
    return [String(each.n), end, steps, lasted, each.started_at ? clock(each.started_at, now()) : "", each.by ?? "", each.changes.map(({ key, value }) => `${key}=${value}`).join(", ")];
  });
  const heads = ["Attempt", "End", "Steps", "Lasted", "Began", "By", "Changed"];
  const used = heads.map((_, n) => n).filter((n) => rows.some((row) => row[n]));
  if (rows.length) box.replaceChildren(table("Attempts", used.map((n) => heads[n]), rows.map((row) => used.map((n) => row[n])), true));
  else box.replaceChildren(faint("No attempt is on record."));
}

export function drawEnvironment(box, detail) {
  const env = detail.environment;
  if (!env) {
    box.replaceChildren(faint("There are no two attempts to compare yet."));
    return;
  }
  const parts = env.notes.map((note) => el("p", { class: "note warn", text: note }));
  if (env.changes.length) {
    const rows = env.changes.map(({ group, key, old, new: fresh }) => [key, group, old ?? "(none)", fresh ?? "(none)"]);
    parts.push(table(`Attempt ${env.old} and attempt ${env.new}`, ["What", "Of", `Attempt ${env.old}`, `Attempt ${env.new}`], rows));
    if (env.num_more) parts.push(faint(`and ${env.num_more} more: dflashctl diff`));
  } else parts.push(faint(`Attempt ${env.old} and attempt ${env.new}: no difference.`));
  box.replaceChildren(...parts);
}

/** The playbook's state. Returns a call that brings the countdown up to date. */
export function drawPlan(box, detail) {
  const plan = detail.playbook;
  const facts = el("dl", { class: "facts" });
  const fact = (key, value) => value !== null && value !== "" && facts.append(el("div", {}, el("dt", { text: key }), el("dd", { text: value })));
  const parts = [];
  if (plan.problem) parts.push(el("p", { class: "note", text: plan.problem }));
  const next = plan.decision && plan.decision.kind !== "none" ? plan.decision : null;
  const head = el("p", {});
  const words = () => (next ? `Next: ${nextAct({ ...next, kind: next.kind }, dueS(next.act_at), detail.is_acting)}.` : "Next: nothing; the run needs no act.");
  if (plan.decision) {
    head.textContent = words();
    parts.push(head, el("p", { class: "faint", text: plan.decision.reason }));
  }
  fact("playbook", plan.source);
  fact("rule", plan.rule);
  if (next) {
    fact("act", act(next.kind));
    fact("left after it", next.attempts_left === null ? "" : String(next.attempts_left));
    fact("when", next.act_at ? clock(next.act_at, now()) : "");
    fact("changes", next.changes.map(({ key, value }) => `${key}=${value}`).join(", "));
  }
  if (plan.ceiling) fact("attempts in 24 h", `${plan.ceiling.attempts} of ${plan.ceiling.allowed}`);
  if (plan.crash_loop) fact(`deaths in ${duration(plan.crash_loop.within_s)} without progress`, `${Math.max(0, plan.crash_loop.deaths)} of ${plan.crash_loop.allowed}`);
  if (facts.childElementCount) parts.push(facts);
  if (plan.budgets.length) parts.push(table("Relaunches spent since a checkpoint last advanced", ["Cause", "Spent", "Allowed", "Left"], plan.budgets.map(({ cause, spent, allowed }) => [cause, String(spent), String(allowed), String(Math.max(0, allowed - spent))])));
  if (plan.ladder.length) parts.push(table("The rule's ladder", ["Rung", "State", "Why"], plan.ladder.map(({ rung, state, why }) => [String(rung), state, why])));
  if (plan.gates.length) parts.push(table("What keeps a relaunch back now", ["Gate", "Why"], plan.gates.map(({ gate, why }) => [gate, why])));
  box.replaceChildren(...parts);
  return () => plan.decision && head.textContent !== words() && (head.textContent = words());
}

const dueS = (at) => (at ? (Date.parse(at) - now()) / 1000 : null);
