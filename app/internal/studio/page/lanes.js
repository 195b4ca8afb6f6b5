'use strict';
// The clock and the lanes: what ranks do over time, and the load of links above them. The lanes are drawn once for a
// window of time and kept; moving the clock draws a line over the kept picture.

class Lanes {
  constructor(canvas) {
    this.c = canvas; this.g = canvas.getContext('2d'); this.kept = document.createElement('canvas');
    this.groups = []; this.total = 1; this.from = 0; this.to = 1; this.now = 0; this.unit = duration;
    this.showChain = true; this.wanted = ''; this.skip = 0;
    this.onseek = () => {}; this.onpick = () => {};
    new ResizeObserver(() => this.resize()).observe(canvas);
    let down = null;
    const at = e => { const r = canvas.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
    canvas.addEventListener('pointerdown', e => { if (e.button) return; down = { x: at(e)[0], from: this.from, moved: false }; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener('pointermove', e => {
      const [x, y] = at(e);
      if (!down) { this.read(x, y); return; }
      if (Math.abs(x - down.x) > 4) down.moved = true;
      if (down.moved && this.zoomed()) this.window(down.from - (x - down.x) / this.wide() * (this.to - this.from));
      else if (down.moved) this.onseek(this.timeAt(x));
    });
    canvas.addEventListener('pointerup', e => { const d = down; down = null; if (d && !d.moved) { const [x, y] = at(e); this.onseek(this.timeAt(x)); const hit = this.hit(x, y); if (hit) this.onpick(hit); } });
    canvas.addEventListener('pointerleave', () => { $('lane-read').textContent = ''; });
    canvas.addEventListener('wheel', e => { if (!this.groups.length) return; e.preventDefault(); if (at(e)[0] < this.left()) this.scroll(Math.sign(e.deltaY) * 3); else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.window(this.from + (e.deltaX || e.deltaY) / this.wide() * (this.to - this.from)); else this.zoom(Math.exp(e.deltaY * .002), at(e)[0]); }, { passive: false });
    canvas.addEventListener('dblclick', () => { this.from = 0; this.to = this.total; this.paint(); });
    canvas.addEventListener('keydown', e => {
      const step = (this.to - this.from) / 50, by = { ArrowLeft: -step, ArrowRight: step, PageUp: -10 * step, PageDown: 10 * step, Home: -Infinity, End: Infinity }[e.key];
      if (by !== undefined) { this.onseek(Math.max(0, Math.min(this.total, this.now + by))); this.read(this.x(this.now), this.rowTop + 3); }
      else if (e.key === '+' || e.key === '=') this.zoom(.6, this.x(this.now));
      else if (e.key === '-') this.zoom(1 / .6, this.x(this.now));
      else if (e.key === 'ArrowDown' || e.key === 'ArrowUp') this.scroll(e.key === 'ArrowDown' ? 1 : -1);
      else if (e.key === '0' || e.key === 'Escape') { this.from = 0; this.to = this.total; this.paint(); }
      else return;
      e.preventDefault();
    });
  }

  // set takes groups of lanes: {label, tint, lanes: [{name, node, spans: [[begin, lead, end, tint, text]]}], gaps, load: [{name, values}]}.
  set(groups, total, unit) {
    const same = this.total === total;
    this.groups = groups; this.total = total || 1; this.unit = unit ?? duration;
    const rows = groups.reduce((n, g) => n + g.lanes.length, 0), load = groups.some(g => g.load?.length) ? 40 : 0;
    this.c.style.height = Math.max(80, Math.min(innerHeight > 1200 ? 300 : 190, 20 + load + rows * 20)) + 'px';
    if (!same || this.to > total) { this.from = 0; this.to = this.total; }
    this.resize();
    this.paint();
  }

  resize() {
    const r = Math.min(devicePixelRatio || 1, 2), w = this.c.clientWidth, h = this.c.clientHeight;
    if (!w || (w === this.w && h === this.h)) return;
    this.w = w; this.h = h; this.r = r;
    for (const c of [this.c, this.kept]) { c.width = Math.round(w * r); c.height = Math.round(h * r); }
    this.paint();
  }

  still() { return !this.asked && (!this.c.clientWidth || this.c.clientWidth === this.w && this.c.clientHeight === this.h); }

  wide() { return this.w - this.left() - 6; }
  left() { return this.w < 500 ? 46 : 74; }
  x(t) { return this.left() + (t - this.from) / (this.to - this.from) * this.wide(); }
  timeAt(x) { return Math.max(0, Math.min(this.total, this.from + (x - this.left()) / this.wide() * (this.to - this.from))); }
  zoomed() { return this.to - this.from < this.total * .999; }
  window(from) { const span = this.to - this.from; this.from = Math.max(0, Math.min(this.total - span, from)); this.to = this.from + span; this.paint(); }
  zoom(by, px) {
    const t = this.timeAt(px), span = Math.min(this.total, Math.max(this.total / 5000, (this.to - this.from) * by)), share = (t - this.from) / (this.to - this.from);
    this.to = this.from = 0;
    this.from = Math.max(0, Math.min(this.total - span, t - share * span)); this.to = this.from + span;
    this.paint();
  }

  paint() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.paintNow(); });
  }

  // filter shows the lanes whose rank or part has a text in its name; all of them for none.
  filter(text) { this.wanted = text.trim().toLowerCase(); this.skip = 0; this.paint(); }
  matches(lane) { const w = this.wanted; return !w || (/^\d+$/.test(w) ? lane.name.endsWith(' ' + w) : (lane.name + ' ' + (lane.part ?? '')).toLowerCase().includes(w)); }
  scroll(by) { this.skip = Math.max(0, Math.min(this.hidden ?? 0, this.skip + by)); this.paint(); }

  // plan lists the lanes that there is height for: of each group its share, from the first that is not scrolled away.
  plan() {
    const axis = 16, load = this.groups.some(g => g.load?.length) ? 40 : 0;
    const lists = this.groups.map(g => g.lanes.filter(l => this.matches(l))), all = lists.reduce((n, l) => n + l.length, 0);
    const high = this.h - axis - load, fit = Math.max(1, Math.floor(high / (all > 64 ? 7 : 4)));
    const rows = [];
    this.hidden = 0;
    this.groups.forEach((g, k) => {
      const n = all > fit ? Math.max(1, Math.floor(fit * lists[k].length / all)) : lists[k].length, from = Math.min(this.skip, lists[k].length - n);
      this.hidden = Math.max(this.hidden, lists[k].length - n);
      // Where not all fit, those that the critical path passes come first.
      const on = new Map();
      if (this.showChain && from === 0 && n < lists[k].length) for (const c of g.chain ?? []) on.set(c.lane, (on.get(c.lane) ?? 0) + 1);
      const best = on.size ? new Set([...lists[k]].sort((a, b) => (on.get(b) ?? 0) - (on.get(a) ?? 0)).slice(0, n)) : null;
      for (const lane of best ? lists[k].filter(l => best.has(l)) : lists[k].slice(from, from + n)) rows.push({ lane, group: g });
    });
    this.rowTop = load; this.rowHigh = Math.min(20, high / Math.max(1, rows.length)); this.rows = rows; this.loadHigh = load;
  }

  paintNow() {
    if (!this.w) return;
    const g = this.kept.getContext('2d');
    g.setTransform(this.r, 0, 0, this.r, 0, 0);
    g.clearRect(0, 0, this.w, this.h);
    this.plan();
    this.axis(g);
    if (this.loadHigh) this.load(g);
    const left = this.left(), right = left + this.wide();
    g.font = '10px system-ui, "DejaVu Sans", sans-serif';
    g.textBaseline = 'middle';
    this.bars(g);
    const named = Math.ceil(11 / this.rowHigh); // thin lanes: one name in several, from the first of each group
    let nth = 0;
    this.rows.forEach(({ lane, group }, i) => {
      nth = i > 0 && this.rows[i - 1].group === group ? nth + 1 : 0;
      const y = this.rowTop + i * this.rowHigh, h = Math.max(1, this.rowHigh - (this.rowHigh > 5 ? 2 : .6));
      const next = this.rows[i + Math.ceil(named / 2)]; // a name of the next group needs the height
      if (nth % named === 0 && (nth === 0 || named === 1 || !next || next.group === group)) { g.fillStyle = colour('soft'); g.textAlign = 'right'; g.fillText(lane.name, left - 6, Math.max(6, y + h / 2), left - 8); }
      for (const gap of group.gaps ?? []) {
        const a = Math.max(left, this.x(gap.begin_ps)), b = Math.min(right, this.x(gap.end_ps));
        if (b <= a) continue;
        g.fillStyle = colour(group.tint); g.globalAlpha = .16; g.fillRect(a, y, b - a, h); g.globalAlpha = 1;
        if (i > 0 && this.rows[i - 1].group === group) continue;
        const text = gap.rounds === 1 ? 'the round before again' : `the round before ${countText(gap.rounds)} times more`;
        if (g.measureText(text).width < b - a - 8) { g.fillStyle = colour('soft'); g.textAlign = 'center'; g.fillText(text, (a + b) / 2, y + h / 2); }
      }
    });
    if (this.showChain) this.chain(g);
    this.line();
  }

  // bars writes all lanes as pixels, one line per lane, copied to its height: 100,000 spans take a few milliseconds that way.
  bars(g) {
    const r = this.r, w = Math.max(1, Math.round(this.wide() * r)), high = Math.max(1, Math.round((this.h - 16 - this.rowTop) * r));
    if (this.sheet?.width !== w || this.sheet.height !== high) {
      this.sheet = Object.assign(document.createElement('canvas'), { width: w, height: high });
      this.image = new ImageData(w, high); this.pixels = new Uint32Array(this.image.data.buffer); this.scan = new Uint32Array(w);
    }
    const ground = rgb('sunk'), inks = new Map();
    const ink = (tint, share) => { const c = rgb(tint).map((v, i) => Math.round(ground[i] + (v - ground[i]) * share)); return ((255 << 24) | (c[2] << 16) | (c[1] << 8) | c[0]) >>> 0; };
    const inkOf = tint => { let c = inks.get(tint); if (!c) inks.set(tint, c = [ink(tint, 1), ink(tint, .3)]); return c; };
    this.pixels.fill(0);
    this.rows.forEach(({ lane }, i) => {
      this.scan.fill(ink('sunk', 1));
      this.spans(lane, w, inkOf);
      const top = Math.round(i * this.rowHigh * r), end = Math.min(high, Math.max(top + 1, Math.round((i + 1) * this.rowHigh * r) - Math.round((this.rowHigh > 5 ? 2 : this.rowHigh > 2 ? 1 : 0) * r)));
      for (let y = top; y < end; y++) this.pixels.set(this.scan, y * w);
    });
    this.sheet.getContext('2d').putImageData(this.image, 0, 0);
    g.drawImage(this.sheet, this.left(), this.rowTop, w / r, high / r);
  }

  // spans writes what a lane did in the window. Spans are sorted by their beginning; of many short ones in one pixel one is enough.
  spans(lane, w, inkOf) {
    const { from, to } = this, list = lane.spans, k = w / (to - from), scan = this.scan;
    if (lane.drawn !== list.length) { lane.drawn = list.length; lane.longest = list.reduce((n, s) => Math.max(n, s[2] - s[0]), 0); } // a live lane grows
    let lo = 0, painted = -1, tint = '', inks = null;
    for (let hi = list.length; lo < hi;) { const mid = (lo + hi) >> 1; if (list[mid][0] < from - lane.longest) lo = mid + 1; else hi = mid; }
    for (let j = lo; j < list.length; j++) {
      const s = list[j];
      if (s[0] > to) break;
      const b = Math.min(w, Math.round((s[2] - from) * k));
      if (b <= painted && (s[2] - s[0]) * k < 1 || b < 0) continue;
      const a = Math.max(0, Math.round((s[0] - from) * k)), m = Math.max(a, Math.round((s[1] - from) * k));
      if (s[3] !== tint) { tint = s[3]; inks = inkOf(tint); }
      if (m > a) scan.fill(inks[1], a, Math.min(m, b));
      scan.fill(inks[0], Math.min(m, w - 1), b - m > 4 ? b - 1 : Math.max(b, m + 1)); // long ones stand apart
      painted = Math.max(painted, b);
    }
  }

  // chain draws the critical path over the lanes: each span that the next one waited for, joined by lines.
  chain(g) {
    const row = new Map(this.rows.map((r, i) => [r.lane, this.rowTop + i * this.rowHigh])), h = Math.max(1, this.rowHigh - 2), left = this.left(), right = left + this.wide();
    g.save();
    g.beginPath(); g.rect(left, this.rowTop, right - left, this.h - this.rowTop - 14); g.clip();
    for (const [tint, wide] of [['panel', 3.4], ['ink', 1.4]]) for (const group of this.groups) {
      g.strokeStyle = colour(tint);
      g.lineWidth = wide;
      let last = null;
      g.beginPath();
      for (const c of group.chain ?? []) {
        const y = row.get(c.lane);
        if (y === undefined) { last = null; continue; } // a lane that is not shown, or a gap: the path goes on behind it
        const a = this.x(c.begin), b = this.x(c.end);
        if (b >= left && a <= right) {
          if (last && !(group.gaps ?? []).some(p => last[2] < p.end_ps && c.begin > p.begin_ps)) { g.moveTo(last[0], last[1]); g.lineTo(a, y + h / 2); }
          g.moveTo(a, y + h / 2); g.lineTo(b, y + h / 2);
        }
        last = [b, y + h / 2, c.end];
      }
      g.stroke();
    }
    g.restore();
  }

  axis(g) {
    const y = this.h - 14;
    g.font = '10px system-ui, "DejaVu Sans", sans-serif';
    g.textAlign = 'center';
    g.textBaseline = 'top';
    for (const t of roundTicks(this.from, this.to, Math.max(2, this.w / 110))) {
      g.fillStyle = colour('grid');
      g.fillRect(this.x(t), 0, 1, y);
      g.fillStyle = colour('faint');
      const text = this.unit(t), half = g.measureText(text).width / 2;
      g.fillText(text, Math.max(half, Math.min(this.w - half, this.x(t))), y + 3);
    }
  }

  load(g) {
    const high = this.loadHigh - 8, tints = ['nvs', 'nic', 'p1', 'p4', 'p3'];
    g.fillStyle = colour('faint'); g.font = '10px system-ui, "DejaVu Sans", sans-serif'; g.textAlign = 'right'; g.textBaseline = 'middle';
    g.fillText('link load', this.left() - 6, high / 2, this.left() - 8);
    for (const group of this.groups) (group.load ?? []).forEach((curve, i) => {
      const n = curve.values.length;
      g.strokeStyle = colour(tints[i % tints.length]);
      g.setLineDash(group.tint === 'b' ? [3, 2] : []);
      g.lineWidth = 1.4;
      g.beginPath();
      curve.values.forEach((v, k) => { const x = this.x((k + .5) / n * group.total), y = high - Math.min(1, v) * (high - 2) + 1; if (k) g.lineTo(x, y); else g.moveTo(x, y); });
      g.stroke();
      g.setLineDash([]);
    });
  }

  // line puts the clock over the kept lanes.
  line() {
    if (!this.w) return;
    const g = this.g;
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.clearRect(0, 0, this.c.width, this.c.height);
    g.drawImage(this.kept, 0, 0);
    const x = this.x(this.now);
    if (x < this.left() - 1 || x > this.w || !this.groups.length) return;
    g.fillStyle = colour('ink');
    g.fillRect(x * this.r - .75 * this.r, 0, 1.5 * this.r, (this.h - 16) * this.r);
  }

  hit(x, y) {
    const row = this.rows?.[Math.floor((y - this.rowTop) / this.rowHigh)];
    if (!row || y < this.rowTop) return null;
    const t = this.timeAt(x), slack = (this.to - this.from) / this.wide() * 2;
    return { ...row, span: row.lane.spans.find(s => t >= s[0] - slack && t <= s[2] + slack), t };
  }

  read(x, y) {
    const h = this.hit(x, y), out = $('lane-read');
    if (!h) {
      const load = y < this.loadHigh && this.groups.flatMap(g => (g.load ?? []).map(c => [g, c])).map(([g, c]) => `${c.name} ${percent(c.values[Math.min(c.values.length - 1, Math.floor(this.timeAt(x) / g.total * c.values.length))] ?? 0)}`);
      out.textContent = load && load.length ? `${this.unit(this.timeAt(x))}: ${load.join(', ')}` : '';
      return;
    }
    out.textContent = h.span ? `${h.lane.name}: ${h.span[4]()}, ${this.unit(h.span[0])} to ${this.unit(h.span[2])}` : `${h.lane.name} at ${this.unit(h.t)}`;
  }
}
