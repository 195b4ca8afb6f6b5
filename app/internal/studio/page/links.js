'use strict';
// The lowest canvas: frames of blocks, and links in the colour of their load, at the clock's time or on average. A folded
// picture has bands instead of links.

extend(Stage, class {
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

  // setBusy takes how busy links are: on average and, where that is known, over time.
  setBusy(run) {
    this.busy = null; this.load = null; this.linkRows = null;
    if (!run?.busy.length) return;
    const n = this.scene.nodes;
    this.busy = new Map(run.busy.map((l, i) => [l.a * n + l.b, i]));
    this.means = Float32Array.from(run.busy, l => l.busy);
    if (!run.trace?.link_load?.length) return;
    this.load = run.trace.link_load; this.loadRow = Int32Array.from(run.busy, l => l.row);
    this.columns = this.load.length / (1 + this.loadRow.reduce((a, b) => Math.max(a, b))); this.loadTotal = run.time_ps;
  }

  columnNow() { return this.load && this.byClock ? Math.max(0, Math.min(this.columns - 1, Math.floor(this.time / this.loadTotal * this.columns))) : -1; }

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

  weight(row) { return row === undefined ? 0 : this.column >= 0 ? this.load[this.loadRow[row] * this.columns + this.column] / 255 : this.means[row]; }

  // open shows the links of a block of a folded picture. Those that leave it end at its edge, where a band takes them on: their
  // other ends have numbers of their own there, after those of all parts.
  open(block, list) {
    const s = this.scene, n = s.nodes, b = s.blocks[block], xs = [], ys = [], real = [...this.edge];
    const inside = id => (this.host[id] >= 0 ? s.hosts.block[this.host[id]] : s.switches.block[id - s.switches.first]) === block;
    const edge = (from, to) => {
      const dx = this.X[to] - this.X[from], dy = this.Y[to] - this.Y[from], over = 8;
      const along = (d, at, low, high) => d > 0 ? (high + over - at) / d : d < 0 ? (low - over - at) / d : Infinity;
      const f = Math.max(0, Math.min(1, along(dx, this.X[from], b.x, b.x + b.w), along(dy, this.Y[from], b.y, b.y + b.h)));
      xs.push(this.X[from] + dx * f); ys.push(this.Y[from] + dy * f); real.push(to);
      return n + real.length - 1;
    };
    const cut = Int32Array.from(list);
    for (let i = 0; i < cut.length; i += 2) {
      const [a, z] = [list[i], list[i + 1]];
      if (inside(a) && !inside(z)) cut[i + 1] = edge(a, z); else if (inside(z) && !inside(a)) cut[i] = edge(z, a);
    }
    const longer = (old, more) => { const out = new Float32Array(old.length + more.length); out.set(old); out.set(more, old.length); return out; };
    this.X = longer(this.X, xs); this.Y = longer(this.Y, ys); this.edge = real;
    this.blockLinks.set(block, cut);
    this.draw();
  }

  // sortedLinks are the links that are seen, as pairs of parts, by what they look like: idle, by load from 1 to 5, measured, dead.
  sortedLinks() {
    const s = this.scene, lists = s.folded ? [...this.blockLinks.values()] : [s.linkList], [l, t, r, bo] = this.see;
    const out = { load: Array.from({ length: 6 }, () => []), measured: {}, dead: [], n: 0 };
    for (const list of lists) for (let i = 0; i < list.length; i += 2) {
      const a = list[i], b = list[i + 1], ax = this.X[a], ay = this.Y[a], bx = this.X[b], by = this.Y[b];
      if (Math.max(ax, bx) < l || Math.min(ax, bx) > r || Math.max(ay, by) < t || Math.min(ay, by) > bo) continue;
      out.n++;
      const p = this.part(a), q = this.part(b), state = this.ratios && this.ratioState(p, q), w = this.linkWeight(p, q);
      const to = this.bad && (this.bad.has(p) || this.bad.has(q)) && this.badLink(p, q) ? out.dead : state ? out.measured[state] ??= [] : out.load[w > 0 ? 1 + Math.min(4, Math.floor(w * 4.999)) : 0];
      to.push(a, b);
    }
    this.drawnLinks = out.n;
    return out;
  }

  // part is the part that the end of a drawn link stands for.
  part(end) { return end < this.scene.nodes ? end : this.edge[end - this.scene.nodes]; }

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
});
