// Who listens: the translation of a room, and nothing else to learn.

import { Watched } from "./room.js";
import { keep, language, recall } from "./socket.js";
import { Transcript } from "./transcript.js";

const $ = (id) => document.getElementById(id);
const SIZES = [0.6, 0.75, 0.9, 1, 1.25, 1.5, 2, 2.5, 3.2];
const RECENT = -300;          // words that are shown to those who come late
const room = decodeURIComponent(location.pathname.split("/").at(-1));
const text = new Transcript($("words"), { jump: $("jump"), aloud: $("aloud") });
let watched = null;
let about = { languages: [] };
let wanted = new URLSearchParams(location.search).get("language");
let followed = null;          // the language of the stream, if it is not the room's own

function state(said, bad = false) {
  $("state").textContent = said;
  $("state").classList.toggle("bad", bad);
}

function known(found) {
  if (found.languages.length) about = { ...found, own: followed ? about.own : found.target };
  Object.assign(about, { speaking: found.speaking, problem: found.problem });
  if (wanted && wanted !== (followed ?? about.own) && about.languages.includes(wanted)) { follow(wanted); return; }
  const target = followed ?? about.own;
  if (target) $("words").lang = target;
  const choices = about.languages.length > 1 ? about.languages : [];
  $("follow").hidden = !choices.length;
  if (Array.from($("language").options, ({ value }) => value).join() !== choices.join()) {
    $("language").replaceChildren(...choices.map((code) => new Option(language(code), code)));
    $("language").value = target;
  }
  if (about.problem) state(about.problem, true);
  else if (about.speaking) state(text.words.length ? "" : "The words will appear here as they are spoken.");
  else state(text.words.length ? "The speaker is away." : "Nobody is speaking yet. The words will appear here.");
}

function changed(name, refused) {
  $("ask").hidden = !(name === "refused" && refused.reason === "pin");
  if (name === "refused") {
    const asks = refused.reason === "pin" && !watched.pin;
    state(asks ? "" : `${refused.error.charAt(0).toUpperCase()}${refused.error.slice(1)}.`, true);
    if (!$("ask").hidden) $("pin").focus();
  }
  if (name === "lost") state("The connection is lost. Trying again …", true);
}

function follow(code) {
  followed = code === about.own ? null : code;
  watch();
}

function watch() {
  const pin = watched?.pin ?? "";
  watched?.close();
  text.clear();
  watched = new Watched({ room, after: RECENT, ...(followed && { language: followed }) }, {
    words: (words, fresh) => {
      if (fresh) text.part();
      text.add(words);
      if (words.length) state("");
    },
    room: known,
    state: changed,
  }, pin);
}

$("language").addEventListener("change", () => {
  wanted = $("language").value;
  const url = new URL(location.href);
  url.searchParams.set("language", wanted);
  history.replaceState(null, "", url);
  follow(wanted);
});

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  watched.enter($("pin").value.trim());
});

// How it looks

function resize(step) {
  const at = Math.min(SIZES.length - 1, Math.max(0, SIZES.indexOf(Number(recall("size") ?? 1)) + step));
  keep("size", SIZES[at]);
  $("words").style.setProperty("--size", SIZES[at]);
  if (text.follows) text.end();
}

function paint(dark) {
  document.documentElement.className = dark ? "dark" : "light";
  $("dark").setAttribute("aria-pressed", dark);
}

$("smaller").addEventListener("click", () => resize(-1));
$("larger").addEventListener("click", () => resize(1));
$("dark").addEventListener("click", () => {
  const dark = document.documentElement.className !== "dark";
  keep("dark", dark);
  paint(dark);
});
$("save").addEventListener("click", () => text.save("txt", room));
addEventListener("resize", () => text.follows && text.end());

// A screen that stays on

let lock = null;

async function stayAwake() {
  try {
    if (!$("awake").checked) { await lock?.release(); lock = null; }
    else if (document.visibilityState === "visible") lock = await navigator.wakeLock.request("screen");
  } catch { $("awake").checked = false; }  // the battery is low, or the page is not shown
}

if (navigator.wakeLock) {
  $("awake-label").hidden = false;
  $("awake").addEventListener("change", stayAwake);
  document.addEventListener("visibilitychange", stayAwake);
  stayAwake();
}

resize(0);
const chosen = recall("dark");
paint(chosen === null ? matchMedia("(prefers-color-scheme: dark)").matches : chosen === "true");
if (/^[\p{L}\p{N}_.-]{1,64}$/u.test(room)) {
  document.title = `${room}: live translation`;
  watch();
} else {
  state("This is not the name of a room. Names have up to 64 letters, digits, dots, hyphens or underscores.", true);
}
