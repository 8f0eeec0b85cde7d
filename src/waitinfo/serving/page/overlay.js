// Captions for a stage: the last lines of a room, large; they stay during pauses and reconnects.

import { address } from "./stream.js";

const query = new URLSearchParams(location.search);
const box = document.getElementById("captions");
const lines = Math.min(6, Math.max(1, Number(query.get("lines")) || 2));
const letters = Math.max(10, Number(query.get("letters")) || 42);
box.style.setProperty("--lines", lines);
let shown = [[]];
let wait = 250;

function add(word) {
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
  const socket = new WebSocket(address("/v1/watch", { room: query.get("room") ?? "stage" }));
  socket.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    wait = 250;
    if (message.again && message.words.length) shown = [[]];
    message.words.forEach(add);
    draw();
  };
  socket.onclose = () => { setTimeout(watch, wait); wait = Math.min(2 * wait, 5000); };
}

watch();
