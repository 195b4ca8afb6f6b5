// Ranks: cards while they are few, numbered cells, then small cells.
import { el, svg, put, count, size, time, sign, states, clock } from './format.js';

const few = 32, some = 160;

export class Ranks {
  constructor(store) {
    this.store = store;
    this.box = document.getElementById('ranks');
    this.detail = document.getElementById('rank');
    this.cells = new Map();
    this.mode = '';
    this.chosen = null;
    this.box.addEventListener('click', e => {
      const cell = e.target.closest('.rank');
      if (cell) this.choose(Number(cell.dataset.id));
    });
    this.box.addEventListener('keydown', e => this.key(e));
    new ResizeObserver(() => { if (this.mode && this.mode !== 'cards') this.columns(this.cells.size); }).observe(this.box);
    this.box.addEventListener('pointerover', e => {
      const cell = e.target.closest('.rank');
      put('ranks-read', cell ? this.tell(this.store.ranks.get(Number(cell.dataset.id))) : this.about());
    });
    this.box.addEventListener('pointerleave', () => put('ranks-read', this.about()));
  }

  about() {
    const n = this.store.ranks.size;
    return n ? '' : 'none yet';
  }

  tell(r) {
    if (!r) return '';
    const who = r.rank >= 0 ? `rank ${r.rank}` : `slot ${r.id}, no rank`;
    return `${who} · ${r.state} · step ${count(r.step)}${r.host ? ` · ${r.host}` : ''}`;
  }

  draw() {
    const all = [...this.store.ranks.values()].sort((a, b) => a.id - b.id);
    const mode = all.length <= few ? 'cards' : all.length <= some ? 'cells mid' : 'cells';
    if (mode !== this.mode || all.length !== this.cells.size || all.some(r => !this.cells.has(r.id))) {
      this.mode = mode;
      this.box.className = `ranks ${mode}`;
      this.box.style.gridTemplateColumns = '';
      this.cells.clear();
      this.box.replaceChildren(...all.map((r, i) => {
        const cell = mode === 'cards' ? this.card(r) : el('button', { type: 'button', class: 'rank cell' });
        cell.dataset.id = r.id;
        cell.tabIndex = i === 0 ? 0 : -1;
        this.cells.set(r.id, { cell, was: '' });
        return cell;
      }));
    }
    if (mode !== 'cards') this.columns(all.length);
    for (const r of all) this.update(r);
    this.key2(all);
    if (!this.box.matches(':hover')) put('ranks-read', this.about());
  }

  // columns are as many eights as fit, so that hosts of eight do not break.
  columns(n) {
    const each = this.mode === 'cells' ? n > 2000 ? 11 : this.box.clientWidth < 500 ? 13 : 16 : 40;
    const fit = Math.max(1, Math.floor(this.box.clientWidth / each));
    this.box.style.gridTemplateColumns = `repeat(${fit >= 16 ? fit - fit % 8 : fit}, minmax(0, 1fr))`;
  }

  card() {
    return el('button', { type: 'button', class: 'rank card' },
      el('span', { class: 'who' }), el('span', { class: 'is' }),
      el('span', { class: 'row' }, el('span', { class: 'step' }), el('span', { class: 'mem' })),
      el('span', { class: 'row' }, el('span', { class: 'place' }), el('span', { class: 'pid' })));
  }

  update(r) {
    const c = this.cells.get(r.id);
    const is = `${r.state}|${r.rank}|${r.step}|${r.restarts}|${r.pid}|${r.memory_bytes}|${this.chosen === r.id}`;
    if (c.was === is) return;
    c.was = is;
    const { cell } = c;
    cell.dataset.s = r.state;
    cell.setAttribute('aria-pressed', String(this.chosen === r.id));
    if (this.mode !== 'cards') cell.setAttribute('aria-label', this.tell(r)); // a card says it
    if (this.mode === 'cards') {
      const at = name => cell.querySelector(name);
      put(at('.who'), r.rank >= 0 ? `rank ${r.rank}` : `slot ${r.id}`);
      put(at('.is'), `${sign(r.state)} ${r.state}`.trim());
      put(at('.step'), `step ${count(r.step)}`);
      put(at('.mem'), r.memory_bytes ? size(r.memory_bytes) : '');
      put(at('.place'), this.place(r) || r.host || '');
      put(at('.pid'), r.restarts ? `↻ ${r.restarts}` : r.pid ? `pid ${r.pid}` : '');
    } else if (this.mode === 'cells mid') {
      put(cell, r.state === 'healthy' ? String(r.rank >= 0 ? r.rank : r.id) : sign(r.state));
    } else {
      put(cell, sign(r.state));
    }
  }

  place(r) {
    const t = this.store.topology;
    if (!t || r.rank < 0) return '';
    if (r.replica < 0) return 'spare';
    const list = [];
    if (t.replicas > 1) list.push(`d${r.replica}`);
    if (t.stages > 1) list.push(`p${r.stage}`);
    if (t.tensor > 1) list.push(`t${r.tensor}`);
    return list.join(' ');
  }

  // key2 is the legend: states that occur, with how many.
  key2(all) {
    const n = new Map(states.map(s => [s, 0]));
    for (const r of all) n.set(r.state, (n.get(r.state) ?? 0) + 1);
    const text = JSON.stringify([...n]);
    if (text === this.legend) return;
    this.legend = text;
    document.getElementById('ranks-key').replaceChildren(...[...n].filter(([, k]) => k > 0).map(([state, k]) => {
      const mark = el('span', { class: 'sign', 'aria-hidden': 'true' }, sign(state));
      mark.dataset.s = state;
      return el('li', {}, mark, `${state} ${count(k)}`);
    }));
  }

  key(e) {
    const cell = e.target.closest('.rank');
    if (!cell) return;
    const list = [...this.box.children], at = list.indexOf(cell);
    const top = list[0].offsetTop;
    let across = list.findIndex(c => c.offsetTop > top);
    if (across < 0) across = list.length;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + across, ArrowUp: at - across, Home: 0, End: list.length - 1 }[e.key];
    if (e.key === 'Escape') { this.choose(null); return; }
    if (to == null) return;
    e.preventDefault();
    const next = list[to];
    if (!next) return;
    cell.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    put('ranks-read', this.tell(this.store.ranks.get(Number(next.dataset.id))));
  }

  choose(id) {
    const was = this.chosen;
    this.chosen = id === was ? null : id;
    for (const one of [was, this.chosen]) if (this.store.ranks.has(one)) this.update(this.store.ranks.get(one));
    this.detail.hidden = this.chosen == null;
    clearInterval(this.timer);
    if (this.chosen == null) return;
    this.show();
    this.timer = setInterval(() => this.show(), 1000);
  }

  async show() {
    const id = this.chosen;
    let r = this.store.ranks.get(id);
    try {
      const got = (await (await fetch(`/api/ranks?id=${id}`)).json()).ranks[0];
      if (got) r = got;
    } catch { /* the server is gone: what the page knows is shown */ }
    if (!r || id !== this.chosen) return;
    const pair = (k, v) => el('div', {}, el('dt', {}, k), el('dd', {}, v));
    const list = [pair('state', r.state), pair('slot', String(r.id)), pair('host', r.host || '–'), pair('pid', r.pid ? String(r.pid) : '–'),
      pair('step', count(r.step)), pair('restarts', count(r.restarts)), pair('memory', size(r.memory_bytes)),
      pair('replica, stage, tensor', `${r.replica}, ${r.stage}, ${r.tensor}`)];
    if (r.replica < 0 && r.rank >= 0) list.splice(-1, 1, pair('place', 'spare: the layout needs fewer ranks'));
    if (r.last) {
      list.push(pair('last step took', time(r.last.wall_ns)), pair('forward', time(r.last.forward_ns)), pair('backward', time(r.last.backward_ns)),
        pair('communication', time(r.last.comm_ns)), pair('of it exposed', time(r.last.exposed_ns)), pair('sums within layers', time(r.last.tensor_ns)), pair('bubble', time(r.last.bubble_ns)),
        pair('waited at commit', time(r.last.waited_ns)));
    }
    const close = el('button', { type: 'button', class: 'quiet' }, 'close');
    close.addEventListener('click', () => this.choose(null));
    this.detail.replaceChildren(
      el('header', {}, el('strong', {}, r.rank >= 0 ? `Rank ${r.rank}` : `Slot ${r.id}`), el('span', { class: 'faint' }, r.rank >= 0 ? '' : 'has no rank in this epoch'), close),
      el('dl', { class: 'pairs' }, ...list), ...this.steps(r), this.log(r));
  }

  // steps are curves of a rank's last steps: how long each took, and how long of it the rank computed.
  steps(r) {
    const s = r.series;
    if (!s || s.steps.length < 2) return [];
    const w = 320, h = 46, most = Math.max(...s.wall_ns, 1), n = s.steps.length;
    const line = v => v.map((y, i) => `${i ? 'L' : 'M'}${(i / (n - 1) * w).toFixed(1)} ${(h - 2 - y / most * (h - 4)).toFixed(1)}`).join('');
    const picture = svg('svg', { viewBox: `0 0 ${w} ${h}`, preserveAspectRatio: 'none', role: 'img', class: 'spark',
      'aria-label': `time of steps ${s.steps[0]} to ${s.steps[n - 1]}: at most ${time(most)}` },
      svg('path', { class: 'raw', d: line(s.wall_ns) }), svg('path', { class: 'smooth', d: line(s.compute_ns) }));
    return [el('p', { class: 'key' }, `steps ${count(s.steps[0])} to ${count(s.steps[n - 1])}: time of a step, at most ${time(most)}, and computing in it`), picture];
  }

  // log is what happened to the slot and what its processes printed, newest first.
  log(r) {
    const origin = this.store.origin();
    const lines = [...this.store.events.filter(e => e.id === r.id).map(e => [Date.parse(e.at), `${e.kind}: ${e.text}`]), ...(r.log ?? []).map(l => [Date.parse(l.at), l.text])]
      .sort((a, b) => b[0] - a[0]).slice(0, 100);
    return el('div', { class: 'scroll log', tabindex: '0', role: 'region', 'aria-label': 'events and output of this slot, newest first' },
      ...lines.length ? lines.map(([at, text]) => el('p', {}, el('time', {}, clock((at - origin) * 1e6)), ` ${text}`)) : [el('p', { class: 'faint' }, 'nothing printed, nothing happened')]);
  }
}
