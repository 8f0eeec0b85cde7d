// A text that grows at its end: it scrolls along unless somebody reads further up.

import { vtt, srt, save } from "./exports.js";

const PARAGRAPH = 240;  // letters, after which the next sentence begins one
const SPOKEN = 4000;    // milliseconds without a word, after which what is there is announced

export class Transcript {
  // `jump` is a button to get back to the end, `aloud` an element whose text is read to those who cannot see.
  constructor(box, { jump = null, aloud = null } = {}) {
    Object.assign(this, { box, jump, aloud, words: [], breaks: [], follows: true });
    box.addEventListener("scroll", () => this.look());
    jump?.addEventListener("click", () => { this.follows = true; this.end(); });
    this.clear();
  }

  clear() {
    this.words = [];
    this.breaks = [];         // numbers of words that begin another stream
    this.sentence = null;
    this.unspoken = "";
    this.paragraph = null;
    this.box.replaceChildren();
  }

  add(words) {
    for (const word of words) this.put(word);
    if (this.follows) this.end(); else this.look();
  }

  put(word) {
    const next = this.sentence !== null && word.sentence !== this.sentence;
    if (next) this.announce();
    if (!this.paragraph || (next && this.paragraph.textContent.length > PARAGRAPH)) this.begin();
    this.sentence = word.sentence;
    this.words.push(word);
    this.paragraph.firstChild.appendData(this.paragraph.firstChild.length ? word.text : word.text.trimStart());
    this.unspoken += word.text;
    clearTimeout(this.timer);
    if (/[.!?…。！？]["'”’»)]*$/.test(word.text)) this.announce();
    else this.timer = setTimeout(() => this.announce(), SPOKEN);
  }

  begin() {
    this.paragraph = document.createElement("p");
    this.paragraph.append("");
    this.box.append(this.paragraph);
  }

  // Another stream begins.
  part() {
    this.announce();
    this.breaks.push(this.words.length);
    this.paragraph = this.sentence = null;
  }

  announce() {
    clearTimeout(this.timer);
    if (this.aloud && this.unspoken.trim()) this.aloud.textContent = this.unspoken.trim();
    this.unspoken = "";
  }

  end() {
    this.box.scrollTop = this.box.scrollHeight;
    if (this.jump) this.jump.hidden = true;
  }

  look() {
    const below = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight;
    this.follows = below < 48;
    if (this.jump) this.jump.hidden = this.follows;
  }

  get text() { return Array.from(this.box.querySelectorAll("p"), (each) => each.textContent).join("\n"); }

  save(kind, name = "translation") {
    const made = { txt: () => `${this.text}\n`, srt: () => srt(this.words), vtt: () => vtt(this.words) };
    save(`${name}.${kind}`, made[kind]());
  }
}
