// The last sessions, kept in this browser and nowhere else.

const NAME = "waitinfo-sessions";
const MOST = 20;

export function sessions() {
  try { return JSON.parse(localStorage.getItem(NAME)) ?? []; } catch { return []; }
}

export function forget() {
  try { localStorage.removeItem(NAME); } catch { /* a browser that keeps nothing */ }
}

// Add a session, or replace it by its longer self; the oldest ones go if there is no room.
export function keep(when, records) {
  const text = records.filter((r) => r.type === "text").map((r) => r.text).join("").trim();
  if (!text) return;
  const others = sessions().filter((session) => session.when !== when);
  let kept = [{ when, title: text.slice(0, 40), records }, ...others].slice(0, MOST);
  while (kept.length) {
    try { localStorage.setItem(NAME, JSON.stringify(kept)); return; } catch { kept = kept.slice(0, -1); }
  }
}
