'use strict';
// What is written pixel by pixel: messages and, while the clock runs, links. Canvases without a GPU draw neither in time.

// prepareMessages turns a trace into what drawing needs: a dot is a function of (span, member, time), so any time can be
// drawn at once and two runs share a clock exactly.
function prepareMessages(t, total, stage, tint) {
  const { starts, routes } = t;
  const x = new Float32Array(routes.length), y = new Float32Array(routes.length), length = new Float32Array(routes.length);
  for (let p = 0; p + 1 < starts.length; p++) for (let i = starts[p]; i < starts[p + 1]; i++) {
    x[i] = stage.X[routes[i]]; y[i] = stage.Y[routes[i]];
    length[i] = i > starts[p] ? length[i - 1] + Math.hypot(x[i] - x[i - 1], y[i] - y[i - 1]) : 0;
  }
  // A dot leaves with its message's first byte and is there when the last one is. Messages are sorted into steps of time, one
  // list behind another, so that a frame looks at those of its own step: short ones into short steps, others into long ones.
  const n = t.rank.length, there = new Float64Array(n);
  for (let i = 0; i < n; i++) if (t.pair[i] >= 0) there[i] = t.end_ps[i] + t.latency_ps[t.pair[i]];
  const short = total / 128;
  const levels = [sortedByTime(t, there, total, 1024, i => there[i] - t.flow_ps[i] <= short), sortedByTime(t, there, total, 16, i => there[i] - t.flow_ps[i] > short)];
  const gaps = t.gaps.filter(g => g.rounds > 0 && g.end_ps > g.begin_ps).map(g => {
    const round = (g.end_ps - g.begin_ps) / g.rounds, again = [];
    for (let i = 0; i < t.rank.length; i++) if (t.pair[i] >= 0 && t.end_ps[i] > g.begin_ps - round && t.end_ps[i] <= g.begin_ps) again.push(i);
    return { round, rounds: g.rounds, again };
  });
  const run = { starts, x, y, length, levels, total, gaps, colour: tint, members: t.members.length, pair: t.pair, flow: t.flow_ps, end: there, active: new Int32Array(1024), at: new Float64Array(1024) };
  run.grow = () => { const a = new Int32Array(2 * run.active.length), b = new Float64Array(a.length); a.set(run.active); b.set(run.at); run.active = a; run.at = b; };
  return run;
}

// sortedByTime lists the messages of each step of time, one list behind another.
function sortedByTime(t, there, total, buckets, mine) {
  const first = new Int32Array(buckets + 1), step = v => Math.max(0, Math.min(buckets - 1, Math.floor(v / total * buckets)));
  const each = f => { for (let i = 0; i < there.length; i++) if (t.pair[i] >= 0 && mine(i)) for (let k = step(t.flow_ps[i]), to = step(there[i]); k <= to; k++) f(k, i); };
  each(k => first[k + 1]++);
  for (let k = 0; k < buckets; k++) first[k + 1] += first[k];
  const list = new Int32Array(first[buckets]), next = first.slice();
  each((k, i) => { list[next[k]++] = i; });
  return { first, list, buckets };
}

// writeLines writes lines between parts over opaque pixels: a few million a frame, without a GPU. They have no soft edges.
function writeLines(pixels, w, h, list, stage, tint, wide, alpha) {
  const [cr, cg, cb] = tint.match(/[\d.]+/g).map(Number), k = stage.view.s * stage.r, ox = -stage.view.x * k, oy = -stage.view.y * k, { X, Y } = stage;
  const a = Math.round(256 * alpha), keep = 256 - a, r = cr * a | 0, g = cg * a | 0, b = cb * a | 0;
  for (let i = 0; i < list.length; i += 2) {
    let x0 = X[list[i]] * k + ox, y0 = Y[list[i]] * k + oy, x1 = X[list[i + 1]] * k + ox, y1 = Y[list[i + 1]] * k + oy;
    const steep = Math.abs(y1 - y0) > Math.abs(x1 - x0), along = steep ? h : w, across = (steep ? w : h) - wide, stride = steep ? w : 1, other = steep ? 1 : w;
    if (steep) { let t = x0; x0 = y0; y0 = t; t = x1; x1 = y1; y1 = t; }
    if (x0 > x1) { let t = x0; x0 = x1; x1 = t; t = y0; y0 = y1; y1 = t; }
    const slope = x1 > x0 ? (y1 - y0) / (x1 - x0) : 0, from = Math.max(0, Math.round(x0)), to = Math.min(along - 1, Math.round(x1));
    for (let t = from, y = y0 + (from - x0) * slope - (wide - 2) / 2; t <= to; t++, y += slope) { // rounded down
      if (y < 0 || y > across) continue;
      for (let d = 0, at = t * stride + (y | 0) * other; d < wide; d++, at += other) {
        const p = pixels[at];
        pixels[at] = -16777216 | ((p >> 16 & 255) * keep + b >> 8) << 16 | ((p >> 8 & 255) * keep + g >> 8) << 8 | (p & 255) * keep + r >> 8;
      }
    }
  }
}
