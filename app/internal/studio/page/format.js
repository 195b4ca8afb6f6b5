'use strict';
// Numbers and elements as people read them.

const $ = id => document.getElementById(id);

// el makes an element: el('b', {class: 'x', onclick: f}, 'text', child).
function el(tag, attrs, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs ?? {})) {
    if (v == null || v === false) continue;
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else if (k === 'style') Object.assign(e.style, v);
    else e.setAttribute(k, v === true ? '' : v);
  }
  e.append(...children.filter(c => c != null));
  return e;
}

function svgEl(tag, attrs, ...children) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [k, v] of Object.entries(attrs ?? {})) {
    if (v == null || v === false) continue;
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v); else e.setAttribute(k, v);
  }
  e.append(...children);
  return e;
}

// digits writes three figures, as many as people compare by.
function digits(v, n = 3) {
  if (!isFinite(v)) return '–';
  if (v === 0) return '0';
  const places = Math.max(0, n - 1 - Math.floor(Math.log10(Math.abs(v))));
  return Math.abs(v) >= 10 ** n ? Math.round(v).toLocaleString('en') : v.toFixed(Math.min(places, 6));
}

function duration(ps) {
  const s = ps / 1e12;
  for (const [f, u] of [[1, 's'], [1e3, 'ms'], [1e6, 'µs'], [1e9, 'ns']]) if (Math.abs(s) * f >= 1) return digits(s * f) + ' ' + u;
  return ps ? digits(s * 1e9) + ' ns' : '0';
}

function seconds(s) { return s >= 3600 ? digits(s / 3600) + ' h' : s >= 100 ? digits(s) + ' s' : duration(s * 1e12); }

function byteSize(n) {
  for (const [f, u] of [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']]) if (n >= f) return digits(n / f) + ' ' + u;
  return n + ' B';
}

function rateText(bytes) { return bytes >= 1e12 ? digits(bytes / 1e12) + ' TB/s' : bytes >= 1e9 ? digits(bytes / 1e9) + ' GB/s' : digits(bytes / 1e6) + ' MB/s'; }
function gigabytes(n) { return digits(n / 1e9) + ' GB'; }
function percent(v) { return digits(100 * v, 3) + '%'; }
function countText(n) { return Math.round(n).toLocaleString('en'); }

// roundTicks are round numbers that cover a range.
function roundTicks(lo, hi, wanted) {
  const raw = (hi - lo) / Math.max(1, wanted) || 1, mag = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(f => f * mag).find(s => s >= raw * (1 - 1e-9));
  const list = [];
  for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + step * 1e-9; i++) list.push(i * step);
  return list;
}

// unpack reads numbers that the engine packed: int32 in base64.
function unbase(text) { return Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), c => c.charCodeAt(0)); }
function unpack(text) { return new Int32Array(unbase(text).buffer); }
function unpackLong(text) { return new Float64Array(unbase(text).buffer); }

// unpackTrace reads the columns of a trace in place.
function unpackTrace(t) {
  for (const k of ['rank', 'channel', 'from', 'to', 'op', 'pair', 'starts', 'routes', 'nodes', 'chain']) t[k] = unpack(t[k]);
  t.link_load = unbase(t.link_load ?? '');
  for (const k of ['bytes', 'begin_ps', 'flow_ps', 'end_ps', 'latency_ps']) t[k] = unpackLong(t[k]);
  return t;
}

let toastEnd = 0;
function toast(text) {
  const n = $('note');
  n.textContent = text;
  n.hidden = false;
  clearTimeout(toastEnd);
  toastEnd = setTimeout(() => { n.hidden = true; }, 4000);
}

// colours reads a token of the stylesheet as the browser resolves it, light or dark.
const colourCache = new Map();
let colourProbe = null;
function colour(name) {
  let c = colourCache.get(name);
  if (c) return c;
  if (!colourProbe) { colourProbe = el('i', { class: 'hush', 'aria-hidden': 'true' }); document.body.append(colourProbe); }
  colourProbe.style.color = 'var(--' + name + ')';
  c = getComputedStyle(colourProbe).color;
  colourCache.set(name, c);
  return c;
}
function rgb(name) { return (colour(name).match(/[\d.]+/g) ?? [0, 0, 0]).slice(0, 3).map(Number); }
function mixed(a, b, share) { const x = rgb(a), y = rgb(b); return `rgb(${x.map((v, i) => Math.round(v + (y[i] - v) * share)).join(',')})`; }
function forgetColours() { colourCache.clear(); }

const stillness = matchMedia('(prefers-reduced-motion: reduce)');
