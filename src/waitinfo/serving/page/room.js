// Watching a room: its words, each once and in order, however often the connection is cut.

import { connect, lasting, refusal } from "./socket.js";

export class Watched {
  // on: words (new ones; whether another stream has begun), room (what is known of it), state (a name, why).
  constructor(query, on, pin = "") {
    Object.assign(this, { query, on, pin, stream: null, seen: false, wait: 250, over: false });
    this.last = [-1, 0];      // sentence and number of the last word: a speaker that was cut off repeats some
    this.position = null;
    this.open();
  }

  open() {
    const after = this.position ?? this.query.after;
    const socket = this.socket = connect("/v1/watch", { ...this.query, ...(after && { after }) }, this.pin);
    let opened = false;
    socket.onopen = () => { opened = true; this.wait = 250; this.on.state?.("live"); };
    socket.onmessage = ({ data }) => this.receive(JSON.parse(data));
    socket.onclose = () => { if (socket === this.socket && !this.over) this.lost(socket, opened); };
  }

  receive(message) {
    this.position = message.position;
    let fresh = false;
    if (message.stream && message.stream !== this.stream) {
      fresh = this.seen;
      this.stream = message.stream;
      this.last = [-1, 0];
    }
    const words = message.words.filter((word) => this.isNew(word));
    this.seen ||= words.length > 0;
    if (words.length || fresh) this.on.words(words, fresh);
    if (message.room) this.on.room?.(message.room);
  }

  isNew(word) {
    const [sentence, number] = [word.sentence, word.read - word.lag];
    if (sentence < this.last[0] || (sentence === this.last[0] && number <= this.last[1])) return false;
    this.last = [sentence, number];
    return true;
  }

  async lost(socket, opened) {
    const refused = opened ? null : await refusal(this.query, this.pin);
    if (socket !== this.socket || this.over) return;
    this.on.state?.(refused ? "refused" : "lost", refused);
    if (lasting(refused)) return;
    this.timer = setTimeout(() => this.open(), this.wait * (0.5 + Math.random() / 2));
    this.wait = Math.min(2 * this.wait, 8000);
  }

  enter(pin) {
    this.pin = pin;
    this.open();
  }

  close() {
    this.over = true;
    clearTimeout(this.timer);
    this.socket.close();
  }
}
