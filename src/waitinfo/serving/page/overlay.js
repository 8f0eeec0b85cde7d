// Captions for a stage: the last lines of a room, large; they stay during pauses and reconnects.

import { connect } from "./stream.js";

const query = new URLSearchParams(location.search);
const box = document.getElementById("captions");
const lines = Math.min(6, Math.max(1, Number(query.get("lines")) || 2));
const letters = Math.max(10, Number(query.get("letters")) || 42);
box.style.setProperty("--lines", lines);
let shown = [[]];
let wait = 250;
let last = [-1, 0];  // sentence and number of the last word: a speaker that was cut off repeats some

function add(word) {
  const place = [word.sentence, word.read - word.lag];
  if (place[0] < last[0] || (place[0] === last[0] && place[1] <= last[1])) return;
  last = place;
  const line = shown.at(-1);
  const length = line.reduce((sum, each) => sum + each.text.length, 0);
  const next = line.length && (length + word.word.length > letters || line.at(-1).sentence !== word.sentence);
  if (next) shown.push([word]); else line.push(word);
  shown = shown.slice(-lines);
}

function draw() {
  box.replaceChildren(...shown.filter((line) => line.length).map((line) => {
    const paragraph = document.createElement("p");
    const span = document.createElement("span");
    span.textContent = line.map(({ text }) => text).join("").trim();
    paragraph.append(span);
    return paragraph;
  }));
}

function watch() {
  const socket = connect("/v1/watch", { room: query.get("room") ?? "stage" });
  socket.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    wait = 250;
    if (message.fresh) last = [-1, 0];
    if (message.again && message.words.length) [shown, last] = [[[]], [-1, 0]];
    message.words.forEach(add);
    draw();
  };
  socket.onclose = () => { setTimeout(watch, wait); wait = Math.min(2 * wait, 5000); };
}

watch();
