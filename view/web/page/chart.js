// A line chart: one curve, marks, and a cursor for pointer and keyboard.
import { svg } from './format.js';

// ticks are round numbers that cover a range.
export function ticks(lo, hi, wanted) {
  const raw = (hi - lo) / Math.max(1, wanted);
  const mag = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 2.5, 5, 10].map(f => f * mag).find(s => s >= raw) ?? mag * 10;
  const list = [];
  for (let i = Math.ceil(lo / step - 1e-9) + 0; i * step <= hi + step * 1e-9; i++) list.push(i * step);
  return list;
}

// decimals is how many digits after the point tell multiples of a step apart exactly.
export function decimals(step) {
  for (let d = 0; d < 9; d++) if (Math.abs(step * 10 ** d - Math.round(step * 10 ** d)) < 1e-6 * step * 10 ** d) return d;
  return 9;
}

// clockTicks are round times in seconds.
export function clockTicks(lo, hi, wanted) {
  const raw = (hi - lo) / Math.max(1, wanted);
  const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400].find(s => s >= raw) ?? Math.ceil(raw / 86400) * 86400;
  const list = [];
  for (let i = Math.ceil(lo / step); i * step <= hi; i++) list.push(i * step);
  return list;
}

// trend is, at each point, the straight line that fits it and its neighbours
// best: unlike a running mean it neither lags nor bends at the ends.
export function trend(values) {
  const reach = Math.max(3, Math.min(24, Math.round(values.length / 32)));
  return values.map((v, i) => {
    if (v == null) return null;
    let n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
    for (let k = Math.max(0, i - reach); k <= Math.min(values.length - 1, i + reach); k++) {
      if (values[k] == null) continue;
      const x = k - i, y = values[k];
      n++; sx += x; sy += y; sxx += x * x; sxy += x * y;
    }
    const d = n * sxx - sx * sx;
    return d > 0 ? (sy * sxx - sx * sxy) / d : sy / n;
  });
}

export class Chart {
  // options: label, zero (y from 0), smooth, area, zoom, xTicks, x and y (as text), read (of a point)
  constructor(box, options) {
    this.box = box;
    this.o = options;
    this.xs = []; this.ys = []; this.marks = [];
    this.at = null;
    this.picture = svg('svg', { role: 'img', tabindex: '0', 'aria-label': options.label });
    box.append(this.picture);
    new ResizeObserver(() => this.draw()).observe(box);
    this.picture.addEventListener('pointermove', e => {
      const px = e.clientX - box.getBoundingClientRect().left;
      if (this.from != null) this.select(px);
      this.point(px);
    });
    if (options.zoom) this.zooms();
    this.picture.addEventListener('pointerleave', () => this.move(null));
    this.picture.addEventListener('blur', () => this.move(null));
    this.picture.addEventListener('keydown', e => {
      const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[e.key];
      if (options.zoom && this.xs.length) {
        if (e.key === '+' || e.key === '=') this.nearer(this.at ?? this.xs.length - 1, 0.5);
        else if (e.key === '-') this.nearer(this.at ?? this.xs.length - 1, 2);
        else if (e.key === 'Escape') this.all();
      }
      if (by == null || !this.xs.length) return;
      e.preventDefault();
      this.move(Math.max(0, Math.min(this.xs.length - 1, (this.at ?? this.xs.length - 1) + by)));
    });
  }

  // zooms lets a reader drag over a range of x to see it alone; a double click, or
  // Escape, shows all again.
  zooms() {
    const p = this.picture, at = e => e.clientX - this.box.getBoundingClientRect().left;
    p.classList.add('zooms');
    p.addEventListener('pointerdown', e => { if (e.button === 0 && this.scale) { this.from = at(e); p.setPointerCapture(e.pointerId); } });
    p.addEventListener('pointerup', e => {
      const from = this.from, to = at(e);
      this.from = null;
      if (from != null && Math.abs(to - from) > 8) this.show(this.scale.unx(Math.min(from, to)), this.scale.unx(Math.max(from, to)));
      else this.drawCursor();
    });
    p.addEventListener('pointercancel', () => { this.from = null; this.drawCursor(); });
    p.addEventListener('dblclick', () => this.all());
  }

  select(px) { this.drawCursor(); this.cursor?.append(svg('rect', { class: 'chosen', x: Math.min(px, this.from), y: this.scale.top, width: Math.abs(px - this.from), height: this.scale.base - this.scale.top })); }
  zoomed() { return this.view != null; }
  all() { this.view = null; this.draw(); }
  show(x0, x1) {
    const first = this.xs[0], last = this.xs[this.xs.length - 1];
    x0 = Math.max(first, x0); x1 = Math.min(last, x1);
    if (x1 - x0 < 2 || x0 <= first && x1 >= last) this.view = x1 - x0 < 2 ? this.view : null;
    else this.view = [x0, x1];
    this.draw();
  }
  nearer(at, by) {
    const [x0, x1] = this.view ?? [this.xs[0], this.xs[this.xs.length - 1]], x = this.xs[at];
    this.show(x - (x - x0) * by, x + (x1 - x) * by);
  }

  // set gives points, and marks: {x, kind: epoch | cross | flag | diamond, text}.
  set(xs, ys, marks, range) {
    this.xs = xs; this.ys = ys; this.marks = marks ?? []; this.range = range;
    if (this.at != null && this.at >= xs.length) this.at = null;
    this.draw();
  }

  point(px) {
    if (!this.xs.length || !this.scale) return;
    const x = this.scale.unx(px);
    let lo = 0, hi = this.xs.length - 1;
    while (lo < hi) { const mid = (lo + hi) >> 1; if (this.xs[mid] < x) lo = mid + 1; else hi = mid; }
    if (lo > 0 && x - this.xs[lo - 1] < this.xs[lo] - x) lo--;
    this.move(lo);
  }

  move(at) { this.at = at; this.drawCursor(); }

  draw() {
    const w = this.box.clientWidth, h = this.box.clientHeight;
    if (!w || !h) return;
    const { o, xs } = this;
    const ys = this.view ? this.ys.map((y, i) => xs[i] < this.view[0] || xs[i] > this.view[1] ? null : y) : this.ys;
    const known = ys.filter(y => y != null);
    const parts = [];
    const left = 46, right = 10, top = 16, bottom = 22;
    if (!known.length) {
      const t = svg('text', { x: w / 2, y: h / 2, 'text-anchor': 'middle' });
      t.textContent = o.none ?? 'nothing yet';
      this.scale = null;
      this.picture.replaceChildren(t);
      return;
    }
    let lo = o.zero ? 0 : Math.min(...known), hi = Math.max(...known);
    if (hi - lo < 1e-9) { hi += Math.abs(hi) * 0.1 || 1; if (!o.zero) lo -= Math.abs(lo) * 0.1; }
    const pad = (hi - lo) * 0.06;
    hi += pad; if (!o.zero) lo -= pad;
    let [x0, x1] = this.view ?? this.range ?? [xs[0], xs[xs.length - 1]];
    if (x1 <= x0) x1 = x0 + 1;
    const sx = x => left + (x - x0) / (x1 - x0) * (w - left - right);
    const sy = y => h - bottom - (y - lo) / (hi - lo) * (h - top - bottom);
    this.scale = { sx, sy, unx: px => x0 + (px - left) / (w - left - right) * (x1 - x0), top, base: h - bottom, w };
    const rungs = ticks(lo, hi, Math.max(2, Math.floor(h / 52))), places = decimals(rungs.length > 1 ? rungs[1] - rungs[0] : hi - lo);
    for (const y of rungs) {
      const py = Math.round(sy(y)) + 0.5;
      parts.push(svg('path', { class: 'grid', d: `M${left} ${py}H${w - right}` }));
      const t = svg('text', { x: left - 8, y: py + 3.5, 'text-anchor': 'end' });
      t.textContent = o.y(y, places);
      parts.push(t);
    }
    let end = -1e9;
    for (const x of (o.xTicks ?? ticks)(x0, x1, Math.max(2, Math.floor((w - left) / (o.xTicks ? 62 : 90))))) {
      const px = sx(x), text = o.x(x), half = text.length * 3.3 + 3;
      if (px - half < end || px - half < left - 22 || px + half > w + 6) continue;
      end = px + half + 8;
      const t = svg('text', { x: px, y: h - 6, 'text-anchor': 'middle' });
      t.textContent = text;
      parts.push(t);
    }
    parts.push(svg('path', { class: 'axis', d: `M${left} ${h - bottom + 0.5}H${w - right}` }));
    this.drawMarks(parts, sx, top, h - bottom, left, w - right);
    const line = values => {
      let d = '', pen = false;
      values.forEach((y, i) => {
        if (y == null) { pen = false; return; }
        d += `${pen ? 'L' : 'M'}${sx(xs[i]).toFixed(1)} ${sy(y).toFixed(1)}`;
        pen = true;
      });
      return d;
    };
    if (o.area && known.length === ys.length && ys.length > 1) {
      parts.push(svg('path', { class: 'area', d: `${line(ys)}L${sx(xs[xs.length - 1]).toFixed(1)} ${h - bottom}L${sx(xs[0]).toFixed(1)} ${h - bottom}Z` }));
    }
    if (o.smooth && ys.length > 30) {
      const smooth = trend(this.ys);
      parts.push(svg('path', { class: 'raw', d: line(ys) }), svg('path', { class: 'smooth', d: line(smooth.map((y, i) => ys[i] == null ? null : y)) }));
    } else {
      parts.push(svg('path', { class: 'smooth', d: line(ys) }));
    }
    parts.push(...this.crosses ?? []);
    this.cursor = svg('g', {});
    parts.push(this.cursor);
    this.picture.replaceChildren(...parts);
    this.drawCursor();
  }

  drawMarks(parts, sx, top, base, left, right) {
    this.crosses = [];
    let end = -1e9, crossed = -1e9, flagged = -1e9, saved = -1e9;
    for (const m of this.marks) {
      const px = sx(m.x);
      if (px < left - 1 || px > right + 1) continue;
      const at = Math.round(px) + 0.5;
      if (m.kind === 'epoch') {
        parts.push(svg('path', { class: 'epoch-line', d: `M${at} ${top - 2}V${base}` }));
        const half = m.text.length * 3.3 + 2;
        if (px - half > end && px + half < right + 8) {
          const t = svg('text', { x: px, y: top - 6, 'text-anchor': 'middle' });
          t.textContent = m.text;
          parts.push(t);
          end = px + half + 4;
        }
      } else if (m.kind === 'cross' && px - crossed > 4) {
        this.crosses.push(svg('path', { class: 'cross', d: `M${px - 4} ${base - 12}l8 8m0 -8l-8 8` }, title(m.text)));
        crossed = px;
      } else if (m.kind === 'flag' && px - flagged > 4) {
        this.crosses.push(svg('path', { class: 'flag', d: `M${px - 4.5} ${base - 4}l4.5 -8l4.5 8Z` }, title(m.text)));
        flagged = px;
      } else if (m.kind === 'diamond' && px - saved > 9) {
        this.crosses.push(svg('path', { class: 'diamond', d: `M${px} ${base - 4}l4 4l-4 4l-4 -4Z` }, title(m.text)));
        saved = px;
      }
    }
  }

  drawCursor() {
    const { o, scale, at } = this;
    if (!scale || !this.cursor) return;
    if (at == null || this.ys[at] == null) {
      this.cursor.replaceChildren();
      o.read?.(null);
      return;
    }
    const px = scale.sx(this.xs[at]);
    this.cursor.replaceChildren(
      svg('path', { class: 'cursor', d: `M${Math.round(px) + 0.5} ${scale.top}V${scale.base}` }),
      svg('circle', { class: 'dot', r: 4, cx: px, cy: scale.sy(this.ys[at]) }));
    o.read?.(at);
  }
}

function title(text) {
  const t = svg('title', {});
  t.textContent = text;
  return t;
}
