// A log as chunks of whole lines around what is looked at, fetched by range; a bounded number is kept.

import { raw } from "./page.js";
import { split } from "./lines.js";

export const CHUNK = 128 << 10;
const MAX_FETCH = 1 << 20;

/** A range of the log: {bytes, start, size, source}. */
export async function fetchRange(run, attempt, start, length, signal) {
  const of = attempt ? `&attempt=${attempt}` : "";
  const answer = await raw(`/api/v1/runs/${run}/log?start=${start}&length=${Math.min(length, MAX_FETCH)}${of}`, { signal });
  const told = (name) => Number(answer.headers.get(name));
  return { bytes: new Uint8Array(await answer.arrayBuffer()), start: told("x-log-start"), size: told("x-log-size"), attempt: told("x-log-attempt"), source: answer.headers.get("x-log-source") };
}

/** Where a cut through UTF-8 at `end` has to be instead: before the character that it would break. */
function whole(bytes, end) {
  let at = end;
  while (at > 0 && end - at < 4 && (bytes[at] & 0xc0) === 0x80) at -= 1;
  return at > 0 ? at : end;
}

/** The lines that begin at `pos`, a line's start: {lines, end, size, rest}; `rest`: the line that has no end yet. */
export async function forward(run, attempt, pos, signal) {
  const got = await fetchRange(run, attempt, pos, CHUNK, signal);
  const last = got.bytes.lastIndexOf(10);
  const isAll = pos + got.bytes.length >= got.size;
  let cut = last + 1;
  if (last < 0 && !isAll) cut = whole(got.bytes, got.bytes.length - 1); // a line longer than a chunk: a piece of it
  const lines = split(got.bytes.subarray(0, cut), pos);
  const rest = isAll ? split(got.bytes.subarray(cut), pos + cut)[0] ?? null : null;
  return { lines, start: pos, end: pos + cut, size: got.size, source: got.source, attempt: got.attempt, rest };
}

/** The lines that end at `pos`, a line's start. */
export async function backward(run, attempt, pos, signal) {
  const from = Math.max(0, pos - CHUNK);
  const got = await fetchRange(run, attempt, from, pos - from, signal);
  const first = from === 0 ? -1 : got.bytes.indexOf(10);
  let cut = from === 0 || first === got.bytes.length - 1 ? 0 : first + 1; // the only line feed is the last: a long line
  if (cut === 0 && from > 0) while (cut < 3 && (got.bytes[cut] & 0xc0) === 0x80) cut += 1;
  return { lines: split(got.bytes.subarray(cut), from + cut), start: from + cut, end: pos, size: got.size, source: got.source, attempt: got.attempt };
}

/** The start of the line that byte `at` lies in, or of a piece of it where the line is very long. */
export async function lineStart(run, attempt, at, signal) {
  if (at <= 0) return 0;
  const from = Math.max(0, at - CHUNK);
  const got = await fetchRange(run, attempt, from, at - from, signal);
  const feed = got.bytes.lastIndexOf(10);
  if (feed >= 0) return got.start + feed + 1;
  return from === 0 ? 0 : at;
}
