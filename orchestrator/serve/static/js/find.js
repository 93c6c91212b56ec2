// Search in a log, chunk by chunk, in either direction, until found, cancelled or at the end.

import { fetchRange } from "./chunks.js";

const STEP = 512 << 10;
const encoder = new TextEncoder();
const decoder = new TextDecoder();

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** The offset of the next match after (or before) byte `at`; null if there is none. `progress(byte)` is called on the way. */
export async function find(run, attempt, text, at, isForward, signal, progress) {
  const overlap = encoder.encode(text).length * 4;
  let pos = at;
  for (;;) {
    if (!isForward && pos <= 0) return null;
    const from = isForward ? pos : Math.max(0, pos - STEP);
    const got = await fetchRange(run, attempt, from, isForward ? STEP : pos - from + (pos < at ? overlap : 0), signal);
    const found = matchIn(got.bytes, text, isForward);
    if (found !== null) return got.start + found;
    if (isForward) {
      if (got.start + got.bytes.length >= got.size) return null;
      pos = Math.max(pos + 1, from + got.bytes.length - overlap);
    } else pos = from;
    progress(pos, got.size);
  }
}

/** The byte at which a match begins, the first or the last of the bytes. */
function matchIn(bytes, text, isFirst) {
  const words = decoder.decode(bytes);
  const matches = words.matchAll(new RegExp(escaped(text), "giu"));
  let at = null;
  for (const match of matches) {
    at = match.index;
    if (isFirst) break;
  }
  if (at === null) return null;
  // Bytes that are no UTF-8 became one character of three bytes each, so the place is found in the bytes themselves.
  const near = encoder.encode(words.slice(0, at)).length;
  if (!words.includes("\ufffd")) return near;
  const needle = encoder.encode(words.slice(at, at + text.length));
  let best = null;
  for (let from = bytes.indexOf(needle[0]); from >= 0; from = bytes.indexOf(needle[0], from + 1)) {
    if (needle.every((byte, i) => bytes[from + i] === byte)) {
      best = from;
      if (isFirst) break;
    }
  }
  return best ?? Math.min(near, bytes.length - 1);
}
