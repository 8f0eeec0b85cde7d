// Who speaks: into a microphone, or by typing. What is heard and its translation grow; others may watch.

import { Microphone } from "./microphone.js";
import { draw } from "./qr.js";
import { available, keep, language, pairs, recall, secret } from "./socket.js";
import { LiveStream } from "./stream.js";
import { Transcript } from "./transcript.js";
import { Typing } from "./typing.js";

const $ = (id) => document.getElementById(id);
const PACES = ["as fast as it can", "fast", "balanced", "slow and safe", "slowest and safest"];
const SHARES = [0, 0.15, 0.35, 0.6, 1];       // of the lags that a model can hold
const FACTORS = [0.4, 0.7, 1, 1.5, 2.2];      // of the setting that a model was trained for

const target = new Transcript($("target"), { aloud: $("aloud") });
let models = [];
let stream = null;
let microphone = null;
let room = null;       // {room, secret, pin}, once it is open

const chosen = () => models[$("model").selectedIndex] ?? models[0];

function state(text, bad = false) {
  $("state").textContent = text;
  $("state").classList.toggle("bad", bad);
}

function explain(text, bad = false) {
  $("hears").textContent = text;
  $("hears").classList.toggle("bad", bad);
}

// The stream

function pace() {
  const { dial, lags } = chosen();
  const at = Number($("pace").value);
  if (lags) return { lag: Math.round(10 * (lags[0] + SHARES[at] * (lags[1] - lags[0]))) / 10 };
  if (!dial) return {};
  const k = Math.max(dial.minimum, dial.default * FACTORS[at]);
  return { k: dial.whole ? Math.round(k) : Math.round(2 * k) / 2 };
}

function begin() {
  stream?.close();
  target.part();
  sourceLine = null;
  const { name, system } = chosen();
  stream = new LiveStream({ model: name, system, ...pace(), ...room }, {
    words: ({ words }) => target.add(words),
    heard: ({ text, open, pause }) => heard(text, open, pause),
    state: connection,
    error: problem,
  });
}

function connection(name, message) {
  $("unlock").hidden = name !== "refused" || message.reason !== "key";
  if (name === "live") {
    state("connected");
    if (room) invite(message.ticket);
  }
  if (name === "lost") state("the connection is lost; trying again …", true);
  if (name === "idle") state("paused; speak or type to go on");
  if (name === "refused") locked(message);
}

function locked({ reason, error }) {
  const given = new URLSearchParams(location.hash.slice(1)).has("key");
  state(reason === "key" && !given ? "this server needs a key" : error, true);
  if (reason === "key") $("key").focus();
}

function problem({ code, message }) {
  if (code === "room") {
    room = null;
    shut(message.replace(/^room: /, ""));
    if (stream.over) begin();
  } else if (code === "full" && stream.voice) {
    silence();
    explain("all voices of this server are in use; type or paste, or try again later", true);
  } else state(message, true);
}

$("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = new URLSearchParams(location.hash.slice(1));
  given.set("key", $("key").value);
  location.hash = given;
  $("unlock").hidden = true;
  main();
});

// What is said

let sourceLine = null;
const open = document.createElement("em");

function say(text) {
  write(text);
  stream.text(text);
}

function flush() {
  sourceLine = null;
  stream.flush();
}

function write(text) {
  if (!sourceLine) {
    sourceLine = document.createElement("p");
    sourceLine.append("", open);
    $("source").append(sourceLine);
  }
  sourceLine.firstChild.appendData(text);
  $("source").scrollTop = $("source").scrollHeight;
}

function heard(text, words, pause) {
  open.textContent = words.map((word) => word.text).join(" ");
  if (text || words.length) write(text);
  if (pause) sourceLine = null;
}

const typing = new Typing({ text: $("text"), play: $("play"), speed: $("speed") }, say, flush);
$("sample").addEventListener("click", () => typing.sample(chosen().source));

// The microphone

const NO_EARS = "This server has no speech recognition: type or paste. To speak, install the extra listen on the server and start it again.";

async function speak() {
  if (!chosen().voices) { explain(NO_EARS); return; }
  typing.clear();
  explain("");
  try {
    microphone = await Microphone.open((samples, level) => {
      $("level").value = level;
      stream.hear(samples);
    });
  } catch ({ message }) { explain(message, true); return; }
  stream.listen(microphone.rate, chosen().source);
  pressed(true);
}

function pressed(on) {
  $("microphone").setAttribute("aria-pressed", on);
  $("microphone-name").textContent = on ? "Pause" : "Speak";
  $("input").inert = on;
}

async function silence() {
  const closing = microphone;
  microphone = null;
  $("level").value = 0;
  pressed(false);
  await closing?.close();
  await stream.hush();
}

$("microphone").addEventListener("click", () => (microphone ? silence() : speak()));

// Settings

function paced() {
  $("pace-name").textContent = PACES[$("pace").value];
  $("pace").setAttribute("aria-valuetext", PACES[$("pace").value]);
}

$("pace").addEventListener("input", () => { paced(); stream.set(pace()); });
$("model").addEventListener("change", async () => {
  if (microphone) await silence();
  named();
  begin();
});

function named() {
  const { source, target: into, voices } = chosen();
  $("source-title").textContent = language(source);
  $("target-title").textContent = language(into);
  $("source").lang = source ?? "";
  $("target").lang = into ?? "";
  $("microphone").setAttribute("aria-disabled", !voices);
  explain(voices ? "" : NO_EARS);
}

$("clear").addEventListener("click", async () => {
  if (microphone) await silence();
  typing.clear();
  target.clear();
  $("source").replaceChildren();
  begin();
});
$("copy").addEventListener("click", () => copy(target.text));
$("save").addEventListener("click", () => target.save($("format").value));

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    state("copied");
  } catch { state("the browser does not allow copying here", true); }
}

// The audience

$("invite").addEventListener("submit", (event) => {
  event.preventDefault();
  const [name, pin] = [$("room").value.trim(), $("pin").value.trim()];
  if (!/^[\p{L}\p{N}_.-]{1,64}$/u.test(name)) {
    shut("A room’s name has up to 64 letters, digits, dots, hyphens or underscores, and no spaces.");
  } else if (pin && !/^\d{4,12}$/.test(pin)) {
    shut("A PIN has 4 to 12 digits.");
  } else {
    shut("");
    room = { room: name, secret: mine(name), pin: pin || null };
    keep("room", name);
    stream.rejoin(room);      // in the midst of it: nothing that was said is lost
  }
});

// The secret of a room, kept by this browser: the room is ours again after the page was reloaded.
function mine(name) {
  const found = recall(`room-${name}`) ?? secret();
  keep(`room-${name}`, found);
  return found;
}

function shut(why) {
  $("room-error").textContent = why;
  if (why) $("invitation").hidden = true;
}

// The link for those who watch gives no other right: it has a ticket, and never the key.
function invite(ticket) {
  const behind = ticket ? `#ticket=${encodeURIComponent(ticket)}` : "";
  const link = new URL(`/r/${encodeURIComponent(room.room)}${behind}`, location.href).href;
  $("link").href = link;
  $("link").textContent = link.split("#")[0];
  $("overlay").href = `/overlay?${new URLSearchParams({ room: room.room })}${behind}`;
  $("qr").replaceChildren(draw(link) ?? "The address is too long for a code.");
  $("only-here").hidden = !["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  $("invitation").hidden = false;
  $("open").textContent = "Change";
}

function enlarge(large) {
  $("qr").classList.toggle("large", large);
  $("enlarge").setAttribute("aria-pressed", large);
}

$("copy-link").addEventListener("click", () => copy($("link").href));
$("enlarge").addEventListener("click", () => enlarge(true));
$("qr").addEventListener("click", () => enlarge(!$("qr").classList.contains("large")));
addEventListener("keydown", ({ key }) => key === "Escape" && enlarge(false));

// Begin

async function main() {
  try {
    const all = await available();
    models = all.filter((m, n) => all.findIndex((other) => other.name === m.name) === n);
  } catch (error) {
    if (error.reason === "key") { $("unlock").hidden = false; locked(error); return; }
    state(error.message, true);
    setTimeout(main, 2000);
    return;
  }
  $("model").replaceChildren(...pairs(models).map((name) => new Option(name)));
  named();
  paced();
  begin();
}

$("room").value = recall("room") ?? `room-${secret(3)}`;
main();
