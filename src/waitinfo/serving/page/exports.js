// A session as text, subtitles, or lines of JSON that can be replayed.

import { cues } from "./lines.js";

const two = (n, width = 2) => String(n).padStart(width, "0");

export function timestamp(seconds, comma) {
  const ms = Math.round(1000 * seconds);
  const [h, m, s] = [Math.floor(ms / 3600000), Math.floor(ms / 60000) % 60, Math.floor(ms / 1000) % 60];
  return `${two(h)}:${two(m)}:${two(s)}${comma ? "," : "."}${two(ms % 1000, 3)}`;
}

// What was said, sentence by sentence.
function sentences(words) {
  const found = [];
  for (const { text, sentence, time } of words) {
    const last = found.at(-1);
    if (last?.sentence === sentence && time >= last.end) Object.assign(last, { text: last.text + text, end: time });
    else found.push({ sentence, text: text.trimStart(), start: time, end: time });
  }
  return found;
}

export function srt(words) {
  return cues(sentences(words)).map(({ start, end, lines }, n) =>
    `${n + 1}\n${timestamp(start, true)} --> ${timestamp(end, true)}\n${lines.join("\n")}\n\n`).join("");
}

export function vtt(words) {
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const all = cues(sentences(words)).map(({ start, end, lines }) =>
    `${timestamp(start)} --> ${timestamp(end)}\n${escaped(lines.join("\n"))}\n\n`);
  return `WEBVTT\n\n${all.join("")}`;
}

export const jsonl = (records) => records.map((record) => JSON.stringify(record)).join("\n") + "\n";

export function parse(text) {
  const records = text.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line));
  if (!records.length || !records.every((r) => typeof r.at === "number" && r.type)) throw new Error();
  return records;
}

export function save(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
