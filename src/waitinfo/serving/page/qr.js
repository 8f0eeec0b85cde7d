// A QR code (ISO/IEC 18004) of a text: bytes, error correction M, versions 1 to 20.

const CHECKS = [0, 10, 16, 26, 18, 24, 16, 18, 22, 22, 26, 30, 22, 22, 24, 24, 28, 28, 26, 26, 26];  // of a block
const BLOCKS = [0, 1, 1, 1, 2, 2, 4, 4, 4, 5, 5, 5, 8, 9, 9, 10, 10, 11, 13, 14, 16];
const MASKS = [
  (x, y) => (x + y) % 2, (x, y) => y % 2, (x) => x % 3, (x, y) => (x + y) % 3,
  (x, y) => (Math.floor(x / 3) + Math.floor(y / 2)) % 2, (x, y) => ((x * y) % 2) + ((x * y) % 3),
  (x, y) => (((x * y) % 2) + ((x * y) % 3)) % 2, (x, y) => (((x + y) % 2) + ((x * y) % 3)) % 2,
];

// Codewords of a version, with those that correct errors.
function codewords(version) {
  let bits = (16 * version + 128) * version + 64;
  if (version > 1) {
    const marks = Math.floor(version / 7) + 2;
    bits -= (25 * marks - 10) * marks - 55;
    if (version > 6) bits -= 36;
  }
  return Math.floor(bits / 8);
}

const capacity = (version) => codewords(version) - CHECKS[version] * BLOCKS[version];

// Multiplication in GF(256).
function times(a, b) {
  let found = 0;
  for (let bit = 7; bit >= 0; bit -= 1) found = (found << 1) ^ ((found >> 7) * 0x11d) ^ (((b >> bit) & 1) * a);
  return found;
}

// The coefficients of (x - 1)(x - 2)(x - 4)…, the first one left out.
function generator(degree) {
  const found = [...Array(degree - 1).fill(0), 1];
  for (let root = 1, n = 0; n < degree; n += 1, root = times(root, 2)) {
    for (let at = 0; at < degree; at += 1) found[at] = times(found[at], root) ^ (found[at + 1] ?? 0);
  }
  return found;
}

function checks(data, divisor) {
  const found = divisor.map(() => 0);
  for (const byte of data) {
    const factor = byte ^ found.shift();
    found.push(0);
    divisor.forEach((each, at) => { found[at] ^= times(each, factor); });
  }
  return found;
}

function content(text, version) {
  const bytes = new TextEncoder().encode(text);
  const bits = [];
  const put = (value, count) => { for (let n = count - 1; n >= 0; n -= 1) bits.push((value >> n) & 1); };
  put(4, 4);
  put(bytes.length, version < 10 ? 8 : 16);
  bytes.forEach((byte) => put(byte, 8));
  const room = 8 * capacity(version);
  put(0, Math.min(4, room - bits.length));
  put(0, (8 - (bits.length % 8)) % 8);
  for (let pad = 0xec; bits.length < room; pad ^= 0xec ^ 0x11) put(pad, 8);
  return Array.from({ length: room / 8 }, (_, n) => parseInt(bits.slice(8 * n, 8 * n + 8).join(""), 2));
}

// Data and checks of all blocks, by turns.
function interleave(data, version) {
  const [count, divisor] = [BLOCKS[version], generator(CHECKS[version])];
  const longer = data.length % count, short = Math.floor(data.length / count);
  const blocks = [], all = [];
  for (let n = 0, at = 0; n < count; n += 1) {
    const part = data.slice(at, at += short + (n >= count - longer ? 1 : 0));
    blocks.push([part, checks(part, divisor)]);
  }
  for (let at = 0; at <= short; at += 1) all.push(...blocks.map(([part]) => part[at]));
  for (let at = 0; at < divisor.length; at += 1) all.push(...blocks.map(([, check]) => check[at]));
  return all.filter((byte) => byte !== undefined);
}

// The bits of a number, with the remainder of a division by a polynomial behind them.
function remaindered(value, bits, polynomial) {
  let rest = value;
  for (let n = 0; n < bits; n += 1) rest = (rest << 1) ^ ((rest >> (bits - 1)) * polynomial);
  return (value << bits) | rest;
}

class Grid {
  constructor(version) {
    this.size = 17 + 4 * version;
    this.dark = Array.from({ length: this.size }, () => Array(this.size).fill(0));
    this.fixed = Array.from({ length: this.size }, () => Array(this.size).fill(false));
    this.patterns(version);
  }

  put(x, y, dark) {
    if (x < 0 || y < 0 || x >= this.size || y >= this.size) return;
    this.dark[y][x] = dark ? 1 : 0;
    this.fixed[y][x] = true;
  }

  square(x, y, reach, ...light) {   // rings around a centre, dark but for some
    for (let dy = -reach; dy <= reach; dy += 1) {
      for (let dx = -reach; dx <= reach; dx += 1) {
        this.put(x + dx, y + dy, !light.includes(Math.max(Math.abs(dx), Math.abs(dy))));
      }
    }
  }

  patterns(version) {
    const { size } = this;
    for (let n = 0; n < size; n += 1) { this.put(6, n, n % 2 === 0); this.put(n, 6, n % 2 === 0); }
    for (const [x, y] of [[3, 3], [size - 4, 3], [3, size - 4]]) this.square(x, y, 4, 2, 4);
    const marks = version > 1 ? Math.floor(version / 7) + 2 : 0;
    const step = 2 * Math.ceil((4 * version + 4) / (2 * marks - 2));
    const places = Array.from({ length: marks }, (_, n) => (n ? size - 7 - step * (marks - 1 - n) : 6));
    for (const x of places) {
      for (const y of places) {
        if ([[6, 6], [6, size - 7], [size - 7, 6]].some(([a, b]) => a === x && b === y)) continue;
        this.square(x, y, 2, 1);
      }
    }
    if (version > 6) {
      const bits = remaindered(version, 12, 0x1f25);
      for (let n = 0; n < 18; n += 1) {
        const [a, b] = [size - 11 + (n % 3), Math.floor(n / 3)];
        this.put(a, b, (bits >> n) & 1);
        this.put(b, a, (bits >> n) & 1);
      }
    }
    this.format(0);
  }

  format(mask) {            // error correction M is 0
    const { size } = this;
    const bits = remaindered(mask, 10, 0x537) ^ 0x5412;
    for (let n = 0; n < 15; n += 1) {
      const dark = (bits >> n) & 1;
      if (n < 6) this.put(8, n, dark);
      else if (n < 8) this.put(8, n + 1, dark);
      else if (n === 8) this.put(7, 8, dark);
      else this.put(14 - n, 8, dark);
      if (n < 8) this.put(size - 1 - n, 8, dark);
      else this.put(8, size - 15 + n, dark);
    }
    this.put(8, size - 8, true);
  }

  // Two columns at a time from the right, upwards and downwards by turns.
  fill(bytes) {
    let bit = 0;
    for (let right = this.size - 1; right > 0; right -= 2) {
      if (right === 6) right = 5;
      for (let n = 0; n < this.size; n += 1) {
        const y = ((right + 1) & 2) === 0 ? this.size - 1 - n : n;
        for (const x of [right, right - 1]) {
          if (this.fixed[y][x]) continue;
          this.dark[y][x] = (bytes[bit >> 3] >> (7 - (bit & 7))) & 1;
          bit += 1;
        }
      }
    }
  }

  mask(number) {
    for (let y = 0; y < this.size; y += 1) {
      for (let x = 0; x < this.size; x += 1) {
        if (!this.fixed[y][x] && MASKS[number](x, y) === 0) this.dark[y][x] ^= 1;
      }
    }
    this.format(number);
  }

  // How badly it is read: long runs, squares, patterns like those of the corners, too much of a colour.
  penalty() {
    const { size, dark } = this;
    const rows = dark.map((row) => row.join(""));
    const columns = dark.map((_, x) => dark.map((row) => row[x]).join(""));
    let sum = 0;
    for (const line of [...rows, ...columns]) {
      for (const run of line.match(/0{5,}|1{5,}/g) ?? []) sum += run.length - 2;
      sum += 40 * (line.match(/(?=00001011101|10111010000)/g) ?? []).length;
    }
    for (let y = 1; y < size; y += 1) {
      for (let x = 1; x < size; x += 1) {
        const four = dark[y][x] + dark[y][x - 1] + dark[y - 1][x] + dark[y - 1][x - 1];
        if (four % 4 === 0) sum += 3;
      }
    }
    const share = dark.flat().reduce((a, b) => a + b, 0) / size ** 2;
    return sum + 10 * Math.floor(Math.abs(20 * share - 10));
  }
}

// Rows of 0 and 1, or null if the text is too long.
export function encode(text) {
  const length = new TextEncoder().encode(text).length;
  const version = BLOCKS.findIndex((_, n) => n > 0 && length + (n < 10 ? 2 : 3) <= capacity(n));
  if (version < 1) return null;
  const bytes = interleave(content(text, version), version);
  const grids = MASKS.map((_, number) => {
    const grid = new Grid(version);
    grid.fill(bytes);
    grid.mask(number);
    return grid;
  });
  return grids.reduce((best, grid) => (grid.penalty() < best.penalty() ? grid : best)).dark;
}

// An SVG element, dark on white with the quiet border that readers need.
export function draw(text) {
  const rows = encode(text);
  if (!rows) return null;
  const make = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const side = rows.length + 8;
  const path = rows.flatMap((row, y) => row.map((dark, x) => (dark ? `M${x + 4} ${y + 4}h1v1h-1z` : ""))).join("");
  const svg = make("svg", { viewBox: `0 0 ${side} ${side}`, role: "img", "aria-label": `QR code of ${text}`, "shape-rendering": "crispEdges" });
  svg.append(make("rect", { width: side, height: side, fill: "#fff" }), make("path", { d: path, fill: "#000" }));
  return svg;
}
