// A session as text, subtitles, or lines of JSON that can be replayed.

const two = (n, width = 2) => String(n).padStart(width, "0");

export function timestamp(seconds, comma) {
  const ms = Math.round(1000 * seconds);
  const [h, m, s] = [Math.floor(ms / 3600000), Math.floor(ms / 60000) % 60, Math.floor(ms / 1000) % 60];
  return `${two(h)}:${two(m)}:${two(s)}${comma ? "," : "."}${two(ms % 1000, 3)}`;
}

// Captions of at most 12 words, that stay until the next one or for 4 seconds.
export function captions(words) {
  const found = [];
  for (const word of words) {
    const last = found.at(-1);
    if (last && last.sentence === word.sentence && last.words.length < 12) {
      last.words.push(word.text);
      last.end = word.time;
    } else {
      found.push({ sentence: word.sentence, start: word.time, end: word.time, words: [word.text] });
    }
  }
  return found.map((caption, n) => {
    const end = Math.min(caption.end + 4, found[n + 1]?.start ?? Infinity);
    return { ...caption, end: Math.max(end, caption.start + 0.2), text: caption.words.join("").trim() };
  });
}

export function srt(words) {
  return captions(words).map(({ start, end, text }, n) =>
    `${n + 1}\n${timestamp(start, true)} --> ${timestamp(end, true)}\n${text}\n`).join("\n");
}

export function vtt(words) {
  const cues = captions(words).map(({ start, end, text }) =>
    `${timestamp(start)} --> ${timestamp(end)}\n${text.replace(/&/g, "&amp;").replace(/</g, "&lt;")}\n`);
  return `WEBVTT\n\n${cues.join("\n")}`;
}

export const jsonl = (records) => records.map((record) => JSON.stringify(record)).join("\n") + "\n";

export function parse(text) {
  const records = text.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line));
  if (!records.length || !records.every((r) => typeof r.at === "number" && r.type)) throw new Error();
  return records;
}

export function save(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
