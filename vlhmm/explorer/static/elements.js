// Elements, numbers as text, and packed columns. No HTML is ever parsed: all text goes in as text.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

function element(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

function svgElement(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG_NAMESPACE, tag), properties, children);
}

function filled(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

function button(text, onclick, properties = {}) {
  return element("button", { type: "button", onclick, ...properties }, text);
}

const counts = new Intl.NumberFormat("en");

function count(value) {
  return counts.format(Math.round(value));
}

function fixed(value, digits) {
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// Of an expected number of tokens: 1,234 or 12.3.
function amount(value) {
  return value >= 100 ? count(value) : fixed(value, 1);
}

function probability(value) {
  if (value === null) return "–";
  if (value >= 0.0995 || value === 0) return fixed(value, 2);
  return value >= 0.00095 ? fixed(value, 3) : value.toExponential(0);
}

// JSON has no infinity: null is a log-probability of minus infinity.
function nats(logProb) {
  return logProb === null ? "∞" : fixed(Math.abs(logProb), 2);
}

function shortened(text, length) {
  const letters = [...text];
  return letters.length > length ? letters.slice(0, length - 1).join("") + "…" : text;
}

// Which byte each letter of a byte-level vocabulary stands for: printable ones for themselves.
const BYTE_OF_LETTER = (() => {
  const printable = (byte) => (byte >= 0x21 && byte < 0x7f) || (byte >= 0xa1 && byte !== 0xad);
  let others = 0;
  return new Map(Array.from({ length: 256 }, (_, byte) => [String.fromCodePoint(printable(byte) ? byte : 256 + others++), byte]));
})();

// UTF-8 as text, with `<0xE2>` for a byte that belongs to no whole character.
function shownBytes(bytes) {
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let text = "";
  for (let place = 0; place < bytes.length; ) {
    const length = bytes[place] < 0xc0 ? 1 : bytes[place] < 0xe0 ? 2 : bytes[place] < 0xf0 ? 3 : 4;
    try {
      text += decoder.decode(bytes.slice(place, place + length));
      place += length;
    } catch {
      text += `<0x${bytes[place].toString(16).toUpperCase()}>`;
      place += 1;
    }
  }
  return text;
}

// The text of pieces of words, which write a space or each byte by a letter of their own.
function spelled(name, byteLevel) {
  const bytes = byteLevel ? Array.from(name, (letter) => BYTE_OF_LETTER.get(letter)) : [];
  const decoded = byteLevel && !bytes.includes(undefined) ? shownBytes(Uint8Array.from(bytes)) : name;
  return decoded.replace(/▁/g, " ").replace(/\n/g, "⏎");
}

const COLUMN_TYPES = { int8: Int8Array, int16: Int16Array, int32: Int32Array, float32: Float32Array };

// A column that Python packed; the bytes are little-endian, as those of every browser's machine are today.
function unpacked({ type, shape, base64 }) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return { values: new COLUMN_TYPES[type](bytes.buffer), width: shape[1] ?? 1 };
}

// The entries of one row that stand for something: `[index, probability]`.
function entries(indices, probs, row) {
  const found = [];
  for (let place = row * indices.width; place < (row + 1) * indices.width; place += 1) {
    if (indices.values[place] >= 0) found.push([indices.values[place], probs.values[place]]);
  }
  return found;
}

// Keeps `index` on the list of a widget whose arrow keys move a selection.
function arrowKeys(event, length, current, keys = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }) {
  if (event.key === "Home") return 0;
  if (event.key === "End") return length - 1;
  const step = keys[event.key];
  return step === undefined ? null : Math.min(length - 1, Math.max(0, current + step));
}
