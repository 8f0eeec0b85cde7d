// Captions for a stage: the last lines of a room, large; they stay during pauses and reconnects.

import { Lines } from "./lines.js";
import { Watched } from "./room.js";

const query = new URLSearchParams(location.search);
const name = query.get("room") ?? "stage";
const count = Math.min(6, Math.max(1, Number(query.get("lines")) || 2));
const box = document.getElementById("captions");
const aloud = document.getElementById("aloud");
const pen = document.createElement("canvas").getContext("2d");
let words = [];               // of the lines shown, to break them again when the window changes
let lines = new Lines(fits);
let hint = "";

// Whether a line has room, as it is drawn; a fraction of a letter less, for its ends.
function fits(text) {
  const style = getComputedStyle(box);
  pen.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  return pen.measureText(text).width < box.clientWidth - parseFloat(style.fontSize);
}

function line(text, className = "") {
  const paragraph = document.createElement("p");
  const span = document.createElement("span");
  span.textContent = text;
  paragraph.className = className;
  paragraph.append(span);
  return paragraph;
}

function show() {
  const shown = lines.lines.filter(Boolean).slice(-count);
  box.replaceChildren(...(shown.length ? shown.map((text) => line(text)) : hint ? [line(hint, "hint")] : []));
}

function add(found, fresh) {
  if (fresh) restart();
  for (const word of found) {
    if (words.length && words.at(-1).sentence !== word.sentence) speak();
    words.push(word);
    lines.add(word);
  }
  lines.lines = lines.lines.slice(-count);
  words = words.slice(-100);
  show();
}

function restart() {
  speak();
  words = [];
  lines.clear();
}

// To those who cannot see: sentences, not words.
function speak() {
  const last = words.at(-1)?.sentence;
  aloud.textContent = words.filter(({ sentence }) => sentence === last).map(({ text }) => text).join("").trim();
}

addEventListener("resize", () => {
  lines.clear();
  words.forEach((word) => lines.add(word));
  show();
});

new Watched({ room: name, ...(query.get("language") && { language: query.get("language") }) }, {
  words: add,
  room: ({ speaking, problem }) => {
    hint = problem ?? (speaking ? "" : `Nobody speaks in the room “${name}”. Open the speaker’s page ${location.origin}/, enter this name under Audience, and open the room.`);
    show();
  },
  state: (state, refused) => {
    if (state === "refused") { hint = `${refused.error}. Open the captions by the link on the speaker’s page.`; show(); }
  },
}, query.get("pin") ?? "");
