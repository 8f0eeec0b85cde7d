// The page: what is typed, played or dictated goes to one stream for each column.

import { available, language, pairs } from "./socket.js";
import { LiveStream } from "./stream.js";
import { Source, Translation } from "./pane.js";
import { Typing } from "./typing.js";
import * as exports from "./exports.js";
import * as past from "./history.js";

const $ = (id) => document.getElementById(id);
const NAMES = { "wait-info": "wait-info", "wait-k": "wait-k", full: "whole sentences" };

const source = new Source($("source"));
let models = [];
let columns = [];      // {pane, stream, system, and k or lag}
let records = [];      // of this session, for export
let began = 0;         // by performance.now
let opened = 0;        // the same by the calendar: the name of the session
let replays = 0;       // a newer replay ends the former

const now = () => (performance.now() - began) / 1000;
const chosen = () => models[$("model").selectedIndex] ?? models[0];

function state(text, bad = false) {
  $("state").textContent = text;
  $("state").classList.toggle("bad", bad);
}

function describe(word) {
  source.mark(word);
  const parts = [`“${word.word}” was written when ${word.read} source words had been read, ${word.lag} more than words written.`];
  if (word.info !== undefined && word.info !== null) {
    parts.push(`Info read ${word.source_info.toFixed(1)}, info written ${word.target_info.toFixed(1)}`
      + (word.k === undefined ? "." : `: ${(word.source_info - word.target_info).toFixed(1)} ahead, K is ${word.k}.`)
      + ` Its own info is ${word.info.toFixed(2)}.`);
  }
  $("detail").textContent = parts.join(" ");
}

// Columns

// Where a lag can be held, the dial may turn that instead of K.
const holding = () => !$("hold-label").hidden && $("hold").checked;
const setting = (input) => ({ [holding() ? "lag" : "k"]: Number($(input).value) });

function wanted() {
  const model = chosen();
  const first = { system: model.system, ...(model.dial && setting("dial")) };
  const beside = $("compare").value;
  if (!beside) return [first];
  if (beside === "dial") return [first, { ...first, ...setting("other"), other: true }];
  const others = beside.split(",").filter((name) => models.some((m) => m.name === model.name && m.system === name));
  return [first, ...others.map((system) => ({ system, k: system === "full" ? undefined : waitK(first.k ?? 5) }))];
}

const waitK = (k) => Math.max(1, Math.round(k));

function title({ system, k, lag }) {
  const dial = lag !== undefined ? `, lag ${lag}` : k !== undefined ? `, K = ${k}` : "";
  return `${NAMES[system] ?? system}${dial}`;
}

// The session as it is saved: first what the columns are.
const session = () => [
  { at: 0, type: "columns", columns: columns.map(({ system, k, lag }) => ({ system, k, lag })) }, ...records,
];

function keep() {
  if (opened && columns.some(({ stream }) => stream)) past.keep(opened, session());
  const kept = past.sessions();
  $("history-label").hidden = $("forget").hidden = !kept.length;
  const name = ({ when, title: text }) => `${new Date(when).toLocaleString()}: ${text}`;
  $("history").replaceChildren(new Option("choose …", ""), ...kept.map((each) => new Option(name(each), each.when)));
}

function begin() {
  typing.stop();
  keep();
  replays += 1;
  for (const { stream } of columns) stream?.close();
  source.clear();
  source.mark(null);
  records = [];
  began = performance.now();
  opened = Date.now();
  columns = wanted().map((settings, index) => {
    const pane = new Translation(language(chosen().target), title(settings), describe);
    const column = { ...settings, pane };
    const options = { model: chosen().name, system: settings.system, trace: true };
    if (settings.k !== undefined) options.k = settings.k;
    if (settings.lag !== undefined) options.lag = settings.lag;
    column.stream = new LiveStream(options, {
      words: (message) => heard(index, message),
      state: (name, message) => index === 0 && connection(name, message),
      error: ({ message }) => state(message, true),
    });
    return column;
  });
  $("source-title").textContent = language(chosen().source);
  lay();
}

function lay() {
  $("panes").replaceChildren(...columns.map(({ pane }) => pane.root));
  $("columns").classList.toggle("many", columns.length > 1);
}

function connection(name, message) {
  if (name === "live") state("connected");
  if (name === "lost") state("the connection is lost; trying again …", true);
  if (name === "refused") state(message.reason === "key" ? `${message.error}; enter it on the speaker’s page` : message.error, true);
  if (name === "idle") state("paused; type to go on");
}

function heard(index, message) {
  const { replay, ...rest } = message;
  records.push({ at: now(), type: "words", column: index, ...rest });
  show(index, message);
}

function show(index, message) {
  const column = columns[index];
  if (!column) return;
  if (index === 0) source.read(message);
  column.pane.take(message, $("reading").checked, column.k);
}

function say(text) {
  records.push({ at: now(), type: "text", text });
  source.add(text);
  for (const { stream } of columns) stream?.text(text);
}

function flush() {
  records.push({ at: now(), type: "flush" });
  for (const { stream } of columns) stream?.flush();
}

const typing = new Typing({ text: $("text"), play: $("play"), speed: $("speed") }, say, flush);
$("sample").addEventListener("click", () => typing.sample(chosen().source));

const Recognition = window.SpeechRecognition ?? window.webkitSpeechRecognition;
if (Recognition) {
  let recogniser = null;
  $("dictate").hidden = $("hears").hidden = false;
  $("dictate").addEventListener("click", () => {
    if (recogniser) { recogniser.stop(); return; }
    recogniser = new Recognition();
    recogniser.lang = chosen().source ?? "";
    recogniser.continuous = true;
    recogniser.interimResults = false;
    recogniser.onresult = (event) => {
      for (const result of Array.from(event.results).slice(event.resultIndex)) {
        if (result.isFinal) say(`${result[0].transcript.trim()} `);
      }
    };
    recogniser.onerror = ({ error }) => state(`dictation: ${error}`, true);
    recogniser.onend = () => { recogniser = null; $("dictate").textContent = "Dictate"; flush(); };
    recogniser.start();
    $("dictate").textContent = "Stop dictating";
  });
}

// Settings

function turn(input, output, other) {
  $(output).textContent = $(input).value;
  for (const column of columns) {
    const [[name, value]] = Object.entries(setting(input));
    if (column[name] === undefined || !!column.other !== other) continue;
    column[name] = column.system === "wait-k" && name === "k" ? waitK(value) : value;
    const change = { [name]: column[name] };
    column.stream?.set(change);
    column.pane.setting.textContent = title(column);
    records.push({ at: now(), type: "set", column: columns.indexOf(column), ...change });
  }
}

$("dial").addEventListener("input", () => turn("dial", "dial-value", false));
$("other").addEventListener("input", () => turn("other", "other-value", true));
$("compare").addEventListener("change", () => { $("other-label").hidden = $("compare").value !== "dial"; begin(); });
$("model").addEventListener("change", () => { dial(); begin(); });
$("hold").addEventListener("change", () => { dial(); begin(); });
$("clear").addEventListener("click", () => { begin(); typing.clear(); $("text").focus(); });
$("reading").addEventListener("change", () => columns.forEach(({ pane }) => $("reading").checked || pane.release()));
$("controls").addEventListener("submit", (event) => event.preventDefault());

function dial() {
  const { dial: found, lags } = chosen();
  $("dial-label").hidden = !found;
  $("hold-label").hidden = !lags;
  const [least, most] = holding() ? lags.map((lag, n) => (n ? Math.floor : Math.ceil)(10 * lag) / 10) : [found?.minimum ?? 0, 15];
  for (const input of ["dial", "other"]) {
    $(input).min = least;
    $(input).max = most;
    $(input).step = holding() ? 0.1 : found?.whole ? 1 : 0.5;
  }
  $("dial-name").textContent = $("other-name").textContent = holding() ? "Lag" : "K";
  $("dial").value = holding() ? (least + most) / 2 : found?.default ?? 5;
  $("dial-value").textContent = $("dial").value;
  $("other-value").textContent = $("other").value;
}

// Sessions

$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(columns[0].pane.text);
    state("copied");
  } catch { state("the browser does not allow copying here", true); }
});

$("export").addEventListener("click", () => {
  const { words, text } = columns[0].pane;
  const kinds = {
    txt: () => `${text}\n`, srt: () => exports.srt(words), vtt: () => exports.vtt(words),
    jsonl: () => exports.jsonl(session()),
  };
  exports.save(`translation.${$("format").value}`, kinds[$("format").value]());
});

$("load").addEventListener("change", async () => {
  const [file] = $("load").files;
  if (!file) return;
  let found;
  try { found = exports.parse(await file.text()); } catch {
    state("this file is not a session saved here", true);
    return;
  }
  replay(found, file.name);
});

$("history").addEventListener("change", () => {
  const found = past.sessions().find(({ when }) => String(when) === $("history").value);
  if (found) replay(found.records, found.title);
});

$("forget").addEventListener("click", () => { past.forget(); opened = 0; keep(); });
addEventListener("pagehide", keep);

async function replay(found, name) {
  typing.stop();
  keep();
  const mine = replays += 1;
  for (const { stream } of columns) stream?.close();
  const [head] = found;
  columns = (head.columns ?? [{}]).map((settings) => ({ ...settings, pane: new Translation(language(chosen().target), title(settings), describe) }));
  lay();
  source.clear();
  records = found.slice(1);
  state(`replaying ${name}; Start over ends it`);
  const rate = Number($("rate").value);
  let at = 0;
  for (const record of found) {
    if (record.at > at) await new Promise((done) => setTimeout(done, Math.min(5000, (1000 * (record.at - at)) / rate)));
    if (mine !== replays) return;
    at = Math.max(at, record.at);
    if (record.type === "text") source.add(record.text);
    if (record.type === "words") show(record.column, record);
  }
  state("the session is over; Start over begins a new one");
}

// Begin

addEventListener("resize", () => columns.forEach(({ pane }) => pane.draw()));
if (matchMedia("(max-width: 44rem)").matches) $("settings").open = false;  // words first

async function main() {
  try {
    models = await available();
  } catch ({ message }) {
    state(message, true);
    setTimeout(main, 2000);
    return;
  }
  const own = models.filter((m, n) => models.findIndex((o) => o.name === m.name) === n);
  models = [...own, ...models.filter((m) => !own.includes(m))];
  $("model").replaceChildren(...pairs(own).map((name) => new Option(name)));
  for (const option of $("compare").options) {
    option.disabled = option.value.split(",").some((name) => name && name !== "dial" && !models.some((m) => m.system === name));
  }
  dial();
  begin();
}

main();
