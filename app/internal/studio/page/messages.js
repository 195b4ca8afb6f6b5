'use strict';
// The highest canvas: messages under way.

extend(Stage, class {
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
});
