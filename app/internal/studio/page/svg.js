'use strict';
// The picture as SVG: what the stage draws on a canvas, written down instead. It has the part of a canvas's interface that the
// stage uses.

const short = v => String(Math.round(v * 100) / 100);
const escaped = text => text.replace(/[&<>"]/g, c => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]);

// Trail is a path.
class Trail {
  d = '';
  moveTo(x, y) { this.d += `M${short(x)} ${short(y)}`; }
  lineTo(x, y) { this.d += `L${short(x)} ${short(y)}`; }
  bezierCurveTo(...p) { this.d += 'C' + p.map(short).join(' '); }
  closePath() { this.d += 'Z'; }
  rect(x, y, w, h) { this.d += `M${short(x)} ${short(y)}h${short(w)}v${short(h)}h${short(-w)}Z`; }
  arc(x, y, r) { this.d += `M${short(x - r)} ${short(y)}a${short(r)} ${short(r)} 0 1 0 ${short(2 * r)} 0a${short(r)} ${short(r)} 0 1 0 ${short(-2 * r)} 0Z`; } // whole circles only
  roundRect(x, y, w, h, r) {
    r = Math.min(r, w / 2, h / 2);
    const turn = (dx, dy) => `a${short(r)} ${short(r)} 0 0 1 ${short(dx)} ${short(dy)}`;
    this.d += `M${short(x + r)} ${short(y)}h${short(w - 2 * r)}${turn(r, r)}v${short(h - 2 * r)}${turn(-r, r)}h${short(2 * r - w)}${turn(-r, -r)}v${short(2 * r - h)}${turn(r, -r)}Z`;
  }
}

class Drawing {
  out = []; trail = new Trail(); dash = []; globalAlpha = 1; lineWidth = 1; fillStyle = '#000'; strokeStyle = '#000'; font = '10px sans-serif'; textAlign = 'left'; textBaseline = 'alphabetic';
  constructor(canvas) { this.canvas = canvas; }

  path() { return new Trail(); }
  beginPath() { this.trail = new Trail(); }
  setLineDash(list) { this.dash = list; }
  measureText(text) { this.canvas.font = this.font; return this.canvas.measureText(text); }
  alpha() { return this.globalAlpha < 1 ? ` opacity="${short(this.globalAlpha)}"` : ''; }
  line() { return ` fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth.toPrecision(3)}"` + (this.dash.length ? ` stroke-dasharray="${this.dash.map(short).join(' ')}"` : '') + this.alpha(); }
  fill(trail = this.trail) { if (trail.d) this.out.push(`<path d="${trail.d}" fill="${this.fillStyle}"${this.alpha()}/>`); }
  stroke(trail = this.trail) { if (trail.d) this.out.push(`<path d="${trail.d}"${this.line()}/>`); }
  fillRect(x, y, w, h) { this.out.push(`<rect x="${short(x)}" y="${short(y)}" width="${short(w)}" height="${short(h)}" fill="${this.fillStyle}"${this.alpha()}/>`); }
  strokeRect(x, y, w, h) { this.out.push(`<rect x="${short(x)}" y="${short(y)}" width="${short(w)}" height="${short(h)}"${this.line()}/>`); }
  fillText(text, x, y) {
    const [, weight, size] = /^(?:(\d+) )?([\d.e-]+)px/.exec(this.font) ?? [], anchor = { center: 'middle', right: 'end' }[this.textAlign] ?? 'start', base = { middle: 'central', top: 'hanging' }[this.textBaseline];
    this.out.push(`<text x="${short(x)}" y="${short(y)}" font-size="${short(size)}" font-weight="${weight ?? 400}" text-anchor="${anchor}"${base ? ` dominant-baseline="${base}"` : ''} fill="${this.fillStyle}"${this.alpha()}>${escaped(text)}</text>`);
  }
}
for (const f of ['moveTo', 'lineTo', 'bezierCurveTo', 'closePath', 'rect', 'arc', 'roundRect']) Drawing.prototype[f] = function (...p) { this.trail[f](...p); };
