// A stream on the server that connects again by itself and continues word for word.

import { connect, lasting, refusal, secret } from "./socket.js";

const HELD = 120;  // seconds of audio that are kept while there is no connection

export class LiveStream {
  // `options` are fields of the start message; `on` has words, heard, state and error.
  constructor(options, on) {
    this.options = options;
    if (options.room) options.secret ??= secret();  // to come back to the room
    this.on = on;
    this.items = [];          // text and flushes that are not done with
    this.replay = null;       // where the server would continue
    this.last = this.done = 0;  // ids of the newest item, and of the newest one worked off
    this.wait = 250;
    this.over = false;
    this.voice = null;        // what is said into a microphone
    this.connect();
  }

  connect() {
    if (this.over) return;
    this.open = this.resting = false;
    const socket = this.socket = connect("/v1/stream");
    let opened = false;
    socket.onopen = () => { opened = true; this.start(); };
    socket.onmessage = ({ data }) => this.receive(JSON.parse(data));
    socket.onclose = () => { if (socket === this.socket) this.lost(opened); };
  }

  // The same stream in another connection, because the options have changed.
  rejoin(options) {
    Object.assign(this.options, options);
    if (this.options.room) this.options.secret ??= secret();
    const former = this.socket;
    former.onmessage = null;
    clearTimeout(this.timer);
    this.connect();
    former.close();
  }

  start() {
    const resume = this.vocabulary && {
      position: 0, sentence: 0, path: [], ...this.replay, vocabulary: this.vocabulary,
    };
    const { rate, language, replay } = this.voice ?? {};
    const audio = this.voice && { audio: { rate, language, ...(replay && { resume: replay }) } };
    this.transmit({ type: "start", ...this.options, ...audio, ...(resume && { resume }) });
  }

  // Everything that is not done with, and a mark that is answered when it is.
  repeat() {
    for (const item of this.items) this.transmit(item);
    if (this.last) this.transmit({ type: "text", text: "", id: this.last });
    for (const { samples } of this.voice?.chunks ?? []) this.socket.send(samples);
  }

  // A microphone: what is heard at so many samples a second. What is recognised is as if it had been typed.
  listen(rate, language) {
    this.voice = { rate, language, replay: null, chunks: [], count: 0, position: 0 };
    this.rejoin({});
  }

  hear(samples) {           // Int16Array
    const { voice } = this;
    if (!voice) return;
    voice.chunks.push({ at: voice.count, samples });
    voice.count += samples.length;
    if (voice.count - voice.chunks[0].at > HELD * voice.rate) {
      this.on.error?.({ code: "late", message: "the server has not answered for two minutes" });
      this.mute();
    } else if (this.resting) this.connect();
    else if (this.open) this.socket.send(samples);
  }

  // No more is said for now: what was said is recognised to its end.
  async hush() {
    const { voice } = this;
    if (!voice) return;
    for (let n = 0; n < 15; n += 1) this.hear(new Int16Array(Math.round(voice.rate / 10)));
    for (let n = 0; n < 100 && voice === this.voice && voice.position * voice.rate < voice.count - voice.rate; n += 1) {
      await new Promise((go) => setTimeout(go, 100));
    }
    if (voice === this.voice) this.mute();
  }

  mute() {
    this.voice = null;
    this.rejoin({});
  }

  heard(message) {
    const { voice } = this;
    if (!voice) return;
    if (message.text) this.items.push({ type: "text", text: message.text });
    if (message.pause) this.items.push({ type: "flush" });
    voice.replay = message.replay;
    voice.position = message.position;
    const from = message.replay.sample;
    while (voice.chunks.length > 1 && voice.chunks[1].at <= from) voice.chunks.shift();
    const [first] = voice.chunks;
    if (first && first.at < from) {
      voice.chunks[0] = { at: from, samples: first.samples.subarray(from - first.at) };
    }
    this.on.heard?.(message);
  }

  transmit(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  receive(message) {
    if (this.over) return;
    if (message.type === "started") {
      this.vocabulary = message.vocabulary;
      this.open = true;
      this.wait = 250;
      this.repeat();
      this.on.state?.("live", message);
    } else if (message.type === "words") {
      this.keep(message);
      this.on.words?.(message);
    } else if (message.type === "heard") {
      this.heard(message);
    } else if (message.type === "error") {
      if (!this.open) this.refused(message.code);
      this.on.error?.(message);
    } else if (message.type === "idle") {
      this.done = message.id;
    } else if (message.type === "ended" && message.reason === "replaced") {
      this.over = true;
      this.on.error?.({ code: "room", message: "another window of yours speaks in this room now" });
    } else if (message.type === "ended" && message.reason === "idle" && this.done >= this.last) {
      this.resting = true;  // else text was on its way when the server closed: connect again
      this.on.state?.("idle");
    }
  }

  refused(code) {
    this.over = !["full", "start"].includes(code);
    this.socket.close();
  }

  keep({ replay, time }) {
    const former = this.replay ?? { position: 0, sentence: 0, path: [] };
    const same = former.sentence === replay.sentence;
    if (!same) this.drop(replay.position - former.position);
    this.replay = { ...replay, path: same ? [...former.path, ...replay.path] : replay.path, seconds: time };
  }

  drop(count) {
    while (count > 0 && this.items.length) {
      const letters = Array.from(this.items[0].text ?? "");
      if (letters.length > count) {
        this.items[0] = { ...this.items[0], text: letters.slice(count).join("") };
        count = 0;
      } else {
        this.items.shift();
        count -= letters.length;
      }
    }
    while (this.items[0]?.type === "flush") this.items.shift();
  }

  async lost(opened) {
    this.open = false;
    if (this.over || this.resting) return;
    const { socket } = this;
    const refused = opened ? null : await refusal();
    if (socket !== this.socket || this.over) return;
    this.on.state?.(lasting(refused) ? "refused" : "lost", refused);
    if (lasting(refused)) return;
    this.timer = setTimeout(() => this.connect(), this.wait * (0.5 + Math.random() / 2));
    this.wait = Math.min(2 * this.wait, 8000);
  }

  send(item) {
    item.id = ++this.last;
    this.items.push(item);
    if (this.resting) this.connect();
    else if (this.open) this.transmit(item);
  }

  text(text) { this.send({ type: "text", text }); }
  flush() { this.send({ type: "flush" }); }

  set(change) {             // {k} or {lag}
    Object.assign(this.options, change);
    this.transmit({ type: "set", ...change });
  }

  close() {
    this.over = true;
    this.voice = null;
    clearTimeout(this.timer);
    this.socket.close();
  }
}
