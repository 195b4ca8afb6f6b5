'use strict';
// What is marked on the picture: the bound's cut, limiting links with their sentences, faults, incidents, a dragged rack, the
// selection.

extend(Stage, class {
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
});

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
