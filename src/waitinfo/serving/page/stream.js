// A stream on the server that connects again by itself and continues word for word.

// A socket of this server. What is secret stands behind the # and travels as a subprotocol: addresses are logged.
export function connect(path, query = {}) {
  const url = new URL(path, location.href);
  url.protocol = url.protocol.replace("http", "ws");
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  const given = new URLSearchParams(location.hash.slice(1));
  const name = ["ticket", "key"].find((each) => given.has(each));
  if (!name) return new WebSocket(url);
  const token = encodeURIComponent(given.get(name)).replace(/[()]/g, (c) => `%${c.charCodeAt(0).toString(16)}`);
  return new WebSocket(url, ["waitinfo", `waitinfo-${name}.${token}`]);
}

// A secret that nobody can guess, in letters and digits.
export function secret() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (n) => n.toString(16).padStart(2, "0")).join("");
}

export class LiveStream {
  // `options` are fields of the start message; `on` has words, state, stats and error.
  constructor(options, on) {
    this.options = options;
    if (options.room) options.secret ??= secret();  // to come back to the room
    this.on = on;
    this.items = [];          // text and flushes that are not done with
    this.replay = null;       // where the server would continue
    this.last = this.done = 0;  // ids of the newest item, and of the newest one worked off
    this.wait = 250;
    this.over = false;
    this.connect();
  }

  connect() {
    if (this.over) return;
    this.open = this.resting = false;
    const socket = this.socket = connect("/v1/stream");
    socket.onopen = () => this.start();
    socket.onmessage = ({ data }) => this.receive(JSON.parse(data));
    socket.onclose = () => { if (socket === this.socket) this.lost(); };
  }

  start() {
    const resume = this.vocabulary && {
      position: 0, sentence: 0, path: [], ...this.replay, vocabulary: this.vocabulary,
    };
    this.transmit({ type: "start", trace: true, ...this.options, ...(resume && { resume }) });
  }

  // Everything that is not done with, and a mark that is answered when it is.
  repeat() {
    for (const item of this.items) this.transmit(item);
    if (this.last) this.transmit({ type: "text", text: "", id: this.last });
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

  lost() {
    this.open = false;
    if (this.over || this.resting) return;
    this.on.state?.("lost");
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
    clearTimeout(this.timer);
    this.socket.close();
  }
}
