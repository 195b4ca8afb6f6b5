// Topology: hosts with their ranks, placed by replica (rows), stage (columns)
// and tensor (side by side within a box).
import { svg, el, put, count, sign } from './format.js';

export class Topology {
  constructor(store) {
    this.store = store;
    this.box = document.getElementById('topology');
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  draw() {
    const t = this.store.topology;
    const width = this.box.clientWidth;
    if (!t || !width) return;
    if (!t.hosts.length) {
      this.box.replaceChildren(el('p', { class: 'empty' }, 'no ranks yet'));
      return;
    }
    const many = this.store.ranks.size > 48;
    const picture = many ? this.dense(t, width) : this.close(t, width);
    picture.setAttribute('role', 'img');
    picture.setAttribute('aria-label', `${t.hosts.length} hosts with ${this.store.ranks.size} ranks: ${t.replicas} replicas of ${t.stages} stages of ${t.tensor} tensor ranks`);
    this.box.replaceChildren(picture);
    this.paint();
    const n = t.hosts.length;
    put('topology-read', `${count(n)} ${n === 1 ? 'host' : 'hosts'}${t.replicas ? ` · ${t.replicas} × ${t.stages} × ${t.tensor}` : ''}`).title = 'replicas × stages × tensor ranks';
    this.legend(t, many);
  }

  legend(t, many) {
    const link = kind => {
      const used = [...new Set(t.groups.filter(g => g.kind === kind).map(g => g.link))].sort();
      return used.length ? used.join(' and ') : null;
    };
    const item = (name, n, kind, mark) => n > 1 && link(kind) ? el('li', {}, mark, `${name} ${n}, over ${link(kind)}`) : null;
    const line = (cls, d) => svg('svg', { width: 20, height: 12, 'aria-hidden': 'true' }, svg('path', { class: cls, d }));
    const box = svg('svg', { width: 20, height: 12, 'aria-hidden': 'true' }, svg('rect', { class: 'unit', x: 1, y: 1, width: 18, height: 10, rx: 3 }), svg('path', { class: 'link', d: 'M10 1V11' }));
    document.getElementById('topology-key').replaceChildren(...[
      item('replicas', t.replicas, 'data', line('link data', 'M10 0V12')),
      item('stages', t.stages, 'pipeline', line('link', 'M1 6H17M13 3L17 6L13 9')),
      item('tensor', t.tensor, 'tensor', box),
      many && this.prefix ? el('li', { class: 'faint' }, `hosts are ${this.prefix}N`) : null,
      many && t.stages > 1 ? el('li', { class: 'faint' }, 'darker: later stage') : null,
    ].filter(Boolean));
  }

  // cell is one rank; paint gives it its state.
  cell(id, x, y, w, h, text) {
    const r = svg('rect', { class: 'place', x, y, width: w, height: h, rx: Math.min(4, w / 4) }, svg('title', {}));
    r.dataset.id = id;
    const t = text ? svg('text', { class: 'in', x: x + w / 2, y: y + h / 2 + 4 }) : null;
    return t ? svg('g', {}, r, t) : r;
  }

  // paint puts states on the cells that are drawn.
  paint() {
    for (const rect of this.box.querySelectorAll('rect[data-id]')) {
      const r = this.store.ranks.get(Number(rect.dataset.id));
      if (!r) continue;
      const bad = r.state !== 'healthy';
      const is = `${r.state}${r.rank}`;
      if (rect.dataset.is === is) continue;
      rect.dataset.is = is;
      rect.dataset.s = r.state;
      rect.classList.toggle('bad', bad);
      const name = r.rank >= 0 ? `rank ${r.rank}` : `slot ${r.id}`;
      const seat = seated(r) ? `replica ${r.replica}, stage ${r.stage}, tensor ${r.tensor}` : r.rank >= 0 ? 'spare' : 'not in the step';
      rect.querySelector('title').textContent = `${name}, ${r.state}: ${seat}${r.host ? `, on ${r.host}` : ''}`;
      const text = rect.parentNode.querySelector(':scope > text.in');
      if (text && rect.parentNode.tagName === 'g') {
        text.textContent = bad ? sign(r.state) : String(r.rank >= 0 ? r.rank : r.id);
        text.classList.toggle('bad', bad);
      }
    }
  }

  // close is the picture for few ranks.
  close(t, width) {
    const cw = 32, ch = 30, gap = 22, rowGap = 16, head = 28, pad = 14, label = 20;
    const parts = [];
    const tensor = Math.max(1, t.tensor);
    const hosts = t.hosts.map(h => {
      const inRank = h.ids.map(id => this.store.ranks.get(id)).filter(Boolean);
      const placed = inRank.filter(seated), loose = inRank.filter(r => !seated(r));
      const rows = [...new Set(placed.map(r => r.replica))].sort((a, b) => a - b);
      const stages = [...new Set(placed.map(r => r.stage))].sort((a, b) => a - b);
      // Without stages and tensor ranks, replicas stand side by side.
      const flat = t.stages <= 1 && t.tensor <= 1;
      const perRow = flat ? Math.max(1, Math.min(rows.length, Math.floor((width - 2 * pad - 20) / (cw + 14)), 8)) : 0;
      const w = flat ? perRow * (cw + 14) - 14 : label + stages.length * (tensor * cw + 8) + (stages.length - 1) * gap;
      const lines = flat ? Math.ceil(rows.length / perRow) : rows.length;
      const extra = loose.length ? ch + rowGap : 0;
      return { h, placed, loose, rows, stages, flat, perRow, w: Math.max(w, loose.length * (cw + 6) + (loose.length ? 84 : 0), h.host.length * 7 + 60) + 2 * pad, height: head + lines * (ch + 8) + Math.max(0, lines - 1) * rowGap + extra + pad };
    });
    let x = 0, y = 4, rowHeight = 0, right = 0;
    const spots = [];
    for (const one of hosts) {
      if (x > 0 && x + one.w > width - 10) { x = 0; y += rowHeight + 34; rowHeight = 0; }
      spots.push([x, y]);
      right = Math.max(right, x + one.w);
      x += one.w + 14;
      rowHeight = Math.max(rowHeight, one.height);
    }
    const total = y + rowHeight + (hosts.length > 1 ? 34 : 6);
    if (hosts.length > 1) this.wire(parts, hosts, spots, t.between, right);
    hosts.forEach((one, i) => this.host(parts, one, ...spots[i], t, { cw, ch, gap, rowGap, head, pad, label, tensor }));
    const all = Math.max(60, right + (new Set(spots.map(s => s[1])).size > 1 ? 10 : 2));
    return svg('svg', { viewBox: `0 0 ${all} ${total}`, width: all, height: total }, ...parts);
  }

  // wire joins the hosts of each line.
  wire(parts, hosts, spots, kind, right) {
    const lines = new Map();
    spots.forEach(([x, y], i) => lines.set(y, [...lines.get(y) ?? [], { x: x + hosts[i].w / 2, bottom: y + hosts[i].height }]));
    const bus = [];
    for (const [, list] of lines) {
      const y = Math.max(...list.map(e => e.bottom)) + 16;
      bus.push(y);
      for (const e of list) parts.push(svg('path', { class: 'link wire', d: `M${e.x} ${e.bottom}V${y}` }));
      const ends = lines.size > 1 ? [...list.map(e => e.x), right + 8] : list.map(e => e.x);
      parts.push(svg('path', { class: 'link wire', d: `M${Math.min(...ends)} ${y}H${Math.max(...ends)}` }));
    }
    if (bus.length > 1) parts.push(svg('path', { class: 'link wire', d: `M${right + 8} ${bus[0]}V${bus.at(-1)}` }));
    const first = [...lines.values()][0];
    const text = svg('text', { class: 'strong', x: first[0].x + 8, y: bus[0] + 14 });
    text.textContent = kind;
    parts.push(text);
  }

  host(parts, one, x, y, t, m) {
    parts.push(svg('rect', { class: 'host', x: x + 0.5, y: y + 0.5, width: one.w, height: one.height, rx: 9 }));
    const name = svg('text', { class: 'strong', x: x + m.pad, y: y + 19 });
    name.textContent = one.h.host || 'this host';
    const kind = svg('text', { x: x + one.w - m.pad, y: y + 19, 'text-anchor': 'end' });
    kind.textContent = t.within;
    parts.push(name, kind);
    const left = x + m.pad, top = y + m.head;
    if (one.flat) {
      const at = i => [left + (i % one.perRow) * (m.cw + 14), top + 4 + Math.floor(i / one.perRow) * (m.ch + 8 + m.rowGap)];
      const sorted = [...one.placed].sort((a, b) => a.rank - b.rank);
      sorted.forEach((r, i) => {
        const [cx, cy] = at(i);
        if (i + 1 < sorted.length && Math.floor((i + 1) / one.perRow) === Math.floor(i / one.perRow)) parts.push(svg('path', { class: 'link data', d: `M${cx + m.cw + 2} ${cy + m.ch / 2}h10` }));
        else if (i + 1 < sorted.length) parts.push(svg('path', { class: 'link data', d: `M${cx + m.cw / 2} ${cy + m.ch + 3}v${m.rowGap + 3}` }));
        parts.push(this.cell(r.id, cx, cy, m.cw, m.ch, true));
      });
    } else {
      this.grid(parts, one, left, top, m);
    }
    one.loose.forEach((r, i) => parts.push(this.cell(r.id, left + i * (m.cw + 6), y + one.height - m.ch - m.pad + 2, m.cw, m.ch, true)));
    if (one.loose.some(r => r.rank >= 0)) {
      const spare = svg('text', { x: left + one.loose.length * (m.cw + 6), y: y + one.height - m.ch / 2 - m.pad + 6 });
      spare.textContent = one.loose.length === 1 ? 'spare' : 'spare, or away';
      parts.push(spare);
    }
  }

  grid(parts, one, left, top, m) {
    const box = m.tensor * m.cw + 8;
    const xOf = s => left + m.label + one.stages.indexOf(s) * (box + m.gap);
    const yOf = d => top + one.rows.indexOf(d) * (m.ch + 8 + m.rowGap);
    for (const d of one.rows) {
      const text = svg('text', { x: left - 2, y: yOf(d) + m.ch / 2 + 8 });
      text.textContent = `d${d}`;
      parts.push(text);
      for (const s of one.stages) {
        const ranks = one.placed.filter(r => r.replica === d && r.stage === s);
        if (!ranks.length) continue;
        const bx = xOf(s), by = yOf(d);
        parts.push(svg('rect', { class: 'unit', x: bx + 0.5, y: by + 0.5, width: box, height: m.ch + 7, rx: 7 }));
        for (const r of ranks) parts.push(this.cell(r.id, bx + 4.5 + r.tensor * m.cw, by + 4, m.cw, m.ch, true));
        if (one.stages.includes(s + 1) && one.placed.some(r => r.replica === d && r.stage === s + 1)) {
          const ay = by + m.ch / 2 + 4;
          parts.push(svg('path', { class: 'link', d: `M${bx + box + 3} ${ay}h${m.gap - 9}` }), svg('path', { class: 'arrow', d: `M${bx + box + m.gap - 2} ${ay}l-6 -3.5v7Z` }));
        }
        const below = one.rows[one.rows.indexOf(d) + 1];
        if (below != null && one.placed.some(r => r.replica === below && r.stage === s)) parts.push(svg('path', { class: 'link data', d: `M${bx + box / 2} ${by + m.ch + 11}v${m.rowGap - 6}` }));
      }
    }
  }

  // dense is the picture for many ranks: a line of small cells for each host,
  // darker towards the last stage.
  dense(t, width) {
    const n = this.store.ranks.size, c = n > 600 ? 8 : n > 200 ? 11 : 15, g = n > 600 ? 1.5 : 2, line = c + (n > 600 ? 5.5 : 9);
    const most = Math.max(...t.hosts.map(h => h.ids.length));
    const across = Math.min(most, 16);
    const rows = Math.ceil(most / across);
    const prefix = common(t.hosts.map(h => h.host));
    const name = Math.max(...t.hosts.map(h => h.host.length - prefix.length)) * 6.2 + 8;
    const w = name + across * (c + g), h = rows * (c + g) + line - c - g;
    const perLine = Math.max(1, Math.min(t.hosts.length, Math.floor((width + 10) / (w + 10))));
    const gap = perLine > 1 ? Math.min(28, (width - perLine * w) / (perLine - 1)) : 0;
    const parts = [];
    t.hosts.forEach((host, i) => {
      const x = (i % perLine) * (w + gap), y = Math.floor(i / perLine) * h;
      const text = svg('text', { x: x + name - 6, y: y + c / 2 + 4, 'text-anchor': 'end' });
      text.textContent = host.host.slice(prefix.length);
      parts.push(text);
      host.ids.forEach((id, k) => {
        const r = this.store.ranks.get(id);
        const cell = this.cell(id, x + name + (k % across) * (c + g), y + Math.floor(k / across) * (c + g), c, c, false);
        cell.setAttribute('class', 'few');
        cell.setAttribute('fill-opacity', t.stages > 1 ? (0.3 + 0.6 * (r?.stage ?? 0) / (t.stages - 1)).toFixed(2) : '0.5');
        parts.push(cell);
      });
    });
    this.prefix = prefix;
    const total = Math.ceil(t.hosts.length / perLine) * h, all = perLine * w + (perLine - 1) * gap;
    return svg('svg', { class: 'dense', viewBox: `-1 -1 ${all + 2} ${total + 2}`, width: all, height: total }, ...parts);
  }
}

// seated says whether a rank has a seat in the layout: spare ranks and those that are not in the step have none.
function seated(r) { return r.rank >= 0 && r.replica >= 0; }

// common is what all names begin with, up to their numbers.
function common(names) {
  if (names.length < 2) return '';
  let n = 0;
  while (names.every(s => n < s.length && s[n] === names[0][n] && !/[0-9]/.test(s[n]))) n++;
  return names[0].slice(0, n);
}
