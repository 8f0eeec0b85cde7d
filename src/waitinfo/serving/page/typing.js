// A field to type in, or to paste a text into and play it.

const SAMPLES = {
  de: "Meine Damen und Herren, ich freue mich sehr, heute bei Ihnen zu sein. Die Kommission hat "
    + "gestern in Brüssel einen neuen Vorschlag zur Verbesserung der Luftqualität vorgelegt. Wir müssen "
    + "dringend etwas gegen den Klimawandel unternehmen, bevor es zu spät ist.",
  en: "Ladies and gentlemen, I am very glad to be with you today. Yesterday the Commission presented a new "
    + "proposal to improve the quality of the air in our cities. We must do something about climate change "
    + "before it is too late.",
};

export class Typing {
  // parts: text, play, speed, sample (elements); say and flush take what is said.
  constructor(parts, say, flush) {
    Object.assign(this, parts, { say, flush });
    this.pasted = false;      // the text waits to be played
    this.playing = null;
    this.text.addEventListener("input", (event) => this.input(event));
    this.text.addEventListener("keydown", (event) => this.key(event));
    this.play.addEventListener("click", () => this.toggle());
  }

  input({ inputType }) {
    if (["insertFromPaste", "insertFromDrop"].includes(inputType)) this.pasted = true;
    if (!this.text.value.trim()) this.pasted = false;
    if (this.pasted || this.playing) return;
    const complete = this.text.value.match(/^[\s\S]*\s/)?.[0];
    if (!complete) return;
    this.text.value = this.text.value.slice(complete.length);
    if (complete.trim()) this.say(complete);
    if (complete.includes("\n")) this.flush();
  }

  key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || this.pasted || this.playing) return;
    event.preventDefault();
    const rest = this.text.value;
    this.text.value = "";
    if (rest.trim()) this.say(`${rest} `);
    this.flush();
  }

  step() {
    const found = this.text.value.match(/^\s*\S+\s*/);
    if (!found) {
      this.stop();
      this.pasted = false;
      this.text.value = "";
      this.flush();
      return;
    }
    this.text.value = this.text.value.slice(found[0].length);
    this.say(`${found[0].trim()} `);
    this.playing = setTimeout(() => this.step(), 1000 / Number(this.speed.value));
  }

  stop() {
    clearTimeout(this.playing);
    this.playing = null;
    this.play.setAttribute("aria-pressed", "false");
    this.play.lastChild.data = "Play";
  }

  toggle() {
    if (this.playing) { this.stop(); return; }
    if (!this.text.value.trim()) { this.text.focus(); return; }
    this.play.setAttribute("aria-pressed", "true");
    this.play.lastChild.data = "Pause";
    this.step();
  }

  sample(language) {
    this.text.value = SAMPLES[language] ?? SAMPLES.de;
    this.pasted = true;
    if (!this.playing) this.toggle();
  }

  clear() {
    this.stop();
    this.text.value = "";
    this.pasted = false;
  }
}
