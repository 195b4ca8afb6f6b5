'use strict';
// Hosts, what is in them, and switches, each in the colour of its state, with as much text as fits.

extend(Stage, class {
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
      if (g.measureText(text).width < b.w - 14 * px) this.plate(g, px, text, b.x + 10, b.y + Math.max(11 * px, 12) + 2 * px);
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

  // plate writes a name on a ground of its own, as links may pass below it.
  plate(g, px, text, x, y) {
    const w = g.measureText(text).width;
    g.fillStyle = colour('block'); g.globalAlpha = .8; g.fillRect(x - 3 * px, y - 10 * px, w + 6 * px, 13 * px);
    g.globalAlpha = 1; g.fillStyle = colour('soft'); g.fillText(text, x, y);
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
});
