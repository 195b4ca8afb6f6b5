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
    this.blockLinks = new Map(); this.edge = [];
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
    const pad = Math.min(46, this.w * .06), top = box ? pad : this.w < 500 ? 66 : 50, bottom = this.footer + (box ? 0 : this.tagsHigh());
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

  // move tells whether the clock runs.
  move(on) { if (this.moving !== on) { this.moving = on; if (!on) this.draw(); } }

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

// extend gives a class the methods of another one: the picture is one class in several files, one per idea.
function extend(kind, more) {
  for (const [name, method] of Object.entries(Object.getOwnPropertyDescriptors(more.prototype))) if (name !== 'constructor') Object.defineProperty(kind.prototype, name, method);
}
