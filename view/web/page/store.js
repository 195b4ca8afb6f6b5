// What the page knows: the server's messages put together.

export class Store {
  constructor() { this.forget(); }

  forget() {
    this.board = null;
    this.summary = null;
    this.now = 0; // the server's clock at the last message, in milliseconds
    this.heard = 0; // ours
    this.job = {};
    this.ranks = new Map();
    this.topology = null;
    this.loss = { stride: 1, steps: [], loss: [], grad_norm: [], learning_rate: [] };
    this.rate = { start: null, width_ns: 1e9, rate: [] };
    this.late = { ids: [], columns: [] };
    this.collectives = [];
    this.epochs = [];
    this.events = [];
    this.checkpoints = [];
    this.measures = [];
  }

  // apply takes a message and returns the names of what changed.
  apply(m) {
    const changed = new Set(['summary']);
    if (m.full) {
      this.forget();
      for (const k of ['job', 'ranks', 'topology', 'loss', 'rate', 'late', 'collectives', 'epochs', 'events', 'checkpoints', 'measures']) changed.add(k);
    }
    this.board = m.board;
    this.summary = m.summary;
    this.now = Date.parse(m.now);
    this.heard = performance.now();
    if (m.job) { this.job = m.job; changed.add('job'); }
    for (const r of m.ranks ?? []) { this.ranks.set(r.id, r); changed.add('ranks'); }
    for (const [id, step] of m.steps ?? []) { this.ranks.get(id).step = step; changed.add('ranks'); }
    if (m.topology) { this.topology = m.topology; changed.add('topology'); }
    if (m.loss) { this.mergeLoss(m.loss); changed.add('loss'); }
    if (m.throughput) { this.mergeRate(m.throughput); changed.add('rate'); }
    if (m.lateness) { this.mergeLate(m.lateness); changed.add('late'); }
    if (m.collectives) { this.collectives = m.collectives; changed.add('collectives'); }
    if (m.measures) { this.measures = m.measures; changed.add('measures'); }
    for (const [name, key, keep] of [['epochs', 'number', 200], ['events', 'number', 1000], ['checkpoints', 'step', 200]]) {
      if (m[name]) { upsert(this[name], m[name], key, keep); changed.add(name); }
    }
    return changed;
  }

  mergeLoss(v) {
    const mine = this.loss;
    const values = ['loss', 'grad_norm', 'learning_rate'];
    if (v.reset) { mine.steps = v.steps; for (const k of values) mine[k] = v[k]; }
    else v.steps.forEach((step, i) => {
      let at = mine.steps.length;
      while (at > 0 && mine.steps[at - 1] >= step) at--;
      const there = mine.steps[at] === step ? 1 : 0;
      mine.steps.splice(at, there, step);
      for (const k of values) mine[k].splice(at, there, v[k][i]);
    });
    mine.stride = v.stride;
  }

  mergeRate(v) {
    this.rate.start = v.start ? Date.parse(v.start) : null;
    this.rate.width_ns = v.width_ns;
    this.rate.rate = v.reset ? v.tokens_per_s : this.rate.rate.slice(0, v.from).concat(v.tokens_per_s);
  }

  mergeLate(v) {
    if (v.reset) this.late = { ids: v.ids ?? [], columns: [] };
    upsert(this.late.columns, v.columns, 'step', 240);
  }

  // elapsed is the run's age now, in nanoseconds.
  elapsed() {
    if (!this.summary) return 0;
    const more = this.job.ended || !this.job.started ? 0 : (performance.now() - this.heard) * 1e6;
    return this.summary.elapsed_ns + more;
  }

  // origin is the instant that times on the page count from, in milliseconds.
  origin() {
    if (this.job.started) return Date.parse(this.job.started);
    if (this.events.length) return Date.parse(this.events[0].at);
    return this.rate.start ?? this.now;
  }
}

// upsert puts rows into a list that is in the order of a key, and keeps the last.
function upsert(list, rows, key, keep) {
  for (const row of rows) {
    let at = list.length;
    while (at > 0 && list[at - 1][key] >= row[key]) at--;
    list.splice(at, at < list.length && list[at][key] === row[key] ? 1 : 0, row);
  }
  if (list.length > keep) list.splice(0, list.length - keep);
}
