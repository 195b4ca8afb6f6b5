'use strict';
// The picture. Three canvases on top of one another: links at the bottom, drawn again when their load changes; parts above
// them, drawn again when the view changes; messages under way at the top, written pixel by pixel, which stays smooth without
// a GPU. While the clock runs, links are written pixel by pixel, too: stroking thousands of lines takes several frames.

const Kind = { gpu: 1, cpu: 2, root: 3, pcie: 4, nvs: 5, nic: 6, sw: 7 };

class Stage {
  constructor(lines, base, over) {
    this.lines = lines; this.base = base; this.over = over;
    this.ctx = base.getContext('2d'); this.low = lines.getContext('2d', { willReadFrequently: true }); this.top = over.getContext('2d', { willReadFrequently: true });
    this.view = { x: 0, y: 0, s: 1 };
    this.faults = []; this.busy = null; this.paint = null; this.cut = null; this.states = null; this.pins = [];
    this.ratios = null; this.sel = null; this.extra = null; this.runs = []; this.time = 0; this.load = null; this.byClock = true; this.limits = []; this.footer = 36;
    this.onselect = () => {}; this.onhover = () => {}; this.ondrop = () => {}; this.movable = () => false;
    new ResizeObserver(() => this.resize()).observe(base.parentElement);
    this.listen();
  }

  // setScene takes what the engine placed. Coordinates of every part are computed once.
  setScene(scene, keepView) {
    const before = this.scene;
    this.scene = scene;
    scene.linkList = typeof scene.links === 'string' ? unpack(scene.links) : scene.links;
    const n = scene.nodes;
    this.X = new Float32Array(n); this.Y = new Float32Array(n); this.size = new Float32Array(n).fill(14);
    this.host = new Int32Array(n).fill(-1); this.kind = new Uint8Array(n);
    const h = scene.hosts;
    for (let i = 0; i < h.name.length; i++) {
      const k = scene.kinds[h.kind[i]];
      for (let j = 0; j < k.x.length; j++) {
        const id = h.first[i] + j;
        this.X[id] = h.x[i] + k.x[j]; this.Y[id] = h.y[i] + k.y[j]; this.host[id] = i; this.kind[id] = k.kinds[j]; this.size[id] = k.size[j];
      }
    }
    const c = scene.switches;
    for (let i = 0; i < c.name.length; i++) { const id = c.first + i; this.X[id] = c.x[i]; this.Y[id] = c.y[i]; this.kind[id] = c.kind[i]; }
    this.hostAt = new Map(h.name.map((name, i) => [name, i]));
    this.chipAt = new Map(c.name.map((name, i) => [name, c.first + i]));
    this.partOf = scene.kinds.map(k => new Map(k.names.map((name, i) => [name, i])));
    this.setBusy(null); this.ratios = null; this.paint = null; this.cut = null; this.extra = null; this.runs = []; this.limits = [];
    this.blockLinks = new Map();
    if (this.sel && !this.lookup(this.sel.name)) this.sel = null;
    if (!keepView || !before || Math.abs(before.w / scene.w - 1) > .02 || Math.abs(before.h / scene.h - 1) > .02) this.fit();
    else this.draw();
  }

  // lookup finds a part, a host, a link or a block by its name. Names are those of the cluster file's graph, which every other
  // command prints, too: n7:nic2, leaf3, leaf3:p5, 'n7:nic2 - leaf3:p5'.
  lookup(name) {
    if (!this.scene || !name) return null;
    name = name.trim();
    if (name.includes(' - ')) { const [a, b] = name.split(' - ').map(n => this.lookup(n)); return a?.type === 'node' && b?.type === 'node' ? { ...a, name, other: b.id } : null; }
    if (this.chipAt.has(name)) return { type: 'node', id: this.chipAt.get(name), name };
    if (this.hostAt.has(name)) return { type: 'host', id: this.hostAt.get(name), name };
    const at = name.lastIndexOf(':');
    if (at > 0) {
      const host = this.hostAt.get(name.slice(0, at)), rest = name.slice(at + 1);
      if (host !== undefined) { const j = this.partOf[this.scene.hosts.kind[host]].get(rest); if (j !== undefined) return { type: 'node', id: this.scene.hosts.first[host] + j, name }; }
      if (/^p\d+$/.test(rest)) { const chip = this.lookup(name.slice(0, at)); if (chip) return { ...chip, name, port: true }; }
    }
    if (this.hostAt.size === 1) { const only = [...this.hostAt.keys()][0]; if (!name.includes(':') && this.partOf[0].has(name)) return this.lookup(only + ':' + name); }
    const block = this.scene.blocks.findIndex(b => b.name === name);
    return block >= 0 ? { type: 'block', id: block, name } : null;
  }

  nodeName(id) {
    const h = this.host[id], s = this.scene;
    if (h < 0) return s.switches.name[id - s.switches.first];
    return s.hosts.name[h] + ':' + s.kinds[s.hosts.kind[h]].names[id - s.hosts.first[h]];
  }

  // box is where a selection is, in the scene's units.
  box(sel) {
    const s = this.scene;
    if (sel.type === 'block') { const b = s.blocks[sel.id]; return [b.x, b.y, b.w, b.h]; }
    if (sel.type === 'host') { const k = s.kinds[s.hosts.kind[sel.id]]; return [s.hosts.x[sel.id], s.hosts.y[sel.id], k.w, k.h]; }
    const r = this.size[sel.id] / 2 + 1;
    return [this.X[sel.id] - r, this.Y[sel.id] - r, 2 * r, 2 * r];
  }

  resize() {
    const box = this.base.parentElement, r = Math.min(devicePixelRatio || 1, 2);
    const w = box.clientWidth, h = box.clientHeight;
    if (!w || !h || (w === this.w && h === this.h && r === this.r)) return;
    const first = !this.w;
    this.w = w; this.h = h; this.r = r;
    for (const c of [this.lines, this.base, this.over]) { c.width = Math.round(w * r); c.height = Math.round(h * r); }
    this.image = null;
    if (first || this.fitted) this.fit(); else this.draw();
  }

  fit(box) {
    if (!this.scene || !this.w) return;
    const s = this.scene, [x, y, w, h] = box ?? [0, 0, s.w, s.h];
    const pad = Math.min(46, this.w * .06), top = box ? pad : 50, bottom = this.footer + (box ? 0 : this.tagsHigh());
    const scale = Math.min((this.w - 2 * pad) / w, Math.max(40, this.h - top - bottom) / h, box ? 6 : 3.2);
    this.view = { s: scale, x: x + w / 2 - this.w / 2 / scale, y: y + h / 2 - (top + (this.h - top - bottom) / 2) / scale };
    this.fitted = !box;
    this.draw();
  }

  zoom(by, px = this.w / 2, py = this.h / 2) {
    const v = this.view, least = Math.min(this.w / this.scene.w, this.h / this.scene.h) * .5;
    const s = Math.max(least, Math.min(12, v.s * by));
    v.x += px / v.s - px / s; v.y += py / v.s - py / s; v.s = s;
    this.fitted = false;
    this.draw();
  }

  show(sel) {
    const [x, y, w, h] = this.box(sel), wide = Math.max(w * 1.6, sel.type === 'node' ? 260 : 0), high = Math.max(h * 1.6, sel.type === 'node' ? 150 : 0);
    this.fit([x + w / 2 - wide / 2, y + h / 2 - high / 2, wide, high]);
  }

  listen() {
    const b = this.base;
    let down = null;
    const at = e => { const r = b.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
    b.addEventListener('pointerdown', e => { if (e.button || !this.scene) return; down = { at: at(e), x: this.view.x, y: this.view.y, moved: false, rack: this.rackAt(...at(e)) }; b.setPointerCapture(e.pointerId); });
    b.addEventListener('pointermove', e => {
      if (!this.scene) return;
      const p = at(e);
      if (!down) { this.hover(p); return; }
      if (!down.moved && Math.hypot(p[0] - down.at[0], p[1] - down.at[1]) < 5) return;
      down.moved = true;
      b.classList.add('drag');
      if (down.rack) { this.carry = { rack: down.rack, to: this.slotAt(...p) }; this.draw(); return; }
      this.view.x = down.x - (p[0] - down.at[0]) / this.view.s;
      this.view.y = down.y - (p[1] - down.at[1]) / this.view.s;
      this.fitted = false;
      this.draw();
    });
    const up = e => {
      const d = down;
      down = null;
      b.classList.remove('drag');
      const carried = this.carry;
      this.carry = null;
      if (carried) { this.draw(); if (e.type === 'pointerup' && carried.to && carried.to.name !== carried.rack.name) this.ondrop(carried.rack.name, carried.to.name); }
      if (d && !d.moved && this.scene && e.type === 'pointerup') this.onselect(this.pick(...at(e)));
    };
    b.addEventListener('pointerup', up);
    b.addEventListener('pointercancel', up);
    b.addEventListener('pointerleave', () => this.onhover(null));
    b.addEventListener('dblclick', e => { const hit = this.scene && this.pick(...at(e)); if (hit) this.show(hit.type === 'node' && this.host[hit.id] >= 0 ? { type: 'host', id: this.host[hit.id] } : hit); });
    b.addEventListener('wheel', e => { if (!this.scene) return; e.preventDefault(); this.zoom(Math.exp(-e.deltaY * (e.ctrlKey ? .01 : .0016)), ...at(e)); }, { passive: false });
    b.addEventListener('keydown', e => {
      if (!this.scene || e.ctrlKey || e.metaKey) return;
      const step = 60 / this.view.s, move = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] }[e.key];
      if (move) { this.view.x += move[0]; this.view.y += move[1]; this.fitted = false; this.draw(); }
      else if (e.key === '+' || e.key === '=') this.zoom(1.4);
      else if (e.key === '-') this.zoom(1 / 1.4);
      else if (e.key === '0') this.fit();
      else if (e.key === 'Escape') this.onselect(null);
      else return;
      e.preventDefault();
    });
  }

  // rackAt is the rack under a point of a floor whose racks may be moved; slotAt the position there, which may be empty.
  rackAt(px, py) {
    if (!this.scene.grid || !this.movable()) return null;
    const slot = this.slotAt(px, py), b = slot && this.scene.blocks.find(b => b.name === slot.name);
    return b && (b.hosts || b.switches) ? b : null;
  }
  slotAt(px, py) {
    const g = this.scene.grid, v = this.view, col = Math.floor((v.x + px / v.s) / g.w), row = Math.floor((v.y + py / v.s) / g.h);
    if (col < 0 || col >= g.row || row < 0 || row > g.rows) return null;
    let letters = '';
    for (let r = row + 1; r > 0; r = Math.floor((r - 1) / 26)) letters = String.fromCharCode(65 + (r - 1) % 26) + letters;
    return { name: letters + String(col + 1).padStart(2, '0'), x: col * g.w, y: row * g.h };
  }

  hover(p) {
    const hit = this.pick(...p);
    this.base.classList.toggle('rack', hit?.type === 'block' && !!this.rackAt(...p));
    this.base.classList.toggle('hit', !!hit && hit.type !== 'block');
    this.onhover(hit, p);
  }

  // pick finds what is under a point of the screen: the smallest part that can be told apart there.
  pick(px, py) {
    const s = this.scene, v = this.view, x = v.x + px / v.s, y = v.y + py / v.s, near = Math.max(8, 5 / v.s);
    let best = null, far = near * near;
    const c = s.switches;
    for (let i = 0; i < c.name.length; i++) {
      const d = (c.x[i] - x) ** 2 + (c.y[i] - y) ** 2;
      if (d < far) { far = d; best = { type: 'node', id: c.first + i, name: c.name[i] }; }
    }
    if (best) return best;
    const h = s.hosts;
    for (let i = 0; i < h.name.length; i++) {
      const k = s.kinds[h.kind[i]];
      if (x < h.x[i] || y < h.y[i] || x > h.x[i] + k.w || y > h.y[i] + k.h) continue;
      if (v.s * 16 >= 6) {
        let part = -1, d2 = 150;
        for (let j = 0; j < k.x.length; j++) {
          const d = (h.x[i] + k.x[j] - x) ** 2 + (h.y[i] + k.y[j] - y) ** 2;
          if (d < d2 && d < (k.size[j] * .75) ** 2) { d2 = d; part = j; }
        }
        if (part >= 0) return { type: 'node', id: h.first[i] + part, name: h.name[i] + ':' + k.names[part] };
      }
      return { type: 'host', id: i, name: h.name[i] };
    }
    const b = s.blocks.findIndex(b => x >= b.x && y >= b.y && x <= b.x + b.w && y <= b.y + b.h);
    return b >= 0 && s.blocks.length > 1 ? { type: 'block', id: b, name: s.blocks[b].name } : null;
  }

  // draw asks for one drawing at the next frame, however often it is called.
  draw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.paintAll(); });
  }

  // still is true when what is seen is drawn, in the size that it has on the page.
  still() { const box = this.base.parentElement; return !this.asked && (!box.clientWidth || box.clientWidth === this.w && box.clientHeight === this.h); }

  paintAll() {
    const g = this.ctx, s = this.scene;
    if (!s || !this.w) return;
    this.drawn = (this.drawn ?? 0) + 1;
    const v = this.view, px = 1 / v.s; // a pixel, in the scene's units
    this.see = [v.x, v.y, v.x + this.w / v.s, v.y + this.h / v.s];
    this.findBad();
    this.paintLines();
    this.clear(g);
    this.drawAbove(g, px);
    this.drawTop();
  }

  // drawAbove draws everything above the links.
  drawAbove(g, px) {
    this.drawHosts(g, px);
    this.drawChips(g, px);
    this.drawCut(g, px);
    this.drawMarks(g, px);
    this.drawLabels(g, px);
    this.drawTags(g, px);
  }

  clear(g) {
    const v = this.view, k = this.r * v.s;
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.clearRect(0, 0, this.base.width, this.base.height);
    g.setTransform(k, 0, 0, k, -v.x * k, -v.y * k);
  }

  // paintLines draws what is below the parts: frames and links, in the colour of their load.
  paintLines() {
    const g = this.low, px = 1 / this.view.s;
    this.column = this.columnNow(); this.ground = null;
    this.clear(g);
    this.drawBlocks(g, px);
    if (this.scene.folded) this.drawBands(g, px);
    this.drawLinks(g, px);
  }

  // paintLinesMoving does the same with pixels, over frames and bands that are kept for a view.
  paintLinesMoving() {
    const g = this.low, px = 1 / this.view.s, { width, height } = this.lines;
    this.column = this.columnNow();
    if (!this.ground) {
      this.clear(g);
      g.fillStyle = colour('ground');
      g.fillRect(this.view.x, this.view.y, this.w * px, this.h * px);
      this.drawBlocks(g, px);
      if (this.scene.folded) this.drawBands(g, px);
      this.ground = new Uint32Array(g.getImageData(0, 0, width, height).data.buffer);
      this.sheet = new ImageData(width, height); this.sheetPixels = new Uint32Array(this.sheet.data.buffer);
    }
    this.sheetPixels.set(this.ground);
    for (const { list, tint, wide, alpha } of this.linkStyles(this.sortedLinks())) writeLines(this.sheetPixels, width, height, list, this, tint, Math.max(1, Math.round(wide * this.r)), alpha);
    g.putImageData(this.sheet, 0, 0);
  }

  // move tells whether the clock runs.
  move(on) { if (this.moving !== on) { this.moving = on; if (!on) this.draw(); } }

  // setBusy takes how busy links are: on average and, where that is known, over time.
  setBusy(run) {
    this.busy = null; this.load = null; this.linkRows = null;
    if (!run?.busy.length) return;
    const n = this.scene.nodes;
    this.busy = new Map(run.busy.map((l, i) => [l.a * n + l.b, i]));
    this.means = Float32Array.from(run.busy, l => l.busy);
    if (run.trace?.link_load?.length) { this.load = run.trace.link_load; this.columns = this.load.length / run.busy.length; this.loadTotal = run.time_ps; }
  }
  columnNow() { return this.load && this.byClock ? Math.max(0, Math.min(this.columns - 1, Math.floor(this.time / this.loadTotal * this.columns))) : -1; }

  // tick moves the clock. Links are drawn again when their load has changed.
  tick(time) {
    this.time = time;
    this.drawTop();
    if (this.columnNow() === this.column || !this.see || this.asked) return;
    if (this.insides) this.draw(); // links inside hosts are drawn with their parts
    else if (this.moving) this.paintLinesMoving();
    else this.paintLines();
  }

  seen(x, y, w, h) { const [l, t, r, b] = this.see; return x < r && y < b && x + w > l && y + h > t; }

  drawBlocks(g, px) {
    g.lineWidth = px;
    g.strokeStyle = colour('line');
    g.fillStyle = colour('block');
    for (const b of this.scene.blocks) {
      if (!this.seen(b.x, b.y, b.w, b.h)) continue;
      g.beginPath();
      g.roundRect(b.x, b.y, b.w, b.h, Math.min(8, 12 * px));
      g.fill();
      g.stroke();
    }
  }

  // linkWeight is how much of a link's rate is used, the busier direction: at the clock's time, or on average.
  linkWeight(a, b) {
    if (!this.busy) return 0;
    const n = this.scene.nodes;
    return Math.max(this.weight(this.busy.get(a * n + b)), this.weight(this.busy.get(b * n + a)));
  }
  weight(row) { return row === undefined ? 0 : this.column >= 0 ? this.load[row * this.columns + this.column] / 255 : this.means[row]; }

  // sortedLinks are the links that are seen, as pairs of parts, by what they look like: idle, by load from 1 to 5, measured, dead.
  sortedLinks() {
    const s = this.scene, lists = s.folded ? [...this.blockLinks.values()] : [s.linkList], [l, t, r, bo] = this.see;
    const out = { load: Array.from({ length: 6 }, () => []), measured: {}, dead: [], n: 0 };
    for (const list of lists) for (let i = 0; i < list.length; i += 2) {
      const a = list[i], b = list[i + 1], ax = this.X[a], ay = this.Y[a], bx = this.X[b], by = this.Y[b];
      if (Math.max(ax, bx) < l || Math.min(ax, bx) > r || Math.max(ay, by) < t || Math.min(ay, by) > bo) continue;
      out.n++;
      const state = this.ratios && this.ratioState(a, b), w = this.linkWeight(a, b);
      const to = this.bad && (this.bad.has(a) || this.bad.has(b)) && this.badLink(a, b) ? out.dead : state ? out.measured[state] ??= [] : out.load[w > 0 ? 1 + Math.min(4, Math.floor(w * 4.999)) : 0];
      to.push(a, b);
    }
    this.drawnLinks = out.n;
    return out;
  }

  // linkStyles says how each of them is drawn, the last one on top.
  linkStyles({ load, measured, dead, n }) {
    const faint = n > 4000 ? .1 : n > 1200 ? .2 : n > 300 ? .4 : .8, out = [];
    load.forEach((list, k) => { if (list.length) out.push({ list, tint: k ? this.heat(k / 5) : colour('switch'), wide: k ? .6 + k * .35 : .8, alpha: k ? Math.max(faint, .16 * k) : this.busy ? faint * .6 : faint }); });
    for (const [state, list] of Object.entries(measured)) out.push({ list, tint: colour(state), wide: state === 'healthy' ? 1 : 2.4, alpha: .85 });
    if (dead.length) out.push({ list: dead, tint: colour('failed'), wide: 1, alpha: .7, dash: 3 });
    return out;
  }

  drawLinks(g, px) {
    for (const { list, tint, wide, alpha, dash } of this.linkStyles(this.sortedLinks())) {
      const path = g.path?.() ?? new Path2D();
      for (let i = 0; i < list.length; i += 2) { path.moveTo(this.X[list[i]], this.Y[list[i]]); path.lineTo(this.X[list[i + 1]], this.Y[list[i + 1]]); }
      g.setLineDash(dash ? [dash * px, dash * px] : []);
      g.lineWidth = px * wide; g.globalAlpha = alpha; g.strokeStyle = tint;
      g.stroke(path);
    }
    g.setLineDash([]);
    g.globalAlpha = 1;
    if (this.sel?.type === 'node') this.drawOwnLinks(g, px);
  }

  // ratioState is how a measured link compares with the others, each by its prediction; the slower direction counts.
  ratioState(a, b) {
    const n = this.scene.nodes, r = Math.min(this.ratios.get(a * n + b) ?? Infinity, this.ratios.get(b * n + a) ?? Infinity);
    return r === Infinity ? null : linkState(r);
  }

  heat(share) { return share < .5 ? mixed('p2', 'p4', share * 2) : mixed('p4', 'failed', share * 2 - 1); }

  drawBands(g, px) {
    const s = this.scene, most = Math.max(...s.bands.map(b => b.count), 1);
    const top = i => { if (i >= 0) { const b = s.blocks[i]; return [b.x + b.w / 2, b.y]; } const r = s.rows[-1 - i]; return [r.x + r.w / 2, r.y + r.h / 2]; };
    g.strokeStyle = colour('switch');
    for (const b of s.bands) {
      const [ax, ay] = top(b.a), [bx, by] = top(b.b), row = b.a < 0 ? s.rows[-1 - b.a] : b.b < 0 ? s.rows[-1 - b.b] : null;
      g.globalAlpha = .16;
      g.lineWidth = px * (1 + 5 * Math.sqrt(b.count / most));
      g.beginPath();
      if (row && (b.a >= 0 || b.b >= 0)) { // fan out to where the row is above the block
        const low = b.a >= 0 ? [ax, ay] : [bx, by], x = Math.max(row.x, Math.min(row.x + row.w, low[0]));
        g.moveTo(...low); g.bezierCurveTo(low[0], (low[1] + row.y + row.h) / 2, x, (low[1] + row.y + row.h) / 2, x, row.y + row.h);
      } else { g.moveTo(ax, ay); g.lineTo(bx, by); }
      g.stroke();
    }
    g.globalAlpha = 1;
  }

  drawOwnLinks(g, px) {
    const id = this.sel.id, path = g.path?.() ?? new Path2D();
    const add = p => { path.moveTo(this.X[id], this.Y[id]); path.lineTo(this.X[p], this.Y[p]); };
    if (this.extra?.node === id) for (const l of this.extra.links) add(l.node);
    else if (!this.scene.folded) { const list = this.scene.linkList; for (let i = 0; i < list.length; i += 2) { if (list[i] === id) add(list[i + 1]); else if (list[i + 1] === id) add(list[i]); } }
    g.strokeStyle = colour('accent');
    g.lineWidth = 1.4 * px;
    g.globalAlpha = .8;
    g.stroke(path);
    g.globalAlpha = 1;
  }

  drawHosts(g, px) {
    const s = this.scene, h = s.hosts, cellPx = 16 * this.view.s;
    const gpu = colour('gpu'), panel = colour('panel'), line = colour('faint');
    this.insides = false;
    for (let i = 0; i < h.name.length; i++) {
      const k = s.kinds[h.kind[i]];
      if (!this.seen(h.x[i], h.y[i], k.w, k.h)) continue;
      const state = this.hostState(i);
      if (k.w * this.view.s < 7 && !this.paint) { // too small for its parts: one colour, the worst state wins
        g.fillStyle = state ? colour(state) : gpu;
        g.globalAlpha = state ? 1 : .75;
        const least = 1.2 * px;
        g.fillRect(h.x[i], h.y[i], Math.max(k.w, least), Math.max(k.h, least));
        continue;
      }
      g.globalAlpha = 1;
      g.fillStyle = panel;
      g.strokeStyle = state ? colour(state) : line;
      g.lineWidth = (state ? 2 : .6) * px;
      g.beginPath();
      if (k.w * this.view.s > 40) g.roundRect(h.x[i], h.y[i], k.w, k.h, Math.min(5, 5 * px)); else g.rect(h.x[i], h.y[i], k.w, k.h);
      g.fill();
      if (k.w * this.view.s > 18 || state) g.stroke();
      if (k.w * this.view.s > 220 || s.hosts.name.length === 1) { this.insides = !!this.load; this.drawInsideLinks(g, px, i, k); }
      this.drawParts(g, px, i, k, cellPx);
    }
    g.globalAlpha = 1;
  }

  drawInsideLinks(g, px, i, k) {
    const h = this.scene.hosts, x = h.x[i], y = h.y[i];
    for (let j = 0; j < k.links.length; j += 2) {
      const a = k.links[j], b = k.links[j + 1], w = this.linkWeight(h.first[i] + a, h.first[i] + b);
      const mesh = k.kinds[a] === Kind.gpu && k.kinds[b] === Kind.gpu;
      g.strokeStyle = w > 0 ? this.heat(Math.min(1, w)) : colour(mesh ? 'nvs' : 'wire');
      g.lineWidth = px * (mesh ? 1 + k.count[j / 2] * .5 : w > 0 ? 1.4 : .7);
      g.globalAlpha = w > 0 ? .85 : mesh ? .6 : .75;
      g.beginPath();
      g.moveTo(x + k.x[a], y + k.y[a]);
      g.lineTo(x + k.x[b], y + k.y[b]);
      g.stroke();
    }
    g.globalAlpha = 1;
  }

  drawParts(g, px, i, k, cellPx) {
    const h = this.scene.hosts, x = h.x[i], y = h.y[i], first = h.first[i];
    const small = cellPx < 5;
    for (let j = 0; j < k.x.length; j++) {
      const kind = k.kinds[j];
      if (small && kind !== Kind.gpu) continue;
      if (kind !== Kind.gpu && kind !== Kind.nic && cellPx < 9) continue;
      const id = first + j, z = k.size[j];
      const state = this.partState(id), painted = this.paint?.get(id);
      g.fillStyle = state ? colour(state) : painted ?? colour({ [Kind.gpu]: 'gpu', [Kind.nic]: 'nic', [Kind.nvs]: 'nvs' }[kind] ?? 'p5');
      const high = kind === Kind.nic ? z * .7 : z;
      g.fillRect(x + k.x[j] - z / 2, y + k.y[j] - high / 2, z, high);
      if (kind === Kind.gpu && cellPx > 30) {
        g.fillStyle = state || painted ? colour('on-state') : colour('ink');
        g.font = `600 ${6}px system-ui, sans-serif`;
        g.textAlign = 'center'; g.textBaseline = 'middle';
        g.fillText(k.names[j].replace(/^\D+/, ''), x + k.x[j], y + k.y[j] + .3);
      }
    }
  }

  drawChips(g, px) {
    const c = this.scene.switches;
    for (let i = 0; i < c.name.length; i++) {
      if (!this.seen(c.x[i] - 9, c.y[i] - 9, 18, 18)) continue;
      const id = c.first + i, state = this.partState(id), nv = c.kind[i] === Kind.nvs;
      const z = Math.max(nv ? 10 : 14, 2.4 * px);
      g.fillStyle = state ? colour(state) : colour(nv ? 'nvs' : 'switch');
      if (z * this.view.s > 7) { g.beginPath(); g.roundRect(c.x[i] - z / 2, c.y[i] - z * .36, z, z * .72, 2.5); g.fill(); } else g.fillRect(c.x[i] - z / 2, c.y[i] - z / 2, z, z);
    }
  }

  drawCut(g, px) {
    if (!this.cut) return;
    const tint = colour('cut');
    g.strokeStyle = tint;
    g.lineWidth = 2 * px;
    g.globalAlpha = .9;
    const path = g.path?.() ?? new Path2D();
    for (const [a, b] of this.cut.edges) { path.moveTo(this.X[a], this.Y[a]); path.lineTo(this.X[b], this.Y[b]); }
    g.globalAlpha = this.cut.edges.length > 400 ? .3 : .65;
    g.stroke(path);
    g.globalAlpha = 1;
    g.setLineDash([5 * px, 3 * px]);
    for (const part of this.cut.parts) {
      let l = Infinity, t = Infinity, r = -Infinity, b = -Infinity;
      for (const id of part) { const z = this.size[id] / 2 + 2; l = Math.min(l, this.X[id] - z); t = Math.min(t, this.Y[id] - z); r = Math.max(r, this.X[id] + z); b = Math.max(b, this.Y[id] + z); }
      if (!isFinite(l) || !this.seen(l, t, r - l, b - t)) continue;
      g.beginPath();
      g.roundRect(l, t, r - l, b - t, 4);
      g.stroke();
    }
    g.setLineDash([]);
  }

  // drawTags marks the link that limits each run and the cut of the bound. Their sentences stand at the lower edge, where the
  // picture is empty when all of it is seen, with a line to what they are about.
  drawTags(g, px) {
    const tags = [];
    for (const l of this.limits) {
      const ax = this.X[l.a], ay = this.Y[l.a], bx = this.X[l.b], by = this.Y[l.b];
      for (const [tint, wide] of [['panel', 7], [l.colour, 3.5]]) { g.strokeStyle = colour(tint); g.lineWidth = wide * px; g.beginPath(); g.moveTo(ax, ay); g.lineTo(bx, by); g.stroke(); }
      const same = tags.find(t => t.link === l.link);
      if (same) same.text = same.text.replace(/^A is/, 'A and B are'); else tags.push({ x: (ax + bx) / 2, y: (ay + by) / 2, text: l.text, tint: l.colour, link: l.link });
    }
    if (this.cut?.edges.length || this.cut?.parts.length) { const id = this.cut.edges[0]?.[0] ?? this.cut.parts[0][0]; tags.push({ x: this.X[id], y: this.Y[id], text: 'The cut: ' + this.cut.why, tint: 'cut' }); }
    let bottom = this.see[3] - (this.footer + 4) * px;
    for (const t of tags.reverse()) bottom = this.tag(g, px, t, bottom);
  }

  // tagsHigh is about how much of the lower edge the sentences take.
  tagsHigh() { return new Set(this.limits.map(l => l.link)).size * (this.w < 700 ? 42 : 30) + (this.cut ? 42 : 0); }

  tag(g, px, { x, y, text, tint }, bottom) {
    const [l, , r] = this.see;
    g.font = `600 ${11 * px}px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif`;
    const lines = wrapped(text, Math.min(r - l - 40 * px, 560 * px), s => g.measureText(s).width, 2);
    const w = Math.max(...lines.map(s => g.measureText(s).width)) + 16 * px, h = (lines.length * 14 + 8) * px, left = l + 10 * px, top = bottom - h;
    g.strokeStyle = colour(tint); g.lineWidth = px;
    g.setLineDash([2 * px, 3 * px]);
    if (y < top) { g.beginPath(); g.moveTo(x, y); g.lineTo(Math.max(left + 6 * px, Math.min(left + w - 6 * px, x)), top); g.stroke(); }
    g.setLineDash([]);
    g.lineWidth = 1.5 * px;
    g.fillStyle = colour('panel');
    g.beginPath(); g.roundRect(left, top, w, h, 6 * px); g.fill(); g.stroke();
    g.fillStyle = colour('ink'); g.textAlign = 'left'; g.textBaseline = 'middle';
    lines.forEach((s, i) => g.fillText(s, left + 8 * px, top + (11 + 14 * i) * px));
    return top - 5 * px;
  }

  drawMarks(g, px) {
    for (const f of this.marks ?? []) { // a sign besides the colour
      const [x, y, w, h] = this.box(f.at), mx = x + w / 2, my = y + h / 2, z = Math.max(5 * px, Math.min(w, h) * .32);
      g.lineWidth = 2.2 * px;
      g.strokeStyle = colour(f.factor ? 'suspect' : 'failed');
      g.beginPath();
      if (f.factor) { g.moveTo(mx - z, my + z); g.lineTo(mx, my - z); g.lineTo(mx + z, my + z); g.closePath(); }
      else { g.moveTo(mx - z, my - z); g.lineTo(mx + z, my + z); g.moveTo(mx + z, my - z); g.lineTo(mx - z, my + z); }
      g.stroke();
      g.strokeRect(x - 2 * px, y - 2 * px, w + 4 * px, h + 4 * px);
    }
    for (const p of this.pins) {
      const at = this.lookup(p.name);
      if (!at) continue;
      const [x, y, w] = this.box(at), r = 7 * px;
      g.fillStyle = colour(p.state);
      g.beginPath(); g.arc(x + w, y, r, 0, 7); g.fill();
      g.fillStyle = colour('on-state'); g.font = `800 ${9 * px}px system-ui, sans-serif`; g.textAlign = 'center'; g.textBaseline = 'middle'; g.fillText('!', x + w, y);
    }
    if (this.carry?.to) { // where a rack that is dragged would stand
      const { to, rack } = this.carry, m = 12;
      g.strokeStyle = colour('accent'); g.lineWidth = 2.5 * px;
      g.fillStyle = colour('accent-soft');
      g.setLineDash([5 * px, 4 * px]);
      g.beginPath(); g.roundRect(to.x + m, to.y + m, rack.w, rack.h, 6); g.fill(); g.stroke();
      g.setLineDash([]);
      g.fillStyle = colour('ink'); g.font = `700 ${12 * px}px system-ui, sans-serif`; g.textAlign = 'left'; g.textBaseline = 'top';
      g.fillText(`${rack.name} → ${to.name}`, to.x + m + 6 * px, to.y + m + rack.h + 4 * px);
    }
    if (this.sel) {
      const [x, y, w, h] = this.box(this.sel), m = 3 * px;
      g.strokeStyle = colour('ink');
      g.lineWidth = 2 * px;
      g.beginPath();
      g.roundRect(x - m, y - m, w + 2 * m, h + 2 * m, 3 * px);
      g.stroke();
    }
  }

  drawLabels(g, px) {
    const s = this.scene, font = (size, weight = 500) => { g.font = `${weight} ${size * px}px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif`; };
    g.textBaseline = 'alphabetic';
    g.textAlign = 'left';
    g.fillStyle = colour('soft');
    font(11, 600);
    for (const r of s.rows) if (this.seen(r.x, r.y - 30 * px, r.w, r.h + 30 * px)) { g.textAlign = 'left'; const w = g.measureText(r.name).width; const x = Math.max(this.see[0] + 6 * px, r.x - w - 12 * px >= this.see[0] ? r.x - w - 12 * px : r.x); g.fillText(r.name, x, r.x - w - 12 * px >= this.see[0] ? r.y + r.h / 2 + 4 * px : r.y - 4 * px); }
    for (const b of s.blocks) {
      if (b.w * this.view.s < 40 || (s.head ?? 12) * this.view.s < 12 || !b.name || !this.seen(b.x, b.y, b.w, b.h)) continue;
      const text = b.name === 'hosts' ? `${b.hosts} hosts` : b.w * this.view.s > 150 ? `${b.name} · ${b.hosts} hosts` : b.name;
      if (g.measureText(text).width < b.w - 14 * px) g.fillText(text, b.x + 10, b.y + Math.max(11 * px, 12) + 2 * px);
    }
    g.fillStyle = colour('soft');
    for (let i = 0; i < s.hosts.name.length; i++) {
      const k = s.kinds[s.hosts.kind[i]];
      if (k.w * this.view.s < 70 || !this.seen(s.hosts.x[i], s.hosts.y[i], k.w, k.h)) continue;
      font(Math.min(11, 9 * this.view.s), 600);
      g.fillText(s.hosts.name[i], s.hosts.x[i] + 5, s.hosts.y[i] + 10);
      if (k.w * this.view.s > 330 && k.model) { g.fillStyle = colour('faint'); g.textAlign = 'right'; g.fillText(k.model, s.hosts.x[i] + k.w - 5, s.hosts.y[i] + 10); g.textAlign = 'left'; g.fillStyle = colour('soft'); }
    }
    if (14 * this.view.s > 20) {
      font(9);
      g.textAlign = 'center';
      const c = s.switches;
      for (let i = 0; i < c.name.length; i++) if (this.seen(c.x[i] - 20, c.y[i] - 20, 40, 40)) g.fillText(c.name[i], c.x[i], c.y[i] + 12 + 2 * px);
    }
  }

  // Which parts are bad: by faults, or by what a live run reports.
  findBad() {
    const key = this.faults;
    if (this.badFor === key && this.badScene === this.scene) return;
    this.badFor = key; this.badScene = this.scene;
    this.bad = new Map(); this.badHosts = new Map(); this.marks = []; this.cutLinks = new Set();
    for (const f of key) {
      if (f.part.includes(' - ')) {
        const [a, b] = f.part.split(' - ').map(n => this.lookup(n));
        if (a && b) { this.cutLinks.add(Math.min(a.id, b.id) * this.scene.nodes + Math.max(a.id, b.id)); this.bad.set(a.id, this.bad.get(a.id) ?? 2); this.bad.set(b.id, this.bad.get(b.id) ?? 2); }
        continue;
      }
      const at = this.lookup(f.part);
      if (!at) continue;
      if (!at.port) this.marks.push({ at, factor: f.factor });
      if (at.type === 'host') this.badHosts.set(at.id, f.factor); else if (at.type === 'node' && !at.port) this.bad.set(at.id, f.factor);
    }
    if (!this.bad.size) this.bad = null;
  }
  badLink(a, b) { return this.bad.get(a) === 0 || this.bad.get(b) === 0 || this.cutLinks.has(Math.min(a, b) * this.scene.nodes + Math.max(a, b)); }
  partState(id) {
    const f = this.bad?.get(id);
    if (f !== undefined && f < 2) return f ? 'suspect' : 'failed';
    const h = this.host[id];
    if (h >= 0 && this.badHosts?.has(h)) return this.badHosts.get(h) ? 'suspect' : 'failed';
    return this.states?.get('n' + id);
  }
  hostState(i) {
    if (this.badHosts?.has(i)) return this.badHosts.get(i) ? 'suspect' : 'failed';
    if (this.bad && 16 * this.view.s < 5) { const h = this.scene.hosts, n = this.scene.kinds[h.kind[i]].x.length; for (const [id, f] of this.bad) if (f < 2 && id >= h.first[i] && id < h.first[i] + n) return f ? 'suspect' : 'failed'; }
    return this.states?.get('h' + i);
  }

  // setRuns takes traces of one or two runs, on one clock.
  setRuns(list) { this.runs = list.map(r => prepareMessages(r.trace, r.total, this, r.colour)); this.drawTop(); }

  // drawTop writes messages under way at this.time.
  drawTop() {
    const c = this.over;
    if (!c.width) return;
    if (!this.runs.length) { this.top.clearRect(0, 0, c.width, c.height); this.dots = 0; return; }
    if (!this.image || this.image.width !== c.width || this.image.height !== c.height) { this.image = this.top.createImageData(c.width, c.height); this.pixels = new Uint32Array(this.image.data.buffer); }
    this.pixels.fill(0);
    let dots = 0;
    for (const run of this.runs) dots += this.drawRun(run);
    this.dots = dots;
    this.top.putImageData(this.image, 0, 0);
  }

  drawRun(run) {
    const t = this.time, { flow, end, members, pair } = run;
    let n = 0;
    const on = (i, at) => { if (n === run.active.length) run.grow(); run.active[n] = i; run.at[n++] = (at - flow[i]) / Math.max(1, end[i] - flow[i]); };
    for (const { first, list, buckets } of run.levels) {
      const bucket = Math.max(0, Math.min(buckets - 1, Math.floor(t / run.total * buckets)));
      for (let j = first[bucket]; j < first[bucket + 1]; j++) { const i = list[j]; if (flow[i] <= t && t < end[i]) on(i, t); }
    }
    for (const g of run.gaps) for (const i of g.again) { // what ended in the round before a gap repeats in it
      for (let k = Math.max(1, Math.floor((t - end[i]) / g.round) + 1); k <= g.rounds && flow[i] + k * g.round <= t; k++) on(i, t - k * g.round);
    }
    const dots = n * members, z = Math.max(2, Math.round((dots > 4000 ? 1.5 : dots > 600 ? 2.5 : 4) * this.r));
    const { s } = this.view, k = s * this.r, ox = -this.view.x * k - z / 2 + .5, oy = -this.view.y * k - z / 2 + .5;
    const [cr, cg, cb] = rgb(run.colour), ink = (255 << 24) | (cb << 16) | (cg << 8) | cr;
    const w = this.over.width, h = this.over.height, px = this.pixels, { starts, length, x: X, y: Y, active, at } = run, right = w - z, low = h - z;
    let count = 0;
    for (let a = 0; a < n; a++) {
      const share = at[a];
      for (let m = 0, p = pair[active[a]] * members; m < members; m++, p++) {
        const from = starts[p], last = starts[p + 1] - 1;
        if (last <= from) continue;
        const along = share * length[last];
        let j = from + 1;
        while (j < last && length[j] < along) j++;
        const before = length[j - 1], f = (along - before) / (length[j] - before || 1), x0 = X[j - 1], y0 = Y[j - 1];
        const x = (x0 + (X[j] - x0) * f) * k + ox | 0, y = (y0 + (Y[j] - y0) * f) * k + oy | 0;
        if (x < 0 || y < 0 || x >= right || y >= low) continue;
        count++;
        let row = y * w + x;
        if (z === 2) { px[row] = px[row + 1] = ink; row += w; px[row] = px[row + 1] = ink; continue; }
        for (let dy = 0; dy < z; dy++, row += w) for (let dx = 0; dx < z; dx++) px[row + dx] = ink;
      }
    }
    return count;
  }

  // drawing gives what is seen as SVG: links, parts and words as lines and text, messages as an image on top.
  drawing() {
    const g = new Drawing(this.ctx), px = 1 / this.view.s, [l, t, r, b] = this.see, box = `x="${l}" y="${t}" width="${r - l}" height="${b - t}"`;
    this.drawBlocks(g, px);
    if (this.scene.folded) this.drawBands(g, px);
    this.drawLinks(g, px);
    this.drawAbove(g, px);
    const dots = this.runs.length ? `<image ${box} preserveAspectRatio="none" href="${this.over.toDataURL()}"/>` : '';
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${this.w}" height="${this.h}" viewBox="${l} ${t} ${r - l} ${b - t}" font-family="system-ui, sans-serif"><title>${escaped(this.scene.name || 'cluster')}</title><rect ${box} fill="${colour('ground')}"/>${g.out.join('\n')}${dots}</svg>\n`;
  }

  // picture gives what is seen as a PNG.
  picture() {
    const c = document.createElement('canvas'), g = c.getContext('2d');
    c.width = this.base.width; c.height = this.base.height;
    g.fillStyle = colour('ground');
    g.fillRect(0, 0, c.width, c.height);
    g.drawImage(this.lines, 0, 0);
    g.drawImage(this.base, 0, 0);
    g.drawImage(this.over, 0, 0);
    return new Promise(r => c.toBlob(r, 'image/png'));
  }
}

// wrapped breaks a text into lines of at most a width; what does not fit in the last line is cut off.
function wrapped(text, most, width, lines) {
  const out = [''];
  for (const word of text.split(' ')) {
    const longer = (out[out.length - 1] + ' ' + word).trim();
    if (width(longer) <= most || !out[out.length - 1]) out[out.length - 1] = longer;
    else if (out.length < lines) out.push(word);
    else { out[out.length - 1] += ' …'; break; }
  }
  return out;
}
