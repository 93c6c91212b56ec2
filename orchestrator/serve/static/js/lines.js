// A log's bytes as lines: whatever they are, what is drawn is harmless text.

import { el } from "./page.js";

const CUT = 2_000; // characters of a line that are shown at once
const MAX_WHOLE = 200_000;
const decoder = new TextDecoder();
const ESCAPE = /\x1b(?:\[([0-9;:]*)m|\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~]?)/g;
// Control characters, and those that turn the direction of what follows: shown, not obeyed.
const HIDDEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** Split at line feeds: [{start, end, bytes}], by offsets in the file; the last may have no line feed. */
export function split(bytes, base) {
  const lines = [];
  let begin = 0;
  while (begin < bytes.length) {
    const at = bytes.indexOf(10, begin);
    const end = at < 0 ? bytes.length : at + 1;
    lines.push({ start: base + begin, end: base + end, bytes: bytes.subarray(begin, at < 0 ? end : at) });
    begin = end;
  }
  return lines;
}

/** Return the text of a line: of a bar that was drawn over and over by carriage returns, the last. */
export function textOf(bytes) {
  const parts = decoder.decode(bytes).split("\r");
  return parts.findLast((part) => part !== "") ?? "";
}

function shownControl(char) {
  const code = char.codePointAt(0);
  return code < 0x20 ? String.fromCodePoint(0x2400 + code) : code === 0x7f ? "␡" : `<${code.toString(16).toUpperCase().padStart(4, "0")}>`;
}

function addText(node, text, classes) {
  if (!text) return;
  let at = 0;
  const put = (part, names) => part && node.append(names ? el("span", { class: names, text: part }) : part);
  for (const match of text.matchAll(HIDDEN)) {
    put(text.slice(at, match.index), classes);
    put(shownControl(match[0]), "ctl");
    at = match.index + match[0].length;
  }
  put(text.slice(at), classes);
}

/** The classes after an SGR sequence; `style`: {bold, dim, italic, under, front}. */
function restyle(style, codes) {
  const list = (codes || "0").split(/[;:]/).map(Number);
  for (let i = 0; i < list.length; i += 1) {
    const code = list[i];
    if (code === 0) Object.assign(style, { b: 0, d: 0, i: 0, u: 0, f: "" });
    else if (code === 1) style.b = 1;
    else if (code === 2) style.d = 1;
    else if (code === 3) style.i = 1;
    else if (code === 4) style.u = 1;
    else if (code === 22) style.b = style.d = 0;
    else if (code === 23) style.i = 0;
    else if (code === 24) style.u = 0;
    else if (code === 39) style.f = "";
    else if (code === 38 || code === 48) i += list[i + 1] === 5 ? 2 : 4; // of 256 or of all colours: not drawn
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) style.f = `f${code % 10}`;
  }
}

function classesOf(style) {
  return ["b", "d", "i", "u"].filter((name) => style[name]).concat(style.f || []).join(" ");
}

/** Draw a line's text into a node, with its colours. */
export function drawText(node, text) {
  if (text.length < 4096 && !/[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e-\u202e\u2066-\u2069\ufeff]/.test(text)) {
    node.append(text);
    return;
  }
  const style = { b: 0, d: 0, i: 0, u: 0, f: "" };
  let at = 0;
  for (const match of text.matchAll(ESCAPE)) {
    addText(node, text.slice(at, match.index), classesOf(style));
    if (match[1] !== undefined) restyle(style, match[1]);
    at = match.index + match[0].length;
  }
  addText(node, text.slice(at), classesOf(style));
}

/** Make a node of a line {start, bytes}; a long one is cut, with a button that shows all of it. */
export function lineNode(line) {
  const node = el("span", { class: "l", data: { at: line.start } });
  const text = textOf(line.bytes);
  drawText(node, text.length > CUT ? text.slice(0, CUT) : text);
  if (text.length > CUT) {
    const more = el("button", { type: "button", class: "show", text: `show whole (${text.length.toLocaleString("en-US")} characters)` });
    more.addEventListener("click", () => {
      node.replaceChildren();
      drawText(node, text.slice(0, MAX_WHOLE));
      if (text.length > MAX_WHOLE) node.append(el("span", { class: "ctl", text: `… ${(text.length - MAX_WHOLE).toLocaleString("en-US")} more` }));
    });
    node.append("… ", more);
  }
  return node;
}
