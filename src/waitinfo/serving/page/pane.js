// Columns of words: the source, and a translation with its lag and its staircase.

const SVG = "http://www.w3.org/2000/svg";

// How far the info of a word is from the average of its side.
class Shades {
  constructor() { this.sum = 0; this.count = 0; }
  of(info) {
    if (info === undefined || info === null) return "";
    this.sum += info; this.count += 1;
    const ratio = info / (this.sum / this.count || 1);
    if (ratio < 0.55) return "low2";
    if (ratio < 0.85) return "low1";
    if (ratio > 1.8) return "high2";
    return ratio > 1.2 ? "high1" : "";
  }
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value; else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function toEnd(box) { box.scrollTop = box.scrollHeight; }

export class Source {
  constructor(box) { this.box = box; this.clear(); }

  clear() {
    this.box.replaceChildren();
    this.shades = new Shades();
    this.words = [];          // {sentence, span}
    this.starts = new Map();  // by sentence or window: its first word
    this.info = 0;
    this.sent = [];           // letters from `position` on
    this.position = 0;
    this.waiting = element("span", { class: "waiting" });
    this.line = element("p");
    this.box.append(this.line);
    this.line.append(this.waiting);
  }

  add(text) {
    this.sent.push(...Array.from(text));
    this.show();
  }

  show() {
    this.waiting.textContent = this.sent.join("").trim();
    toEnd(this.box);
  }

  // What a translation has read, from its trace.
  read(message) {
    for (const event of message.trace ?? []) {
      // A window that moves on begins with words that were read before, in the same line.
      if (event.kind === "MOVE") this.starts.set(event.sentence, this.words.length - event.kept[0]);
      if (event.kind !== "READ") continue;
      this.info += event.info ?? 0;
      if (!event.word) continue;
      if (!this.starts.has(event.sentence)) {
        this.starts.set(event.sentence, this.words.length);
        if (this.words.length) {
          this.line = element("p");
          this.box.append(this.line);
        }
      }
      const shade = event.info === null ? "" : this.shades.of(this.info);
      const span = element("span", { class: `w ${shade}` }, event.word);
      this.line.append(span, " ", this.waiting);
      this.words.push({ sentence: event.sentence, span, info: this.info });
      this.info = 0;
    }
    this.sent.splice(0, Math.max(0, message.position - this.position));
    this.position = message.position;
    this.show();
  }

  // Underline what had been read when a word was written.
  mark(word) {
    const first = word ? this.starts.get(word.sentence) ?? 0 : 0;
    this.words.forEach(({ span }, at) => {
      span.classList.toggle("seen", !!word && at >= first && at < first + word.read);
    });
  }
}

export class Translation {
  constructor(language, setting, describe) {
    this.describe = describe;
    const id = `pane-${Math.random().toString(36).slice(2)}`;
    this.setting = element("small", {}, setting);
    this.title = element("h2", { id }, `${language} `, this.setting);
    this.box = element("div", {
      class: "words", tabindex: "0", role: "log", "aria-live": "polite", "aria-labelledby": id,
      "data-empty": "The translation will grow here.",
    });
    this.meter = element("meter", { min: "0", max: "15", low: "6", high: "10", optimum: "0", "aria-label": "lag in words" });
    this.lagText = element("span");
    this.stairs = document.createElementNS(SVG, "svg");
    this.stairs.setAttribute("class", "stairs");
    this.stairs.setAttribute("role", "img");
    this.root = element("article", { class: "pane", "aria-labelledby": id }, this.title, this.box,
      element("div", { class: "figures" }, this.meter, this.lagText), this.stairs);
    this.box.addEventListener("pointerover", (event) => this.choose(event.target));
    this.box.addEventListener("click", (event) => this.choose(event.target));
    this.box.addEventListener("keydown", (event) => this.move(event));
    this.clear();
  }

  clear() {
    this.words = [];
    this.spans = new Map();
    this.held = [];           // words of a line that is not complete, in reading mode
    this.shades = new Shades();
    this.lags = 0;
    this.steps = [];
    this.sentence = 0;
    this.line = element("p");
    this.box.replaceChildren(this.line);
    this.figures();
    this.draw();
  }

  get text() {
    const lines = [];
    for (const word of this.words) (lines[word.sentence] ??= []).push(word.text);
    return lines.filter(Boolean).map((line) => line.join("").trim()).join("\n");
  }

  take(message, reading, k) {
    let ended = -1;           // the last sentence that is complete
    for (const event of message.trace ?? []) {
      this.step(event);
      if (event.kind === "WRITE" && event.token === "</s>") ended = event.sentence;
    }
    for (const word of message.words) {
      if (this.held.length && this.held.at(-1).sentence !== word.sentence) this.release();
      this.words.push(word);
      this.lags += word.lag;
      this.held.push({ ...word, k });
      if (!reading || this.held.length >= 12 || /[.!?…,;:]$/.test(word.word)) this.release();
    }
    if (this.held.length && (!reading || this.held.at(-1).sentence <= ended)) this.release();
    this.figures();
    this.draw();
  }

  release() {
    for (const word of this.held) {
      if (this.last !== undefined && this.last !== word.sentence) {
        this.line = element("p");
        this.box.append(this.line);
      }
      this.last = word.sentence;
      const span = element("span", { class: `w ${this.shades.of(word.info)}` }, word.word);
      this.spans.set(span, word);
      if (word.text.startsWith(" ") && this.line.childNodes.length) this.line.append(" ");
      this.line.append(span);
    }
    this.held = [];
    toEnd(this.box);
  }

  // Words read and not yet written, in the present sentence; the mean is over words written.
  figures() {
    const read = this.steps.filter((kind) => kind === "READ").length;
    const lag = Math.max(0, 2 * read - this.steps.length);
    this.meter.value = lag;
    const mean = this.words.length ? `, ${(this.lags / this.words.length).toFixed(1)} on average` : "";
    this.lagText.textContent = this.steps.length ? `lag ${lag} ${lag === 1 ? "word" : "words"}${mean}` : "no words yet";
  }

  choose(target) {
    if (!this.spans.has(target)) return;
    this.box.querySelector(".chosen")?.classList.remove("chosen");
    target.classList.add("chosen");
    this.describe(this.spans.get(target));
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const spans = [...this.spans.keys()];
    const at = spans.findIndex((span) => span.classList.contains("chosen"));
    const next = spans[Math.min(Math.max(at < 0 ? spans.length - 1 : at + step, 0), spans.length - 1)];
    if (next) { this.choose(next); next.scrollIntoView({ block: "nearest" }); }
  }

  // The staircase of the present sentence: a step right for a word read, up for a word written.
  step(event) {
    if (event.sentence !== this.sentence) { this.sentence = event.sentence; this.steps = []; }
    if (event.kind === "MOVE") {
      const [read, written] = event.kept;
      this.steps = [...Array(read).fill("READ"), ...Array(written).fill("WRITE")];
    }
    if (event.word) this.steps.push(...event.word.split(" ").map(() => event.kind));
  }

  draw() {
    const read = this.steps.filter((kind) => kind === "READ").length;
    const written = this.steps.length - read;
    // One unit is one pixel, so that letters have the same size in narrow and wide columns.
    const width = Math.max(160, this.stairs.clientWidth || 320), height = 144, left = 8, bottom = 18;
    const across = Math.max(8, read), up = Math.max(8, written);
    const x = (n) => left + ((width - left - 4) * n) / across;
    const y = (n) => height - bottom - ((height - bottom - 4) * n) / up;
    let path = `M${x(0)} ${y(0)}`, r = 0, w = 0;
    for (const kind of this.steps) {
      if (kind === "READ") r += 1; else w += 1;
      path += `L${x(r).toFixed(1)} ${y(w).toFixed(1)}`;
    }
    const make = (name, attributes, text) => {
      const made = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      if (text) made.textContent = text;
      return made;
    };
    this.stairs.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.stairs.setAttribute("aria-label", `Present sentence: ${read} words read, ${written} written.`);
    this.stairs.replaceChildren(
      make("path", { class: "grid", d: `M${left} 4V${height - bottom}H${width - 4}`, fill: "none" }),
      make("path", { class: "path", d: path }),
      make("text", { x: width - 4, y: height - 4, "text-anchor": "end" }, `${read} read →`),
      make("text", { x: left + 6, y: 14 }, `↑ ${written} written`),
    );
  }
}
