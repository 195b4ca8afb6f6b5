'use strict';
// What mouse, finger and keyboard do to the picture: select, move, zoom, and drag racks of a floor.

extend(Stage, class {
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
});
