// Epochs and failures over time, and what happened, newest first.
import { el, svg, put, count, time, clock, tenths } from './format.js';
import { clockTicks } from './chart.js';

const glyphs = { kill: '†', exit: '×', failure: '×', epoch: '◆', restart: '↻', joined: '+', stopped: '‖', continued: '▸', checkpoint: '◇', coordinator: '⌂', resumed: '✓', error: '!', drill: '⚡', verdict: '➤', over: '✓', note: '·' };
const bad = new Set(['kill', 'exit', 'failure', 'error', 'verdict']);

export class Timeline {
  constructor(store) {
    this.store = store;
    this.box = document.getElementById('strip');
    this.picture = svg('svg', { role: 'img', 'aria-label': 'epochs and failures over time' });
    this.box.append(this.picture);
    new ResizeObserver(() => this.strip()).observe(this.box);
    this.shown = new Map();
  }

  draw() {
    this.strip();
    this.spreads();
    this.list();
  }

  // strip draws epochs as stretches of time, and under them failures and returns.
  strip() {
    const { store } = this;
    const w = this.box.clientWidth, h = this.box.clientHeight;
    if (!w || !store.summary) return;
    const origin = store.origin();
    const end = Math.max(1, store.elapsed() / 1e9);
    const sec = at => (Date.parse(at) - origin) / 1000;
    const left = 52, right = 6;
    const x = s => left + Math.max(0, Math.min(1, s / end)) * (w - left - right);
    const parts = [];
    const word = (text, px, py, anchor, cls) => {
      const t = svg('text', { x: px, y: py, 'text-anchor': anchor, class: cls });
      t.textContent = text;
      parts.push(t);
    };
    word('epochs', left - 8, 15, 'end');
    word('failures', left - 8, 41, 'end');
    store.epochs.forEach((e, i) => {
      const a = x(i === 0 ? Math.min(sec(e.at), sec(e.at)) : sec(e.at)), z = i + 1 < store.epochs.length ? x(sec(store.epochs[i + 1].at)) : x(end);
      const title = svg('title', {});
      title.textContent = `epoch ${e.number}: ${e.members} members from step ${e.step}${e.reason ? `, ${e.reason}` : ''}`;
      parts.push(svg('rect', { class: `span${e.number % 2 ? ' odd' : ''}`, x: a, y: 1, width: Math.max(1, z - a), height: 21, rx: 3 }, title));
      if (z - a > String(e.number).length * 7 + 8) word(String(e.number), (a + z) / 2, 15, 'middle', 'strong');
    });
    parts.push(svg('path', { class: 'grid', d: `M${left} 36.5H${w - right}` }));
    for (const e of store.events) {
      const at = sec(e.at);
      if (e.kind === 'resumed' && e.resume_ns) {
        const a = x(at - e.resume_ns / 1e9), z = x(at);
        parts.push(svg('rect', { class: 'gap', x: a, y: 31, width: Math.max(1.5, z - a), height: 12, rx: 2 }));
      }
      if (e.kind === 'failure' || e.kind === 'kill') {
        const px = x(at), title = svg('title', {});
        title.textContent = `${clock(at * 1e9)} ${e.kind}: ${e.text}`;
        parts.push(svg('path', { class: 'cross', d: `M${px - 4} 33l8 8m0 -8l-8 8` }, title));
      }
    }
    let last = -1e9;
    for (const s of clockTicks(0, end, Math.max(2, Math.floor((w - left) / 70)))) {
      const px = x(s), text = clock(s * 1e9), half = text.length * 3.4;
      if (px - half < last || px + half > w + 2) continue;
      last = px + half + 8;
      word(text, px, h - 8, 'middle');
    }
    this.picture.replaceChildren(...parts);
    this.picture.setAttribute('aria-label', `${store.epochs.length} epochs and ${store.summary.failures} failures in ${clock(store.elapsed())}`);
  }

  spreads() {
    const s = this.store.summary;
    const n = s.failures;
    put('time-read', `${count(n)} ${n === 1 ? 'failure' : 'failures'}, ${count(s.restarts)} ${s.restarts === 1 ? 'restart' : 'restarts'}`);
    const box = document.getElementById('spreads');
    if (!s.resume.count) { box.hidden = true; return; }
    box.hidden = false;
    const pair = (k, v) => el('div', {}, el('dt', {}, k), el('dd', {}, v));
    box.replaceChildren(pair('detect, median', time(s.detect.p50_ns)), pair('p99', time(s.detect.p99_ns)), pair('resume, median', time(s.resume.p50_ns)), pair('p99', time(s.resume.p99_ns)));
  }

  // list keeps the lines that are there, so that scrolling is not disturbed.
  list() {
    const box = document.getElementById('events');
    const rows = this.store.events.slice(-300);
    const known = new Set(rows.map(e => e.number));
    for (const [n, line] of this.shown) if (!known.has(n)) { line.remove(); this.shown.delete(n); }
    if (!rows.length) {
      box.replaceChildren(el('p', { class: 'empty' }, 'nothing has happened'));
      return;
    }
    if (!this.shown.size) box.replaceChildren();
    const origin = this.store.origin();
    for (const e of rows) {
      if (this.shown.has(e.number)) continue;
      const took = `known to all after ${time(e.detect_ns ?? 0)}, training again after ${time(e.resume_ns ?? 0)}`;
      const text = e.text || (e.kind === 'resumed' && e.resume_ns ? took : '');
      const line = el('li', { class: `k-${e.kind}` },
        el('time', { datetime: e.at }, tenths((Date.parse(e.at) - origin) * 1e6)),
        el('span', { class: 'glyph', 'aria-hidden': 'true' }, glyphs[e.kind] ?? '·'),
        el('p', {}, ...sentence(e, text)));
      line.title = `at step ${e.step}${e.resume_ns ? `; ${took}` : ''}`;
      box.prepend(line);
      this.shown.set(e.number, line);
    }
  }

  forget() {
    this.shown.clear();
    document.getElementById('events').replaceChildren();
  }
}

// sentence is the kind of an event, whose it is and its text, without saying
// anything twice that the text says itself.
function sentence(e, text) {
  const said = text.toLowerCase().startsWith(e.kind);
  const whose = e.id >= 0 && !new RegExp(`\\b(slot|rank) ${e.id}\\b`).test(text) ? ` slot ${e.id}` : '';
  const rest = said ? text.slice(e.kind.length) : text && ` ${text}`;
  return [el('span', { class: 'kind' }, e.kind), said ? rest + (whose && ` (${whose.trim()})`) : whose + rest];
}

// epochMarks has one mark for the epochs that began at the same step.
function epochMarks(epochs) {
  const list = [];
  for (const e of epochs) {
    const last = list.at(-1);
    if (last && last.x === e.step) last.text = `${last.text.split('–')[0]}–${e.number}`;
    else list.push({ x: e.step, kind: 'epoch', text: `e${e.number}` });
  }
  return list;
}

// marks are the points of a curve by step at which something happened.
export function marks(store) {
  return [
    ...store.checkpoints.filter(c => c.state === 'complete' || c.state === 'emergency').map(c => ({ x: c.step, kind: 'diamond', text: `checkpoint of step ${c.step}` })),
    ...epochMarks(store.epochs.slice(1)),
    ...store.events.filter(e => e.kind === 'verdict').map(e => ({ x: e.step, kind: 'flag', text: `verdict at step ${e.step}: ${e.text}` })),
    ...store.events.filter(e => bad.has(e.kind) && e.kind !== 'exit' && e.kind !== 'verdict').map(e => ({ x: e.step, kind: 'cross', text: `${e.kind} at step ${e.step}: ${e.text}` })),
  ];
}
