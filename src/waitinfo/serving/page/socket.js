// Sockets of this server, and what they need. Secrets stand behind the # and travel as subprotocols: addresses are logged.

const escape = (text) => encodeURIComponent(text).replace(/[()]/g, (c) => `%${c.charCodeAt(0).toString(16)}`);

function protocols(pin) {
  const given = new URLSearchParams(location.hash.slice(1));
  const name = ["ticket", "key"].find((each) => given.has(each));
  const found = [];
  if (name) found.push(`waitinfo-${name}.${escape(given.get(name))}`);
  if (pin) found.push(`waitinfo-pin.${escape(pin)}`);
  return found;
}

export function connect(path, query = {}, pin = "") {
  const url = new URL(path, location.href);
  url.protocol = url.protocol.replace("http", "ws");
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  const names = protocols(pin);
  return names.length ? new WebSocket(url, ["waitinfo", ...names]) : new WebSocket(url);
}

// Why a socket would be refused: {reason, error}; null if it would not. Browsers do not tell.
export async function refusal(query = {}, pin = "") {
  try {
    const headers = { "Waitinfo-Protocols": protocols(pin).join(", ") };
    const response = await fetch(`/v1/access?${new URLSearchParams(query)}`, { headers, cache: "no-store" });
    return response.ok ? null : await response.json();
  } catch { return null; }
}

// Reasons that do not pass by themselves.
export const lasting = (refused) => ["key", "ticket", "pin", "origin", "room"].includes(refused?.reason);

// A secret that nobody can guess, in letters and digits.
export function secret(length = 16) {
  return Array.from(crypto.getRandomValues(new Uint8Array(length)), (n) => n.toString(16).padStart(2, "0")).join("");
}

// What this browser keeps; one that keeps nothing goes on without.
export function recall(name) {
  try { return localStorage.getItem(`waitinfo-${name}`); } catch { return null; }
}

export function keep(name, value) {
  try { localStorage.setItem(`waitinfo-${name}`, value); } catch { /* it is forgotten */ }
}

// The name of a language in that language.
export function language(code) {
  if (!code) return "?";
  try {
    const name = new Intl.DisplayNames([code], { type: "language" }).of(code);
    return name.charAt(0).toLocaleUpperCase(code) + name.slice(1);
  } catch { return code; }
}

// The models of the server; an error says why there are none.
export async function available() {
  let response;
  try {
    response = await fetch("/v1/models", { headers: { "Waitinfo-Protocols": protocols().join(", ") } });
  } catch { throw new Error("the server cannot be reached; trying again …"); }
  const found = await response.json();
  if (!response.ok) throw Object.assign(new Error(found.error), found);
  return found;
}

// "Deutsch → English", with the name of the model where there are several.
export function pairs(models) {
  const found = models.map(({ source, target }) => `${language(source)} → ${language(target)}`);
  return found.map((pair, n) => (found.indexOf(pair) === found.lastIndexOf(pair) ? pair : `${pair} (${models[n].name})`));
}
