// Lateness: ranks down, steps across, colour by microseconds after the first.
import { el, put, count, time } from './format.js';

// Colours from none to most, in order of lightness so that they can be told
// apart without seeing hues: towards ink on paper, towards light in the dark.
const light = [[246, 245, 241], [214, 228, 226], [150, 196, 206], [72, 150, 176], [20, 92, 132], [46, 26, 72]];
const dark = [[27, 32, 37], [30, 58, 76], [24, 98, 122], [52, 148, 148], [142, 200, 130], [250, 236, 140]];

const rowsShown = 400; // pixels of height; more ranks than that share rows

function ramp(colours, x) {
  const at = Math.max(0, Math.min(1, x)) * (colours.length - 1), i = Math.min(colours.length - 2, Math.floor(at)), f = at - i;
  return colours[i].map((c, k) => Math.round(c + (colours[i + 1][k] - c) * f));
}

// top is the end of the scale: 1, 2 or 5 times a power of ten that covers all
// but the highest half percent.
export function top(values) {
  if (!values.length) return 1000;
  const sorted = Float64Array.from(values).sort();
  const high = Math.max(100, sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * 0.995))]);
  const mag = 10 ** Math.floor(Math.log10(high));
  return [1, 2, 5, 10].map(f => f * mag).find(x => x >= high);
}

export class Heat {
  constructor(store) {
    this.store = store;
    this.canvas = document.getElementById('late');
    this.small = document.createElement('canvas');
    this.at = null;
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentNode);
    this.canvas.addEventListener('pointermove', e => {
      const box = this.canvas.getBoundingClientRect();
      this.point(e.clientX - box.left, e.clientY - box.top);
    });
    this.canvas.addEventListener('pointerleave', () => this.move(null));
    this.canvas.addEventListener('blur', () => this.move(null));
    this.canvas.addEventListener('keydown', e => {
      const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-1e9, 0], End: [1e9, 0], PageUp: [0, -20], PageDown: [0, 20] }[e.key];
      if (!by || !this.plan) return;
      e.preventDefault();
      const [c, r] = this.at ?? [this.plan.columns.length - 1, 0];
      this.move([Math.max(0, Math.min(this.plan.columns.length - 1, c + by[0])), Math.max(0, Math.min(this.plan.rows - 1, r + by[1]))]);
    });
  }

  draw() {
    const { ids, columns } = this.store.late;
    const width = this.canvas.parentNode.clientWidth - 32;
    if (width <= 0) return;
    if (!columns.length) {
      this.canvas.hidden = true;
      document.getElementById('late-key').replaceChildren(el('span', { class: 'faint' }, 'no step yet'));
      this.plan = null;
      return;
    }
    this.canvas.hidden = false;
    const share = Math.ceil(ids.length / rowsShown); // ranks of one row
    const rows = Math.ceil(ids.length / share);
    const each = Math.max(1, Math.min(rows <= 8 ? Math.floor(280 / Math.max(rows, 4)) : 34, Math.floor(rowsShown / rows)));
    const left = 42, bottom = 20, slots = Math.max(60, columns.length);
    const h = rows * each, cw = (width - left) / slots;
    this.plan = { ids, columns, share, rows, each, left, h, cw, width, height: h + bottom };
    this.fill();
    this.paint();
    this.key();
    put('late-about', share > 1 ? `How long after the first rank each one came to the end of a step; a row is the latest of ${share} ranks.` : 'How long after the first rank each one came to the end of a step.');
  }

  // fill puts the colours into a small picture, one pixel a cell.
  fill() {
    const { columns, share, rows } = this.plan;
    const worst = columns.map(c => {
      const list = new Float64Array(rows).fill(-1);
      c.late_us.forEach((us, i) => { if (us != null) list[Math.floor(i / share)] = Math.max(list[Math.floor(i / share)], us); });
      return list;
    });
    const values = [];
    for (const list of worst) for (const v of list) if (v >= 0) values.push(v);
    this.plan.worst = worst;
    this.plan.top = top(values);
    const night = this.night();
    const colours = night ? dark : light;
    const table = Array.from({ length: 256 }, (_, i) => ramp(colours, i / 255));
    this.small.width = columns.length;
    this.small.height = rows;
    const g = this.small.getContext('2d');
    const image = g.createImageData(columns.length, rows);
    worst.forEach((list, c) => list.forEach((v, r) => {
      if (v < 0) return;
      const at = 4 * (r * columns.length + c);
      const [red, green, blue] = table[Math.round(255 * Math.sqrt(Math.min(1, v / this.plan.top)))];
      image.data[at] = red; image.data[at + 1] = green; image.data[at + 2] = blue; image.data[at + 3] = 255;
    }));
    g.putImageData(image, 0, 0);
  }

  night() {
    const theme = document.documentElement.dataset.theme;
    return theme ? theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  }

  paint() {
    const p = this.plan;
    const ratio = devicePixelRatio || 1;
    this.canvas.style.height = `${p.height}px`;
    this.canvas.width = Math.round(p.width * ratio);
    this.canvas.height = Math.round(p.height * ratio);
    const g = this.canvas.getContext('2d');
    g.scale(ratio, ratio);
    const style = getComputedStyle(this.canvas);
    g.imageSmoothingEnabled = false;
    g.drawImage(this.small, p.left, 0, p.cw * p.columns.length, p.h);
    g.font = `11px ${style.fontFamily}`;
    g.fillStyle = style.color;
    g.globalAlpha = 0.62;
    g.textAlign = 'right';
    g.textBaseline = 'middle';
    const tall = p.each / p.share; // pixels of a rank
    const every = tall >= 12 ? 1 : [2, 4, 5, 8, 10, 16, 20, 25, 32, 40, 50, 64, 100, 128, 200, 250, 500].find(n => n * tall >= 22) ?? 1000 * Math.ceil(22 / (1000 * tall));
    p.ids.forEach((id, i) => {
      if (id % every === 0) g.fillText(String(id), p.left - 7, Math.min(p.h - 5, Math.max(6, Math.floor(i / p.share) * p.each + p.each / 2)));
    });
    g.textBaseline = 'alphabetic';
    g.textAlign = 'center';
    const wanted = Math.max(1, Math.floor(p.cw * p.columns.length / 90));
    const first = p.columns[0].step, last = p.columns.at(-1).step;
    const raw = (last - first) / wanted, mag = 10 ** Math.floor(Math.log10(raw || 1));
    const gap = Math.max(1, [1, 2, 5, 10].map(f => f * mag).find(s => s >= raw) ?? 1);
    let end = -1e9;
    p.columns.forEach((c, i) => {
      if (c.step % gap) return;
      const x = p.left + (i + 0.5) * p.cw, text = count(c.step), half = g.measureText(text).width / 2;
      if (x - half < Math.max(end, p.left - 4) || x + half > p.width) return;
      end = x + half + 14;
      g.fillText(text, x, p.h + 15);
    });
    g.globalAlpha = 1;
    if (this.at) {
      const [c, r] = this.at;
      g.strokeStyle = style.color;
      g.lineWidth = 1.5;
      g.strokeRect(p.left + c * p.cw - 0.5, r * p.each - 0.5, p.cw + 1, p.each + 1);
    }
    this.canvas.setAttribute('aria-label', `lateness of ${p.ids.length} ranks in steps ${first} to ${last}, up to ${time(p.top * 1000)}; arrow keys read single values`);
  }

  key() {
    const { top } = this.plan;
    const box = document.getElementById('late-key');
    const night = this.night();
    if (this.keyOf === `${top}${night}`) return;
    this.keyOf = `${top}${night}`;
    const bar = el('canvas', { width: 200, height: 1, 'aria-hidden': 'true' });
    const g = bar.getContext('2d');
    for (let i = 0; i < 200; i++) {
      g.fillStyle = `rgb(${ramp(night ? dark : light, i / 199).join(' ')})`;
      g.fillRect(i, 0, 1, 1);
    }
    box.replaceChildren(el('div', { class: 'ruler' }, bar, el('span', {}, '0'), el('span', {}, time(top * 250)), el('span', {}, time(top * 1000))), el('span', {}, 'late, or more'), el('span', { class: 'blank' }), el('span', {}, 'not in the step'));
  }

  point(px, py) {
    const p = this.plan;
    if (!p) return;
    const c = Math.floor((px - p.left) / p.cw), r = Math.floor(py / p.each);
    this.move(c >= 0 && c < p.columns.length && r >= 0 && r < p.rows ? [c, r] : null);
  }

  move(at) {
    this.at = at;
    const p = this.plan;
    if (!p) return;
    if (at) {
      const column = p.columns[at[0]];
      let id = p.ids[at[1] * p.share], worst = column.late_us[at[1] * p.share];
      for (let i = at[1] * p.share; i < Math.min(p.ids.length, (at[1] + 1) * p.share); i++) {
        if ((column.late_us[i] ?? -1) > (worst ?? -1)) { worst = column.late_us[i]; id = p.ids[i]; }
      }
      const r = this.store.ranks.get(id);
      put('late-read', `step ${count(column.step)} · ${r && r.rank >= 0 ? `rank ${r.rank}` : `slot ${id}`} · ${worst == null ? 'not reported' : `${time(worst * 1000)} late`}`);
    } else put('late-read', this.habit());
    this.paint();
  }

  // habit names the rank that was most often the last.
  habit() {
    const { ids, columns } = this.store.late;
    if (ids.length < 2 || columns.length < 5) return '';
    const last = new Map();
    for (const c of columns) {
      let who = -1, most = 0;
      c.late_us.forEach((us, i) => { if (us != null && us > most) { most = us; who = ids[i]; } });
      if (who >= 0) last.set(who, (last.get(who) ?? 0) + 1);
    }
    const [id, n] = [...last].sort((a, b) => b[1] - a[1])[0] ?? [];
    if (id == null || n * ids.length < columns.length * 1.5) return '';
    const r = this.store.ranks.get(id);
    return `${r && r.rank >= 0 ? `rank ${r.rank}` : `slot ${id}`} was the last in ${Math.round(100 * n / columns.length)}% of steps`;
  }
}
