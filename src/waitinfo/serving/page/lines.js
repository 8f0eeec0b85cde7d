// Lines that people can read: as waitinfo.listening.captions makes them, in the browser.

export const WIDTH = 42;      // of a line, in letters; ideographs count twice
const LINES = 2, SHORTEST = 1, LONGEST = 7, FEW = 12, RATE = 17;
// Words before which a line may break, because a clause begins there.
const CLAUSES = new Set(("and but or because that which who when while if although though where so than "
  + "und aber oder weil dass die der das wenn während obwohl wo denn als sondern ob").split(" "));
const STRONG = /[.!?…;:,–—。！？、，]["'”’»)]*$/u;
const WIDE = /[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;
// Scripts without spaces: a line may break after any letter.
const UNSPACED = /([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3001-\u303f\u3040-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uaa60-\uaa7f\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff9f\u{1b000}-\u{1b16f}\u{20000}-\u{323af}])/u;

export function width(text) {
  let sum = 0;
  for (const char of text) sum += WIDE.test(char) ? 2 : 1;
  return sum;
}

// What it costs to break between two words: least where a clause ends.
function price(before, after) {
  if (after === undefined || STRONG.test(before)) return 0;
  return CLAUSES.has(after.toLowerCase()) ? 0.4 : 0.7;
}

// What cannot be broken, with the space before it.
function atoms(text) {
  const found = [];
  for (const word of text.split(/\s+/u).filter(Boolean)) {
    let space = " ";
    for (const part of word.split(UNSPACED).filter(Boolean)) {
      let rest = "";
      const put = () => { found.push({ space, text: rest }); space = ""; rest = ""; };
      for (const char of part) {
        if (width(rest + char) > WIDTH) put();
        rest += char;
      }
      put();
    }
  }
  return found;
}

const joined = (parts) => parts.map(({ space, text }) => space + text).join("").trim();

// One or two lines with what they cost, if there is room.
function lines(parts) {
  const whole = joined(parts);
  if (width(whole) <= WIDTH) return [0, [whole]];
  let best = null;
  for (let at = 1; at < parts.length; at += 1) {
    const [first, second] = [joined(parts.slice(0, at)), joined(parts.slice(at))];
    if (width(first) > WIDTH || width(second) > WIDTH) continue;
    const cost = Math.abs(width(first) - width(second)) / WIDTH + price(parts[at - 1].text, parts[at].text);
    if (!best || cost < best[0]) best = [cost, [first, second]];
  }
  return best;
}

// The lines of the cues of a text: few, balanced, and ending where clauses do.
export function layout(text) {
  const all = atoms(text);
  const best = [[0, 0, []]];
  for (let end = 1; end <= all.length; end += 1) {
    let way = null;
    for (let begin = end - 1; begin >= 0; begin -= 1) {
      const size = width(joined(all.slice(begin, end)));
      if (size > LINES * WIDTH + 1) break;
      const found = lines(all.slice(begin, end));
      if (!found) continue;
      const cost = best[begin][0] + 1 + found[0] + (size < FEW ? 1 : 0) + price(all[end - 1].text, all[end]?.text);
      if (!way || cost < way[0] || (cost === way[0] && begin < way[1])) way = [cost, begin, found[1]];
    }
    best.push(way);
  }
  const cues = [];
  for (let end = all.length; end > 0; end = best[end][1]) cues.unshift(best[end][2]);
  return cues;
}

const size = (cue) => cue.lines.reduce((sum, line) => sum + width(line), 0);

function divide({ text, start, end }) {
  const parts = layout(text).map((each) => ({ lines: each }));
  const total = parts.reduce((sum, part) => sum + size(part), 0);
  let done = 0;
  return parts.map((part) => {
    const from = start + ((end - start) * done) / total;
    done += size(part);
    return { ...part, start: from, end: start + ((end - start) * done) / total };
  });
}

// Two cues as one, if one of them is a word or two and both fit.
function join(first, second) {
  const short = Math.min(size(first), size(second)) < FEW;
  const near = second.start - first.end < SHORTEST && second.end - first.start <= LONGEST;
  const parts = short && near ? layout([...first.lines, ...second.lines].join(" ")) : [];
  return parts.length === 1 ? { start: first.start, end: second.end, lines: parts[0] } : null;
}

function lengthen(cue, limit) {
  const wanted = Math.max(cue.end, cue.start + Math.max(SHORTEST, Math.min(LONGEST, size(cue) / RATE)));
  return { ...cue, end: Math.max(Math.min(wanted, limit), cue.start + 0.1) };
}

// Subtitles of sentences {text, start, end}.
export function cues(sentences) {
  const found = [];
  for (const cue of sentences.flatMap(divide)) {
    const both = found.length ? join(found.at(-1), cue) : null;
    if (both) found[found.length - 1] = both; else found.push(cue);
  }
  return found.map((cue, n) => lengthen(cue, found[n + 1]?.start ?? cue.end + LONGEST));
}

// Words that come one by one, in lines that never change: a line ends early where a clause does.
export class Lines {
  constructor(fits = () => true) {
    this.fits = fits;         // whether a text has room in a line, as it is drawn
    this.clear();
  }

  clear() { this.lines = [""]; this.sentence = null; }

  add({ text, sentence }) {
    const line = this.lines.at(-1);
    const parts = atoms(text);
    if (parts.length && !/^\s/u.test(text)) parts[0].space = "";
    if (line && this.sentence !== null && sentence !== this.sentence && parts.length) this.lines.push("");
    this.sentence = sentence;
    parts.forEach((part) => this.put(part));
  }

  // How many letters of a text have room in a line of their own: at least one.
  room(letters) {
    let count = letters.length;
    while (count > 1 && !this.fits(letters.slice(0, count).join(""))) count -= 1;
    return count;
  }

  put({ space, text }) {
    const letters = [...text], room = this.room(letters);
    if (room < letters.length) {
      this.put({ space, text: letters.slice(0, room).join("") });
      this.put({ space: "", text: letters.slice(room).join("") });
      return;
    }
    const line = this.lines.at(-1);
    const last = line.split(" ").at(-1);
    const full = width(line + space + text) > WIDTH || !this.fits(line + space + text);
    const cost = price(last, text);
    const early = (cost === 0 && width(line) >= 0.6 * WIDTH) || (cost < 0.5 && width(line) >= 0.75 * WIDTH);
    if (line && (full || (space && early))) this.lines.push(text);
    else this.lines[this.lines.length - 1] = line + (line ? space : "") + text;
  }
}
