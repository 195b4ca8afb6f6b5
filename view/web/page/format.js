// Numbers as the page writes them.

const thousands = new Intl.NumberFormat('en-US');

export const count = n => n == null ? '–' : thousands.format(Math.round(n));

// large writes 12,345 in full and 1,234,567 as 1.23 M.
export function large(n) {
  if (n == null) return '–';
  if (n >= 1e12) return digits(n / 1e12) + ' T';
  if (n >= 1e9) return digits(n / 1e9) + ' G';
  if (n >= 1e6) return digits(n / 1e6) + ' M';
  if (n >= 100) return count(n);
  return n === 0 ? '0' : digits(n);
}

// digits keeps three of them.
export function digits(x) {
  const a = Math.abs(x);
  return x.toFixed(a >= 99.95 ? 0 : a >= 9.995 ? 1 : a >= 0.9995 ? 2 : 3);
}

// span writes nanoseconds with a unit: ['41.2', 'ms'].
export function span(ns) {
  const a = Math.abs(ns);
  if (a >= 60e9) return [clock(ns), ''];
  if (a >= 1e9) return [digits(ns / 1e9), 's'];
  if (a >= 1e6) return [digits(ns / 1e6), 'ms'];
  if (a >= 1e3) return [digits(ns / 1e3), 'µs'];
  return [ns === 0 ? '0' : String(Math.round(ns)), ns === 0 ? 'ms' : 'ns'];
}

export const time = ns => span(ns).join(' ').trim();

// clock writes 1:02:03, 2:03.
export function clock(ns) {
  const s = Math.max(0, Math.floor(ns / 1e9));
  const two = n => String(n).padStart(2, '0');
  const h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
  return h ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`;
}

// tenths writes 2:03.4, and no tenths beyond an hour.
export const tenths = ns => ns >= 3600e9 ? clock(ns) : `${clock(ns)}.${Math.floor(Math.max(0, ns) / 1e8) % 10}`;

// size writes bytes in powers of two: 25.0 MiB.
export function size(bytes) {
  if (!bytes) return '0 B';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  const i = Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
  const x = bytes / 1024 ** i;
  return `${Number.isInteger(x) ? x : digits(x)} ${units[i]}`;
}

export function loss(x) {
  if (x == null) return '–';
  const a = Math.abs(x);
  return a >= 1e4 ? x.toExponential(2) : a >= 100 ? x.toFixed(1) : a >= 0.01 ? x.toFixed(3) : x.toPrecision(3);
}

// Signs of states: never colour alone.
export const states = ['healthy', 'starting', 'suspect', 'failed', 'recovering', 'left'];
export const signs = { healthy: '', starting: '▸', suspect: '?', failed: '×', recovering: '↻', left: '–' };
export const sign = state => signs[state] ?? '·';

// el makes an element; text is text, never markup.
export function el(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes ?? {})) if (v != null) e.setAttribute(k, v);
  e.append(...children.filter(c => c != null));
  return e;
}

// svg makes an element of a picture.
export function svg(name, attributes, ...children) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [k, v] of Object.entries(attributes ?? {})) if (v != null) e.setAttribute(k, v);
  e.append(...children.filter(c => c != null));
  return e;
}

// put changes a text only if it differs, so that nothing is laid out twice.
export function put(id, text) {
  const e = typeof id === 'string' ? document.getElementById(id) : id;
  if (e.textContent !== text) e.textContent = text;
  return e;
}
