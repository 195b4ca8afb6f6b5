'use strict';
// A run or a cluster as it is now, on the same picture. The server passes /live/ on to the address that it was started
// with: a page of 'weft up' (its state at /api/all, its verdicts below /watch/) or of 'weft watch' (/api/view).

// failing incidents are those in which something is dead or stands still. What is slow is suspect, however bad.
function failing(i) { return i.severity === 'critical' && !/^(slow-|straggler|host-starved)/.test(i.kind); }

class Live {
  constructor(app) { this.app = app; this.on = false; this.history = []; this.lanes = new Map(); this.back = null; this.at = new Map(); this.every = 1000; this.turn = 0; this.counts = new Map(); this.traffic = new Map(); this.title = ''; this.known = []; }

  start() {
    if (this.on) return;
    this.on = true;
    if (this.app.recording) { this.recorded(this.app.recording); return; }
    this.going = this.step(++this.turn);
  }
  stop() { this.on = false; this.turn++; clearTimeout(this.soon); }

  // again shows a recording anew, with predictions that were not there before, and stands where it stood.
  again() {
    const at = this.back;
    this.history = []; this.lanes.clear(); this.counts.clear(); this.back = null;
    if (this.app.state.view !== 'live') return;
    this.recorded(this.app.recording);
    if (at !== null) this.app.seek(at);
  }

  // recorded shows all of a recording, and stands at its end.
  recorded(frames) {
    if (!this.history.length) for (const f of frames) this.showWatch(f.view, f.rows, f.t);
    else this.app.showLive(this.groups, this.app.total, this.back);
    this.replay(frames[frames.length - 1].t);
  }

  async get(path) {
    const r = await fetch('live/' + path, { headers: this.app.engine.headers?.() ?? {} });
    if (!r.ok) throw new EngineError({ ...(await r.json().catch(() => ({ error: { text: r.statusText } }))).error });
    return r.json();
  }

  // step asks once and shows the answer, unless the reader went to another view meanwhile: the picture is another one then.
  async step(turn) {
    let show;
    try { const got = await this.look(); show = () => { got(); this.lost(null); }; } catch (e) { this.kind = undefined; show = () => this.lost(e.text ?? e.message); }
    if (turn !== this.turn) return;
    show();
    this.soon = setTimeout(() => { this.going = this.step(turn); }, this.every);
  }

  async look() {
    this.kind ??= await this.get('api/all').then(() => 'up', e => this.get('api/view').then(() => 'watch', () => { throw e; }));
    if (this.kind === 'up') {
      const all = await this.get('api/all'), watch = await this.get('watch/api/view').catch(() => null), now = at(all.now);
      const epochs = this.run === all.board ? null : (await this.get('api/epochs')).epochs ?? [];
      return () => { if (epochs) this.begin(all.board, now - all.summary.elapsed_ns / 1e9, now, runPast(all, epochs)); this.showRun(all, watch, now - this.zero); };
    }
    const view = await this.get('api/view'), table = await this.get('api/table?n=4000');
    return () => {
      if (this.run !== 'watch') this.begin('watch', Math.min(...view.jobs.map(j => j.began).filter(t => t > 0), view.now), view.now, watchPast(view, table.rows ?? []));
      this.showWatch(view, table.rows, view.now - this.zero);
    };
  }

  // begin starts the clock where a run began, or an hour ago. What the page has not seen is told by the run's events.
  begin(run, zero, now, past) {
    this.run = run;
    this.zero = Math.max(zero, now - 3600);
    this.history = []; this.lanes.clear(); this.counts.clear(); this.back = null;
    const before = past.filter(f => f.t <= this.zero).slice(-1);
    for (const f of [...before, ...past.filter(f => f.t > this.zero && f.t < now)]) this.note(f.hosts, f.open, f.text, Math.max(0, f.t - this.zero), []).said = f.said;
  }

  lost(text) {
    $('l-state').classList.toggle('lost', !!text);
    if (text) $('l-state').replaceChildren(el('p', { role: 'alert' }, 'Connection lost: ' + text + ' Trying again.'));
  }

  // scene makes a picture of hosts and ranks where the cluster on the page does not have these hosts.
  scene(hosts) {
    const stage = this.app.stage, names = hosts.map(h => h.name).join();
    if (stage.scene?.live === names + hosts.map(h => h.ranks.length)) return;
    if (stage.scene && !stage.scene.live && hosts.length && hosts.every(h => stage.hostAt.has(h.name))) return;
    const scene = { live: names + hosts.map(h => h.ranks.length), name: 'live', kinds: [], hosts: { name: [], x: [], y: [], kind: [], first: [], block: [] }, switches: { first: 0, name: [], x: [], y: [], tier: [], kind: [], block: [], model: [] }, blocks: [], rows: [], links: new Int32Array(), bands: [], folded: false };
    const kinds = new Map(), cols = Math.max(1, Math.round(Math.sqrt(hosts.length * 1.2)));
    let id = 0, most = 0;
    for (const h of hosts) most = Math.max(most, h.ranks.length);
    const per = Math.max(1, Math.min(8, most)), w = Math.max(76, per * 20 + 20), high = 30 + Math.ceil(most / per) * 20;
    hosts.forEach((h, i) => {
      let k = kinds.get(h.ranks.length);
      if (k === undefined) {
        k = scene.kinds.length;
        kinds.set(h.ranks.length, k);
        scene.kinds.push({ model: '', w, h: high, names: h.ranks.map((_, j) => 'gpu' + j), kinds: h.ranks.map(() => Kind.gpu), size: h.ranks.map(() => 16), links: [], count: [],
          x: h.ranks.map((_, j) => w / 2 + (j % per - (Math.min(per, h.ranks.length) - 1) / 2) * 20), y: h.ranks.map((_, j) => 28 + Math.floor(j / per) * 20) });
      }
      scene.hosts.name.push(h.name); scene.hosts.kind.push(k); scene.hosts.first.push(id); scene.hosts.block.push(0);
      scene.hosts.x.push(12 + i % cols * (w + 12)); scene.hosts.y.push(12 + Math.floor(i / cols) * (high + 12));
      id += h.ranks.length;
    });
    scene.nodes = scene.switches.first = id; scene.gpus = id;
    scene.w = 12 + cols * (w + 12); scene.h = 12 + Math.ceil(hosts.length / cols) * (high + 12);
    scene.blocks.push({ name: '', x: 0, y: 0, w: scene.w, h: scene.h, hosts: hosts.length, switches: 0 });
    stage.setScene(scene);
  }

  // show paints ranks by their state and remembers it, so that the clock can go back to any second that the page has seen.
  show(hosts, open, state, t, links) {
    this.scene(hosts);
    const now = this.note(hosts, open, state, t, links);
    if (this.back === null) this.paint(now);
    this.groups = [{ label: '', tint: 'a', lanes: [...this.lanes.values()], gaps: [], total: t }];
    this.app.showLive(this.groups, t, this.back);
    this.app.legend([['healthy', 'healthy'], ['starting', 'starts or waits for others'], ['suspect', 'suspect'], ['failed', 'failed'], ['recovering', 'recovering'], ...(hosts.some(h => h.ranks.some(r => r.state === 'left')) ? [['left', 'ended']] : [])]);
  }

  // note remembers a second of a run.
  note(hosts, open, state, t, links) {
    // A second in which nothing changed shares what the one before it holds: an hour of a calm run takes no more than a minute.
    const last = this.history[this.history.length - 1], key = JSON.stringify([hosts, open.map(i => [i.id, i.severity])]);
    const at = { t, state, links, ...(last?.key === key ? { hosts: last.hosts, open: last.open, key: last.key } : { hosts, open, key }) };
    this.history.push(at);
    if (this.history.length > 7200) this.history.shift();
    if (!this.app.recording && this.history.length > 300) this.history[this.history.length - 301].links = []; // thousands of cables every second are kept for five minutes
    for (const h of hosts) h.ranks.forEach((r, j) => {
      const key = h.name + '/' + j;
      let lane = this.lanes.get(key);
      if (!lane) this.lanes.set(key, lane = { name: r.label ?? 'rank ' + (r.id ?? j), spans: [] });
      const last = lane.spans[lane.spans.length - 1];
      if (last && last[3] === r.state) last[2] = at.t; else { if (last) last[2] = at.t; const state = r.state; lane.spans.push([at.t, at.t, at.t + .2, state, () => state]); }
    });
    return at;
  }

  // replay shows the second before t; the last one follows the run again.
  replay(t) {
    const last = this.history[this.history.length - 1];
    if (!last) return;
    this.back = t >= last.t - 1.5e-3 * this.every ? null : t;
    this.paint(this.back === null ? last : this.history.findLast(h => h.t <= t) ?? this.history[0]);
  }

  paint({ hosts, open, state, links, said }) {
    const stage = this.app.stage, states = new Map(), at = new Map();
    for (const h of hosts) {
      const i = stage.hostAt.get(h.name);
      if (i === undefined) continue;
      const k = stage.scene.kinds[stage.scene.hosts.kind[i]], gpus = k.kinds.map((x, j) => x === Kind.gpu ? j : -1).filter(j => j >= 0);
      h.ranks.forEach((r, j) => {
        const slot = gpus[j % Math.max(1, gpus.length)];
        if (slot === undefined) return;
        states.set('n' + (stage.scene.hosts.first[i] + slot), r.state);
        at.set(r.rank ?? r.id ?? j, h.name + ':' + k.names[slot]);
      });
    }
    this.at = at;
    stage.states = states;
    stage.pins = open.map(i => ({ name: this.where(i), state: failing(i) ? 'failed' : 'suspect' })).filter(p => p.name);
    this.showLinks(links);
    if (this.title) $('l-state').replaceChildren(el('p', { class: 'say' }, el('b', {}, this.title + ' '), state));
    this.incidents(this.back === null ? this.known : open);
    if (said) this.figures(this.list.map((f, i) => { const [value, note, state] = said[i] ?? ['–']; return { ...f, value, note, state }; }));
    stage.draw();
    this.app.empty(null);
  }

  showRun(all, watch, t) {
    const ranks = new Map((all.ranks ?? []).map(r => [r.id, r])), s = all.summary;
    const known = new Set(['healthy', 'suspect', 'failed', 'recovering', 'starting', 'left']);
    const hosts = (all.topology?.hosts ?? []).map(h => ({ name: h.host, ranks: h.ids.map(id => ({ id, rank: ranks.get(id)?.rank, label: 'slot ' + id, state: known.has(ranks.get(id)?.state) ? ranks.get(id).state : 'left' })) }));
    const open = (watch?.incidents ?? []).filter(i => !i.ended);
    this.title = all.job?.title ?? 'run'; this.known = watch?.incidents ?? [];
    this.show(hosts, open, s.state, t, pairLinks(watch?.links ?? [], 'slot '));
    this.head([
      { key: 'step', name: 'Step', value: countText(s.step), formula: 'steps that all ranks have finished', source: 'reported by ranks' },
      { key: 'loss', name: 'Loss', value: s.loss == null ? '–' : digits(s.loss, 4), formula: 'mean over the batch', source: 'reported by ranks' },
      { key: 'rate', name: 'Tokens/s', value: countText(s.tokens_per_s), formula: 'tokens of finished steps ÷ time', source: 'reported by ranks' },
      { key: 'ranks', name: 'Ranks healthy', value: `${s.states?.healthy ?? 0} of ${s.ranks}`, state: (s.states?.healthy ?? 0) < s.ranks ? 'warn' : 'good', formula: 'ranks by state', source: 'launchers and leases' },
      { key: 'fail', name: 'Failures', value: String(s.failures), note: s.restarts === 1 ? '1 restart' : `${s.restarts} restarts`, formula: 'counted since the start', source: 'the run\'s events' }]);
    this.collectives((all.collectives ?? []).map(c => ({ op: c.op, bytes: c.bytes, took: (c.mean_ns ?? 0) / 1e9, bus: c.busbw_gb_per_s ?? c.bus_gb_per_s })), watch?.collectives);
  }

  // where is the part of the picture that an incident is about: its rank, else the first name that the picture has.
  where(i) {
    const s = i.subject ?? {}, names = [...(s.ranks ?? []).map(r => this.at.get(r)), ...(i.where ?? []), ...(s.links ?? []), ...(s.devices ?? []), ...(s.hosts ?? [])];
    return names.find(n => n && this.app.stage.lookup(n)) ?? null;
  }

  showWatch(v, rows, t) {
    const open = v.incidents.filter(i => !i.ended), hung = new Set(open.filter(i => i.kind === 'hang').map(i => i.job));
    const state = r => open.some(i => failing(i) && about(i, r)) ? 'failed' : r.state === 'gone' ? 'left' : r.trouble ? 'suspect' : r.waits && hung.has(r.job) ? 'starting' : 'healthy';
    this.title = v.title; this.known = v.incidents;
    this.show(byHost(rows, state), open, v.health.verdict || v.health.state, t, this.cables(v, rows ?? []) ?? pairLinks(v.links ?? [], 'rank '));
    this.head([
      { key: 'hosts', name: 'Hosts', value: countText(v.health.hosts), note: `${v.health.silent} silent`, formula: 'hosts that report', source: 'agents' },
      { key: 'jobs', name: 'Jobs', value: countText(v.health.jobs), note: `${countText(v.health.ranks)} ranks`, formula: 'jobs with ranks', source: 'watch folders' },
      { key: 'open', name: 'Open incidents', value: String(open.length), state: open.length ? 'bad' : 'good', formula: 'incidents that go on', source: 'weft watch' }]);
    this.collectives([], v.collectives);
  }

  // head shows figures and remembers them as the picture's, for the second that was shown last.
  head(list) {
    const at = this.history[this.history.length - 1], before = this.history[this.history.length - 2], said = list.map(f => [f.value, f.note, f.state]);
    at.said = JSON.stringify(before?.said) === JSON.stringify(said) ? before.said : said;
    this.list = list;
    if (this.back === null) this.figures(list);
  }

  figures(list) {
    const title = this.title;
    if (this.app.state.view === 'live') $('title').textContent = title;
    this.app.live = { title, list };
    if (this.app.state.view === 'live') { const open = new Set([...document.querySelectorAll('#run-facts details[open]')].map(d => d.dataset.key)); $('run-facts').replaceChildren(facts(title, list)); for (const d of document.querySelectorAll('#run-facts details')) d.open ||= open.has(d.dataset.key); }
  }

  incidents(list) {
    $('l-incidents-h').hidden = !list.length;
    $('l-incidents').replaceChildren(...list.slice(0, 20).map(i => el('li', { class: i.ended ? 'over' : failing(i) ? 'critical' : 'warning' }, el('button', { type: 'button', onclick: () => { const at = this.where(i); if (at) this.app.select(this.app.stage.lookup(at), true); } }, i.verdict), el('small', {}, i.ended ? 'over' : i.fix))));
  }

  // collectives compares what was measured with what was predicted.
  collectives(own, watched) {
    const rows = watched?.length ? watched.map(c => [c.op, byteSize(c.bytes), seconds(c.took_s), c.predicted_s ? seconds(c.predicted_s) : '–', c.predicted_s ? digits(c.took_s / c.predicted_s) + '×' : '–'])
      : own.slice(0, 12).map(c => [c.op, byteSize(c.bytes), seconds(c.took), '–', '–']);
    $('l-coll').replaceChildren(...(rows.length ? [el('h2', {}, 'Measured and predicted'), el('div', { class: 'wide' }, el('table', {}, el('thead', {}, el('tr', {}, ...['operation', 'size', 'took', 'predicted', 'ratio'].map(h => el('th', { scope: 'col' }, h)))), el('tbody', {}, ...rows.map(r => el('tr', {}, ...r.map(x => el('td', {}, x)))))))] : []));
  }

  // cables compares what NICs send and receive, while collectives run, with what was predicted for them:
  //
  //   measured   bytes per second at the port ÷ the share of time that collectives take
  //   predicted  bytes of the simulated operations on the cable ÷ their predicted time
  //
  // It needs the cluster file that the page shows, ports that are counted, and operations of all ranks of a job. Where one is
  // missing it is null.
  cables(v, rows) {
    const stage = this.app.stage, jobs = Map.groupBy(rows, r => r.job), out = [];
    if (!stage.scene || stage.scene.live || !rows.every(r => stage.hostAt.has(r.host)) || !rows.some(r => r.tx_bytes_per_s > 0)) return null;
    for (const [job, list] of jobs) {
      const ranks = [...list].sort((a, b) => a.rank - b.rank).map(r => `${r.host}:gpu${r.gpu}`), expect = new Map();
      let share = 0, wanted = 0;
      for (const c of v.collectives ?? []) {
        if (c.job !== job || c.ranks !== list.length || !c.predicted_s || !c.bytes) continue;
        const per = this.rate(job + c.group + c.op + c.bytes, v.now, c.count), told = per && this.predicted(c, ranks);
        if (!told) continue;
        share += per * c.took_s; wanted += per * c.predicted_s;
        for (const x of told.cables) { const key = x.a + ' ' + x.b; expect.set(key, { name: x.name, a: x.a, b: x.b, bytes: (expect.get(key)?.bytes ?? 0) + per * x.bytes }); }
      }
      if (!share) continue;
      const ports = new Map(list.map(r => [stage.lookup(`${r.host}:${r.nic}`)?.id, r]));
      for (const x of expect.values()) {
        const sends = ports.get(x.a), port = sends ?? ports.get(x.b);
        if (port && x.bytes) out.push(linkRow(x.name + (sends ? ', sent' : ', received'), (sends ? port.tx_bytes_per_s : port.rx_bytes_per_s) / share, x.bytes / wanted, { a: x.a, b: x.b }));
      }
    }
    return out.length ? out : null;
  }

  // rate is how often an operation ends per second, over the last half minute.
  rate(key, now, count) {
    let seen = this.counts.get(key);
    if (!seen) this.counts.set(key, seen = []);
    if (seen.length && now <= seen[seen.length - 1][0]) return seen.rate ?? 0;
    seen.push([now, count]);
    while (seen.length > 2 && seen[0][0] < now - 30) seen.shift();
    const [then, had] = seen[0];
    return seen.rate = now > then ? (count - had) / (now - then) : 0;
  }

  // predicted is what an operation sends over each cable. It is asked for once, and null until it is there.
  predicted(c, ranks) {
    const key = JSON.stringify([this.app.sceneText, c.op, c.bytes, ranks]);
    const known = this.traffic.get(key);
    if (known !== undefined) return known;
    this.traffic.set(key, null);
    this.app.ask('traffic', { text: this.app.sceneText, op: c.op.toLowerCase().replaceAll('_', '-'), bytes: c.bytes, ranks }, 'traffic ' + key).then(got => { this.traffic.set(key, got); if (this.app.recording) this.again(); }, () => {});
    return null;
  }

  // showLinks lists links by how far they are from what was expected, and gives cables of the picture their colour.
  showLinks(list) {
    const stage = this.app.stage, worst = [...list].sort((a, b) => a.ratio - b.ratio), shown = worst.slice(0, 8), mid = (worst[worst.length >> 1]?.ratio + worst[worst.length - 1 >> 1]?.ratio) / 2 || 1, box = $('l-links'), open = box.querySelector('details')?.open;
    stage.ratios = list.some(l => l.at) ? new Map(list.filter(l => l.at).map(l => [l.at.a * stage.scene.nodes + l.at.b, l.ratio / mid])) : null;
    if (!list.length) { box.replaceChildren(); return; }
    const cables = !!stage.ratios, predicted = cables || list.every(l => l.predicted), state = { failed: 'bad', suspect: 'warn' };
    const rows = shown.map(l => el('tr', { class: state[linkState(l.ratio / mid)] ?? '' }, el('td', {}, l.at ? el('button', { type: 'button', class: 'link', onclick: () => this.app.select(stage.lookup(stage.nodeName(Math.min(l.at.a, l.at.b))), true) }, l.name) : l.name), el('td', {}, rateText(l.measured)), el('td', {}, rateText(l.expected)), el('td', {}, digits(l.ratio, 2) + '×')));
    box.replaceChildren(figure({ key: 'links', open: open ?? true, name: 'Links: measured ÷ ' + (predicted ? 'predicted' : 'expected'), value: digits(mid, 2) + '×', note: `median of ${countText(list.length)}; the slowest first`,
      formula: cables ? 'measured: bytes per second at the NIC’s port ÷ the share of time that collectives take; predicted: bytes on the cable ÷ predicted time' : 'measured: bytes per second while there was something to send; ' + (predicted ? 'predicted: what a message alone reached on such a link when the ranks met' : 'expected: the median of this job’s links'), source: cables ? 'port counters of the agents; NCCL’s algorithm simulated on the cluster file' : 'the connections of ranks, as the watch sees them' + (predicted ? '; link costs of the runtime' : '') },
      el('div', { class: 'wide', tabindex: 0, role: 'group', 'aria-label': 'links, measured and expected' }, el('table', {}, el('thead', {}, el('tr', {}, ...['link', 'measured', predicted ? 'predicted' : 'expected', 'ratio'].map(h => el('th', { scope: 'col' }, h)))), el('tbody', {}, ...rows)))));
  }
}

// at is a time in seconds.
function at(text) { return Date.parse(text) / 1000; }

// about reports whether an incident is about a rank.
function about(i, r) { return i.job === r.job && !!i.subject?.ranks?.includes(r.rank); }

// byHost are the ranks of a watch's rows by their hosts.
function byHost(rows, state) {
  return [...Map.groupBy(rows ?? [], r => r.host)].map(([name, list]) => ({ name, ranks: list.map(r => ({ rank: r.rank, label: r.job + ' ' + r.rank, state: state(r) })) }));
}

// runPast are the moments at which ranks of a run changed, by its epochs and events.
const eventStates = { kill: 'failed', exit: 'failed', failure: 'failed', stopped: 'suspect', continued: 'healthy', restart: 'starting', resumed: 'healthy' };
function runPast(all, epochs) {
  const ids = (all.topology?.hosts ?? []).flatMap(h => h.ids), states = new Map(ids.map(id => [id, 'starting'])), changes = [];
  for (const e of epochs) {
    const members = new Set(e.members), back = new Set(e.recovering);
    changes.push([at(e.at), `epoch ${e.number}: ${e.reason}`, e.step, () => { for (const id of ids) { if (members.has(id)) states.set(id, 'healthy'); else if (back.has(id)) states.set(id, 'recovering'); else if (states.get(id) !== 'starting') states.set(id, 'failed'); } }]);
  }
  for (const e of all.events ?? []) if (eventStates[e.kind] && states.has(e.id)) changes.push([at(e.at), `slot ${e.id}: ${e.text}`, e.step, () => states.set(e.id, eventStates[e.kind])]);
  const frame = (t, text, step) => {
    const well = [...states.values()].filter(s => s === 'healthy').length, n = ids.length;
    return { t, text, open: [], hosts: all.topology.hosts.map(h => ({ name: h.host, ranks: h.ids.map(id => ({ id, label: 'slot ' + id, state: states.get(id) })) })),
      said: [[countText(step ?? 0)], ['–'], ['–'], [`${well} of ${n}`, '', well < n ? 'warn' : 'good'], ['–']] };
  };
  if (!changes.length) return [];
  return [frame(0, 'starting', 0), ...changes.sort((a, b) => a[0] - b[0]).map(([t, text, step, change]) => { change(); return frame(t, text, step); })];
}

// watchPast are the moments at which incidents began and ended.
function watchPast(v, rows) {
  const times = [...new Set(v.incidents.flatMap(i => [i.began, i.ended]).filter(t => t > 0))].sort((a, b) => a - b), said = [['–'], ['–']];
  return times.length ? [0, ...times].map(t => {
    const open = v.incidents.filter(i => i.began <= t && !(i.ended && i.ended <= t));
    const state = r => open.some(i => failing(i) && about(i, r)) ? 'failed' : open.some(i => about(i, r)) ? 'suspect' : 'healthy';
    return { t, open, hosts: byHost(rows, state), text: open[0]?.verdict ?? 'nothing is wrong', said: [...said, [String(open.length), '', open.length ? 'bad' : 'good']] };
  }) : [];
}

// linkState judges a link by the others of its job: what slows all of them down is no fault of one.
function linkState(ratio) { return ratio < .5 ? 'failed' : ratio < .8 ? 'suspect' : 'healthy'; }

function linkRow(name, measured, expected, at) { return { name, measured, expected, ratio: expected ? measured / expected : 1, at }; }

// pairLinks are the links between ranks, where no cable is known: what each reaches, and what it did when the ranks met. Other
// libraries do not tell that; then it is what the median of the links reaches.
function pairLinks(jobs, word) {
  return jobs.flatMap(l => l.cells.filter(c => c.mb_per_s).map(c => ({ ...linkRow(`${word}${c.from} → ${c.to}`, c.mb_per_s * 1e6, c.predicted_mb_per_s ? c.predicted_mb_per_s * 1e6 : c.mb_per_s * 1e6 * (c.ratio || 1), null), predicted: !!c.predicted_mb_per_s })));
}
