'use strict';
// The page: one state, one picture, one clock, one selection.

class App {
  async begin() {
    this.state = startState();
    this.stage = new Stage($('lines'), $('base'), $('over'));
    this.lanes = new Lanes($('lanes'));
    this.editor = new Editor($('editor'));
    this.run = 'a'; this.results = { a: null, b: null }; this.bound = null; this.plan = null;
    this.live = null; this.stops = new Map();
    this.themes();
    this.wire();
    const f = fragment(), token = keptToken(f.get('t'));
    this.engine = $('wasm') ? null : new ServerEngine(token);
    try {
      if (!this.engine) { this.working('starting the engine'); this.engine = await WorkerEngine.load(); this.working(null); }
      this.offer = await this.ask('start', {});
    } catch (e) { this.working(null); this.empty('weft studio cannot start', e.text ?? e.message); return; }
    let state = null;
    const open = $('open') ? JSON.parse($('open').textContent) : this.offer.open;
    if (open?.recording) { this.recording = open.recording; this.offer.live = true; }
    if (f.get('s')) try { state = await readState(f.get('s')); } catch (e) { toast('The link could not be read: ' + e.message); }
    if (!state && open) { state = checkState({ ...open.state, text: open.text, view: open.view ?? (this.offer.live ? 'live' : 'design') }); }
    if (!state) state = checkState({ text: this.offer.samples[0].text, view: this.offer.live ? 'live' : 'design' });
    this.options();
    this.liveFeed = new Live(this);
    await this.load(state);
    addEventListener('hashchange', () => this.followLink());
  }

  // ask calls the engine. A later question of the same kind ends the one before.
  async ask(method, question, lane = method) {
    this.stops.get(lane)?.abort();
    const stop = new AbortController();
    this.stops.set(lane, stop);
    const quick = ['start', 'part', 'links', 'traffic'].includes(method);
    if (!quick) this.working(this.words[method] ?? method);
    try {
      return await this.engine.ask(method, question, { signal: stop.signal, progress: p => { if (!quick) this.working(p.text); } });
    } finally {
      if (this.stops.get(lane) === stop) { this.stops.delete(lane); }
      this.working(null); // also after a quick one: a slow one may have ended meanwhile
    }
  }
  words = { scene: 'reading the cluster file', design: 'analysing the network', simulate: 'simulating', bound: 'looking for the tightest cut', plan: 'searching layouts', picture: 'drawing', edit: 'changing the file', program: 'writing the program', traffic: 'predicting' };

  // explain opens every figure, or shuts all of them; figures that come later follow.
  explain(on) {
    this.state.explain = on;
    $('explain').setAttribute('aria-pressed', on);
    for (const d of document.querySelectorAll('.fig, .fig .explain')) d.open = on;
    this.share();
  }

  // working shows what goes on, after a moment, so that quick answers do not flicker.
  working(text) {
    if (text !== null) { $('busy-text').textContent = text; if (!this.busyAt) this.busyAt = setTimeout(() => { $('busy').hidden = false; }, 250); }
    else if (!this.stops.size) { clearTimeout(this.busyAt); this.busyAt = 0; $('busy').hidden = true; }
  }

  // idle is true when the page waits for nothing: no answer, no text that was just typed, no drawing.
  idle() { return $('busy').hidden && !this.stops.size && !!this.settled && !this.editor.soon && this.stage.still() && this.lanes.still(); }

  cancel() { for (const s of this.stops.values()) s.abort(); this.stops.clear(); this.working(null); toast('Cancelled'); }

  empty(title, text) { $('blank').hidden = !title; if (title) $('blank').replaceChildren(el('strong', {}, title), el('span', {}, text ?? '')); }

  options() {
    const o = this.offer, fill = (id, list) => $(id).replaceChildren(...list.map(v => el('option', { value: v.value ?? v }, v.text ?? v)));
    fill('sample', [{ value: '', text: 'samples and presets …' }, ...o.samples.map((s, i) => ({ value: 's' + i, text: s.name + ' — ' + s.note })), ...o.presets.map(p => ({ value: 'p' + p.name, text: p.name + ' — ' + p.note }))]);
    fill('c-op', o.ops);
    fill('p-framework', o.frameworks);
    fill('p-dtype', o.dtypes);
    $('p-models').replaceChildren(...o.models.map(m => el('option', { value: m })));
    $('tab-live').hidden = !o.live;
  }

  // load shows a whole state: of a link, a file, or the start.
  async load(state) {
    this.settled = false;
    this.state = state;
    this.results = { a: null, b: null }; this.bound = null; this.plan = null; this.run = 'a';
    this.editor.set(state.text);
    $('explain').setAttribute('aria-pressed', state.explain);
    this.controls();
    this.view(state.view, true);
    if (!await this.redraw()) { document.documentElement.dataset.ready = 'yes'; this.settled = true; return; }
    if (state.sel) this.select(this.stage.lookup(state.sel));
    document.documentElement.dataset.ready = 'yes';
    if (state.ran.a) await this.simulate('a', true);
    if (state.ran.b && state.b) await this.simulate('b', true);
    if (state.ran.bound) await this.findBound();
    if (state.ran.plan) await this.planIt();
    if (state.view === 'live' && this.recording) this.liveFeed.again(); // on the picture that is there now
    this.settled = true;
  }

  async followLink() {
    const s = fragment().get('s');
    if (!s || s === this.shared) return;
    try { await this.load(await readState(s)); } catch (e) { toast('The link could not be read: ' + e.message); }
  }

  // share writes the state into the address, at most four times a second.
  share() {
    clearTimeout(this.sharing);
    this.sharing = setTimeout(async () => { this.shared = await writeState(this.state); history.replaceState(null, '', '#s=' + this.shared); }, 250);
  }

  // retext takes another cluster file; what was run on the one before is no longer shown, nor shared.
  retext(text) { this.state.text = text; this.state.ran = { a: false, b: false, bound: false, plan: false }; }

  // redraw reads the text again: picture first, then figures.
  async redraw(keepView) {
    const text = this.state.text, same = text === this.sceneText && !this.stage.scene?.live && !!this.report;
    try {
      const scene = await this.ask('scene', { text, layout: this.state.layout });
      this.sceneText = text;
      for (const b of document.querySelectorAll('[data-layout]')) b.setAttribute('aria-pressed', b.dataset.layout === this.state.layout);
      this.stage.setScene(scene, keepView);
      this.stage.sel = this.stage.lookup(this.state.sel); // its number may be another now
      delete $('part').dataset.for;
      this.showPart(this.stage.sel);
      $('title').textContent = scene.name || 'weft studio';
      document.title = (scene.name ? scene.name + ' · ' : '') + 'weft studio';
      this.empty(null);
      this.editor.errors([]);
      $('text-errors').replaceChildren();
      this.stale(false);
      if (!same) { this.results = { a: null, b: null }; this.bound = null; this.plan = null; }
      this.refresh();
    } catch (e) { this.wrong(e, 'text-errors', true); return false; }
    this.share();
    if (!same) this.figures(text);
    return true;
  }

  async figures(text) {
    try {
      const d = await this.ask('design', { text });
      if (text === this.state.text) { this.report = d; showFigures(d); }
    } catch (e) { if (e.name !== 'AbortError') $('figures').replaceChildren(el('section', {}, el('h2', {}, 'Figures'), el('p', { class: 'say' }, e.text ?? e.message))); }
  }

  // stale says that picture and figures are of an older text than the editor has, as that one has mistakes.
  stale(yes) { $('stale').hidden = !yes; $('frame').classList.toggle('stale', yes); }

  // wrong shows an error where it belongs: at lines of the file, or below a form.
  wrong(e, where, ofText) {
    if (e.name === 'AbortError') return;
    const lines = e.lines ?? [], list = ofText && lines.length ? lines.map(l => el('li', {}, l.line ? el('button', { type: 'button', class: 'link', onclick: () => this.editor.go(l.line) }, `line ${l.line}: `) : '', l.text)) : [el('li', {}, e.text ?? e.message), ...lines.filter(l => !(e.text ?? '').includes(l.text)).map(l => el('li', { class: 'step' }, l.text))];
    $(where).replaceChildren(...list);
    if (ofText) { this.editor.errors(lines); this.stale(!!this.stage.scene); if (!this.stage.scene) this.empty('This cluster file cannot be drawn yet', e.text ?? e.message); }
    if (!(e instanceof EngineError)) console.error(e);
  }

  view(name, quiet) {
    this.state.view = name;
    for (const t of document.querySelectorAll('[data-view]')) { const on = t.dataset.view === name; t.setAttribute('aria-selected', on); t.tabIndex = on ? 0 : -1; $('pane-' + t.dataset.view).hidden = !on; }
    $('side').setAttribute('aria-labelledby', 'tab-' + name);
    $('faults-box').hidden = name === 'live' || name === 'plan';
    $('layouts').hidden = name === 'live';
    if (this.liveFeed) {
      if (name === 'live') this.liveFeed.start(); else { this.liveFeed.stop(); if (this.stage.scene?.live) this.redraw(); this.stage.states = null; this.stage.pins = []; this.stage.ratios = null; }
    }
    if (name !== 'live' && this.stage.scene) $('title').textContent = this.stage.scene.name || 'weft studio';
    this.refresh();
    if (!quiet) this.share();
  }

  // refresh puts what is known onto the picture, the clock and the right side.
  refresh() {
    const v = this.state.view, stage = this.stage;
    stage.faults = this.state.faults;
    stage.badFor = null;
    this.showFaults();
    stage.setBusy(null); stage.cut = null; stage.paint = null; stage.limits = [];
    const right = [], legend = [];
    if (v === 'collective') {
      const { a, b } = this.results;
      for (const k of ['a', 'b']) if (this.results[k]) right.push(runFacts(k, k, this.results[k], this.results[k === 'a' ? 'b' : 'a']));
      if (this.bound) { right.push(boundFacts(this.bound, a)); stage.cut = this.bound; legend.push(['cut', 'the cut of the bound']); }
      if (!right.length) right.push(el('section', {}, el('h2', {}, 'A collective'), el('p', { class: 'say' }, 'Choose an operation, a size and an algorithm, then simulate. Messages move on the picture, and the lanes below show every rank.')));
      const shown = this.results[this.run] ?? a ?? b;
      if (shown?.busy.length) { stage.setBusy(shown); legend.push(['p2', 'idle'], ['p4', 'half busy'], ['failed', stage.load && stage.byClock ? 'busy link now' : 'busy link, mean']); if (shown.links > shown.busy.length) legend.push(['switch', `load not known: all but the busiest ${countText(shown.busy.length)} of ${countText(shown.links)}`]); }
      for (const [k, r] of [['a', a], ['b', b]]) if (r?.limit_at >= 0) { const l = r.busy[r.limit_at]; stage.limits.push({ a: l.a, b: l.b, link: l.name, colour: k, text: (b ? k.toUpperCase() + ' is limited' : 'Limited') + ' by ' + r.limit }); }
      legend.unshift(...[['a', a], ['b', b]].filter(([, r]) => r?.trace).map(([k, r]) => [k, this.dotWords(r, b ? k.toUpperCase() + ': ' : '')]));
      $('c-tried').replaceChildren(...(shown ? triedList(shown) : []));
    }
    if (v === 'plan' && this.plan) {
      right.push(planFacts(this.plan));
      const p = stagePaint(this.plan);
      stage.paint = p.paint;
      legend.push(['accent', `colours: ${p.stages} pipeline stage${p.stages > 1 ? 's' : ''}`]);
    } else if (v === 'plan') right.push(el('section', {}, el('h2', {}, 'A training plan'), el('p', { class: 'say' }, 'Name a model, a batch and a sequence length. weft searches the layouts that fit this cluster.')));
    if (v === 'live') { if (this.live) right.push(facts(this.live.title, this.live.list)); } else if (v === 'design') legend.push(['switch', 'switch'], ['gpu', 'GPU'], ['nvs', 'NVLink'], ['nic', 'NIC']);
    $('run-facts').replaceChildren(...right);
    $('figures').hidden = v === 'live';
    if (v !== 'live') this.legend(legend);
    this.clock();
    if (stage.fitted) stage.fit(); else stage.draw();
  }

  dotWords(r, name) {
    const t = r.trace, drawn = t.shown.length * t.members.length;
    return name + 'a message' + (drawn < t.ranks ? ` (of ${countText(drawn)} of ${countText(t.ranks)} ranks)` : '');
  }

  legend(list) {
    $('legend').replaceChildren(...list.map(([c, text]) => el('li', {}, el('i', { style: { background: `var(--${c})` } }), text)));
    this.stage.footer = Math.max(20, $('legend').offsetHeight) + 14;
  }

  // clock sets lanes and dots for the view; both runs share it.
  clock() {
    const v = this.state.view, { a, b } = this.results;
    let groups = [], total = 0, unit = duration, note = '';
    this.stage.runs = [];
    if (v === 'collective') {
      const runs = [['a', a], ['b', b]].filter(([, r]) => r?.trace);
      total = Math.max(0, ...runs.map(([, r]) => r.time_ps));
      groups = runs.map(([k, r]) => lanesOf(r, runs.length > 1 ? k.toUpperCase() + ' ' : '', k, this.stage));
      if (runs.length) this.stage.setRuns(runs.map(([k, r]) => ({ trace: r.trace, total: r.time_ps, colour: k })));
      note = runs.map(([, r]) => { const t = r.trace; return t.shown.length < t.ranks ? `${t.shown.length} of ${countText(t.ranks)} ranks` + (t.period < t.ranks ? ', the others do the same' : '') : `${t.ranks} ranks`; })[0] ?? '';
      if (runs.some(([, r]) => r.trace.cut)) note += ', the first messages only';
      const late = groups.find(g => g.chain.length && g.chain[0].begin > .05 * g.total);
      if (late) note += `, critical path known from ${duration(late.chain[0].begin)} on`;
    } else if (v === 'plan' && this.plan?.passes?.length) { groups = passLanes(this.plan); total = this.plan.pipe_s; unit = seconds; note = 'blue forward, orange backward' + (this.plan.passes_cut ? ', the first passes only' : ''); }
    const had = !$('dock').hidden;
    $('dock').hidden = !groups.length;
    $('dock-note').textContent = note;
    for (const e of document.querySelectorAll('.only-run')) e.hidden = v !== 'collective';
    if (!groups.length) { this.pause(); this.stage.drawTop(); $('dock').hidden = v !== 'live' || !this.liveFeed?.history.length; return; }
    this.total = total;
    this.unit = unit;
    this.lanes.set(groups, total, unit);
    if (!had || this.time > total) this.seek(v === 'plan' ? 0 : total * .12); else this.seek(this.time);
  }

  seek(t) {
    this.time = Math.max(0, Math.min(this.total ?? 0, t));
    this.lanes.now = this.time;
    $('scrub').value = 1000 * this.time / (this.total || 1);
    $('now').textContent = (this.unit ?? duration)(this.time);
    this.stage.tick(this.time);
    this.lanes.line();
    if (this.state.view === 'live') this.liveFeed?.replay(this.time);
  }

  // showLive moves the clock with a run, unless its reader went back.
  showLive(groups, total, back) {
    if (this.state.view !== 'live') return;
    $('dock').hidden = false;
    this.total = Math.max(total, 1);
    this.unit = seconds;
    $('dock-note').textContent = this.recording ? 'a recording' : back === null ? 'now' : 'as it was; drag to the end to follow';
    this.lanes.set(groups, this.total, seconds);
    if (back === null) { this.time = this.lanes.now = this.total; $('scrub').value = 1000; $('now').textContent = seconds(this.total); }
    else { $('scrub').value = 1000 * this.time / this.total; }
    this.lanes.line();
  }

  play() {
    if (this.playing) { this.pause(); return; }
    if (this.time >= this.total * .999) this.seek(0);
    this.playing = true;
    this.stage.move(true);
    $('play').textContent = '❚❚';
    $('play').setAttribute('aria-label', 'pause');
    let last = performance.now();
    const frame = now => {
      if (!this.playing) return;
      const dt = Math.min(100, now - last);
      last = now;
      this.frames?.push(dt);
      this.seek(this.time + this.total * dt / 12000 * $('speed').value);
      if (this.time >= this.total) this.pause(); else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }
  pause() { this.playing = false; this.stage.move(false); $('play').textContent = '▶'; $('play').setAttribute('aria-label', 'play'); }

  // select shows one part, wherever it was chosen: picture, lanes, list, search or link.
  async select(sel, go) {
    this.stage.sel = sel;
    this.stage.extra = null;
    this.state.sel = sel?.name ?? null;
    if (sel && go) this.stage.show(sel);
    this.share();
    this.showPart(sel);
    this.stage.draw();
    $('read').textContent = sel ? `${sel.type === 'block' ? 'block' : 'part'} ${sel.name} selected` : 'nothing selected';
    if (sel && this.stage.scene.live) return;
    if (sel?.type === 'block' && this.stage.scene.folded && !this.stage.blockLinks.has(sel.id)) {
      const got = await this.ask('links', { text: this.sceneText, layout: this.state.layout, block: sel.id }).catch(() => null);
      if (got && !this.stage.blockLinks.has(sel.id)) this.stage.open(sel.id, unpack(got.links));
    }
    if (sel?.type === 'node') {
      const got = await this.ask('part', { text: this.sceneText, node: sel.id }).catch(() => null);
      if (got && this.stage.sel === sel) { this.stage.extra = got; this.showPart(sel, got); this.stage.draw(); }
    }
  }

  showPart(sel, more) {
    const box = $('part');
    box.hidden = !sel;
    if (!sel) { box.replaceChildren(); delete box.dataset.for; return; }
    const fault = this.state.faults.find(f => f.part === sel.name), s = this.stage.scene;
    const about = sel.type === 'block' ? `${s.blocks[sel.id].hosts} hosts, ${s.blocks[sel.id].switches} switches` : sel.type === 'host' ? s.kinds[s.hosts.kind[sel.id]].model || 'host' : more ? [more.model, more.kind, more.rail >= 0 ? 'rail ' + more.rail : '', more.pod >= 0 ? 'pod ' + more.pod : ''].filter(Boolean).join(', ') : '';
    const acts = [];
    if (sel.type !== 'block' && !s.live) {
      if (fault) acts.push(el('button', { type: 'button', class: 'quiet', onclick: () => this.repair(sel.name) }, 'Repair'));
      if (!fault || fault.factor) acts.push(el('button', { type: 'button', class: 'quiet danger', 'data-act': 'fail', onclick: () => this.fault(sel.name, 0) }, 'Fail'));
      if (!fault || !fault.factor) acts.push(el('button', { type: 'button', class: 'quiet', 'data-act': 'slow', onclick: () => this.fault(sel.name, .5) }, 'Slow to half'));
      else acts.push(el('label', { class: 'soft' }, 'rate ', el('input', { type: 'range', min: 5, max: 95, step: 5, value: fault.factor * 100, 'aria-label': 'share of its rate', onchange: e => this.fault(sel.name, e.target.value / 100) })));
    }
    if (sel.type === 'block' && s.grid && this.state.view === 'design') acts.push(el('label', { class: 'soft' }, 'move to ', el('input', { size: 5, 'aria-label': 'position that the rack moves to', placeholder: 'B04', onkeydown: e => { if (e.key === 'Enter' && e.target.value) this.moveRack(sel.name, e.target.value); } })));
    acts.push(el('button', { type: 'button', class: 'quiet', onclick: () => this.stage.show(sel) }, sel.type === 'block' ? 'Open' : 'Zoom'));
    const rest = el('div', {}, about ? el('p', { class: 'say' }, about) : null,
      more ? el('ul', { class: 'joints', tabindex: 0, 'aria-label': 'links' }, ...more.links.map(l => el('li', {}, el('button', { type: 'button', title: l.name, onclick: () => this.select({ type: 'node', id: l.node, name: l.peer }, false) }, l.peer), el('span', { class: 'soft' }, l.rate + ' '),
        el('button', { type: 'button', 'aria-label': 'fail the link ' + l.name, onclick: () => this.fault(l.name, 0) }, 'fail')))) : null,
      more && more.all_links > more.links.length ? el('p', { class: 'hint' }, `${more.all_links} links in all`) : null);
    // What the engine tells later is put below the buttons, which stay as they are: one may be being pressed.
    const key = sel.name + ' ' + (fault ? fault.factor : 'well');
    if (box.dataset.for === key && box.lastChild) { box.firstChild.lastChild.replaceWith(rest); return; }
    box.dataset.for = key;
    box.replaceChildren(el('section', {}, el('h2', {}, sel.name), el('div', { class: 'acts' }, ...acts), rest));
  }

  fault(part, factor) {
    this.state.faults = [...this.state.faults.filter(f => f.part !== part), { part, factor }];
    this.faulted(part);
  }
  repair(part) { this.state.faults = this.state.faults.filter(f => f.part !== part); this.faulted(part); }
  faulted() {
    this.stage.faults = this.state.faults;
    this.stage.badFor = null;
    this.showFaults();
    if (this.stage.sel) this.showPart(this.stage.sel, this.stage.extra);
    this.stage.draw();
    this.share();
    if (this.state.view === 'collective' && this.results.a) toast('Simulate again to see what the fault costs');
  }

  showFaults() {
    const list = this.state.faults;
    $('faults-hint').hidden = list.length > 0;
    $('faults-clear').hidden = !list.length;
    $('faults').replaceChildren(...list.map(f => el('li', {}, el('span', {}, el('span', { class: f.factor ? 's' : 'x', 'aria-hidden': 'true' }, f.factor ? '▲' : '×'), el('button', { type: 'button', class: 'link', onclick: () => { const at = this.stage.lookup(f.part); if (at) this.select(at, true); } }, f.part), f.factor ? ` at ${percent(f.factor)}` : ' dead'), el('button', { type: 'button', class: 'link', 'aria-label': 'repair ' + f.part, onclick: () => this.repair(f.part) }, 'repair'))));
  }

  // controls puts the state of a run into the form.
  controls() {
    const r = this.state[this.run] ?? this.state.a, p = this.state.plan;
    for (const b of document.querySelectorAll('[data-run]:is(button)')) b.setAttribute('aria-selected', b.dataset.run === this.run);
    $('c-op').value = r.op;
    this.algorithms();
    $('c-size').value = Math.round(Math.log2(r.bytes));
    $('c-size-out').textContent = byteSize(r.bytes);
    $('c-gpus').value = r.gpus || '';
    $('c-routing').value = r.routing;
    $('c-faults').checked = r.faults !== false;
    $('c-program').value = r.program ?? '';
    $('c-program-box').hidden = r.algo !== 'program';
    for (const k of ['model', 'batch', 'seq', 'framework', 'dtype', 'tokens', 'layout']) $('p-' + k).value = p[k];
    $('p-gpus').value = p.gpus || '';
  }

  algorithms() {
    const r = this.state[this.run] ?? this.state.a, own = this.offer.algorithms[$('c-op').value] ?? [];
    const list = [['auto', 'auto: the fastest of all that fit'], ['nccl', 'NCCL’s choice'], ['synth', 'synthesised for this machine'], ['program', 'my own program …'], ...own.map(n => [n, n])];
    $('c-algo').replaceChildren(...list.map(([value, text]) => el('option', { value }, text)));
    $('c-algo').value = list.some(([v]) => v === r.algo) ? r.algo : 'auto';
  }

  // form reads the form of a run back into the state.
  form() {
    this.state[this.run] = { with: this.state[this.run]?.with, op: $('c-op').value, bytes: 2 ** +$('c-size').value, algo: $('c-algo').value, gpus: +$('c-gpus').value || 0, routing: $('c-routing').value, faults: $('c-faults').checked, program: $('c-program').value };
    $('c-size-out').textContent = byteSize(this.state[this.run].bytes);
    $('c-program-box').hidden = $('c-algo').value !== 'program';
    this.share();
  }

  question(run) { const r = this.state[run]; return { text: this.state.text, faults: r.faults === false ? [] : this.state.faults, op: r.op, bytes: r.bytes, algo: r.algo, gpus: r.gpus, routing: r.routing, program: r.algo === 'program' ? r.program : '' }; }

  // simulate runs A or B with the faults of now; a link's replay with those that it ran with.
  async simulate(run, replay) {
    const q = this.question(run), with_ = this.state[run].with;
    if (replay && Array.isArray(with_)) q.faults = with_;
    $('c-errors').replaceChildren();
    $('c-run').disabled = true;
    try {
      const got = await this.ask('simulate', q);
      if (got.trace) unpackTrace(got.trace);
      got.faults = q.faults;
      this.state[run].with = q.faults;
      this.results[run] = got;
      this.state.ran[run] = true;
      this.refresh();
      this.share();
      if (!stillness.matches && !this.playing && this.results[run].trace) this.play();
    } catch (e) { this.wrong(e, 'c-errors'); } finally { $('c-run').disabled = false; }
  }

  async findBound() {
    if (this.bound) { this.bound = null; this.state.ran.bound = false; this.refresh(); this.share(); return; }
    $('c-errors').replaceChildren();
    try { this.bound = await this.ask('bound', this.question(this.run)); this.state.ran.bound = true; this.refresh(); this.share(); } catch (e) { this.wrong(e, 'c-errors'); }
  }

  async planIt(layout) {
    const p = this.state.plan;
    for (const k of ['model', 'framework', 'dtype', 'tokens', 'layout']) p[k] = $('p-' + k).value.trim();
    for (const k of ['batch', 'seq', 'gpus']) p[k] = +$('p-' + k).value || 0;
    $('p-errors').replaceChildren();
    try {
      const got = await this.ask('plan', { text: this.state.text, ...p, layout: layout ?? p.layout });
      if (layout && this.plan) got.points = this.plan.points;
      this.plan = got;
      this.state.ran.plan = true;
      $('p-scatter-box').hidden = !got.points?.length;
      this.refresh();
      if (got.points?.length) scatter($('p-scatter'), got.points, got.cost, x => this.planIt(x.layout));
      $('p-memory').replaceChildren(...memoryBars(got.cost));
      this.share();
    } catch (e) { this.wrong(e, 'p-errors'); }
  }

  // grow adds or takes away hosts, pods or rails; moveRack puts a rack elsewhere. Both change the text of the file.
  grow(by, unit) {
    if (unit === 'rail') return this.edit({ rail: by });
    const preset = /^preset:/m.test(this.state.text), pod = +(/^\s+pod:\s*(\d+)/m.exec(this.state.text)?.[1] ?? 0) || Math.max(1, this.stage.scene?.blocks[0]?.hosts ?? 1);
    return this.edit({ by: by * (preset || unit === 'host' ? 1 : pod) });
  }
  moveRack(rack, to) { return this.edit({ rack, to: to.trim().toUpperCase() }, true); }
  async edit(what, keepView) {
    try {
      const got = await this.ask('edit', { text: this.state.text, ...what });
      this.editor.set(got.text);
      this.retext(got.text);
      await this.redraw(keepView);
    } catch (e) { this.wrong(e, 'text-errors', false); toast(e.text ?? e.message); }
  }

  async export(what) {
    if (what === 'link') {
      this.linked = '';
      this.shared = await writeState(this.state);
      history.replaceState(null, '', '#s=' + this.shared);
      this.linked = location.href;
      await navigator.clipboard?.writeText(location.href).then(() => toast('Link copied'), () => toast('The link is in the address bar'));
      return;
    }
    try {
      const blob = await this.exported(what), a = el('a', { href: URL.createObjectURL(blob), download: (this.stage.scene?.name || 'cluster').replace(/[^\w.-]+/g, '-') + '.' + what });
      a.click();
      setTimeout(() => URL.revokeObjectURL(a.href), 5000);
    } catch (e) { if (e.name !== 'AbortError') toast(e.text ?? e.message); }
  }

  // exported is what Export saves: the picture as it is seen, the cluster as a drawing without faults and runs, its file, or the whole page as one file.
  async exported(what) {
    if (what === 'png') return this.stage.picture();
    if (what === 'yaml') return new Blob([this.state.text], { type: 'text/yaml' });
    if (what === 'svg') return new Blob([this.stage.drawing()], { type: 'image/svg+xml' });
    if (what === 'plain.svg') return new Blob([(await this.ask('picture', { text: this.state.text })).svg], { type: 'image/svg+xml' });
    if ($('wasm')) return new Blob([this.ownFile()], { type: 'text/html' });
    if (!this.offer.page) throw new EngineError({ text: 'This server writes no pages. One file with the engine in it: weft studio FILE -o page.html' });
    toast('Writing the page with its engine; the first time this takes a while');
    return this.engine.page(this.opening());
  }

  // opening is what a page that shows the same would open with.
  opening() {
    const kept = {};
    for (const k of Object.keys(stateKeys)) kept[k] = this.state[k];
    const recording = this.recording;
    return { name: this.stage.scene?.name ?? '', text: this.state.text, view: this.state.view === 'live' && !recording ? 'design' : this.state.view, state: kept, ...(recording && { recording }) };
  }

  // ownFile is this page with what it shows now.
  ownFile() {
    const copy = document.documentElement.cloneNode(true), open = copy.querySelector('#open');
    open.textContent = JSON.stringify(this.opening()).replaceAll('<', '\\u003c');
    for (const id of ['figures', 'run-facts', 'part', 'faults', 'paint', 'gutter', 'legend', 'text-errors', 'c-errors', 'p-errors', 'c-tried', 'p-memory', 'p-scatter', 'sample', 'c-op', 'c-algo', 'p-models']) copy.querySelector('#' + id).replaceChildren();
    for (const id of ['note', 'busy', 'blank', 'dock', 'part', 'exports']) copy.querySelector('#' + id).hidden = true;
    delete copy.dataset.ready;
    return '<!doctype html>\n' + copy.outerHTML;
  }

  themes() {
    const root = document.documentElement, order = ['auto', 'light', 'dark'];
    let at = 0;
    try { at = Math.max(0, order.indexOf(localStorage.getItem('weft-theme'))); } catch { /* a file has no storage */ }
    const show = () => {
      if (at) root.dataset.theme = order[at]; else delete root.dataset.theme;
      $('theme-name').textContent = order[at];
      forgetColours();
      this.stage?.draw();
      this.lanes?.paint();
    };
    $('theme').addEventListener('click', () => { at = (at + 1) % 3; try { localStorage.setItem('weft-theme', order[at]); } catch { /* none */ } show(); });
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', show);
    show();
  }

  wire() {
    const on = (id, what, f) => $(id).addEventListener(what, f);
    this.editor.onchange = text => { this.retext(text); this.redraw(true); };
    on('sample', 'change', async e => {
      const v = e.target.value;
      if (!v) return;
      const text = v[0] === 's' ? this.offer.samples[+v.slice(1)].text : `# the preset ${v.slice(1)}\nname: ${v.slice(1)}\n\npreset: ${v.slice(1)}\n`;
      e.target.value = '';
      this.retext(text); this.state.faults = []; this.state.sel = null;
      this.editor.set(text);
      this.select(null);
      await this.redraw();
    });
    for (const b of document.querySelectorAll('[data-view]')) b.addEventListener('click', () => this.view(b.dataset.view));
    document.querySelector('.tabs').addEventListener('keydown', e => {
      const list = [...document.querySelectorAll('[data-view]')].filter(b => !b.hidden), at = list.indexOf(document.activeElement), to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: list.length - 1 }[e.key];
      if (to === undefined || at < 0) return;
      const next = list[(to + list.length) % list.length];
      next.focus(); next.click(); e.preventDefault();
    });
    for (const b of document.querySelectorAll('.ab [data-run]')) b.addEventListener('click', () => { this.run = b.dataset.run; if (!this.state[this.run]) this.state[this.run] = { ...this.state.a }; this.controls(); this.refresh(); });
    for (const id of ['c-op', 'c-size', 'c-algo', 'c-gpus', 'c-routing', 'c-faults', 'c-program']) on(id, 'input', () => { if (id === 'c-op') { const keep = $('c-algo').value; this.form(); this.state[this.run].algo = keep; this.algorithms(); } this.form(); });
    on('c-run', 'click', () => this.simulate(this.run));
    on('c-bound', 'click', () => this.findBound());
    on('c-sample', 'click', async () => { try { const q = this.question(this.run); const got = await this.ask('program', { ...q, algo: 'ring', program: '' }); $('c-program').value = got.text; this.form(); } catch (e) { this.wrong(e, 'c-errors'); } });
    on('p-run', 'click', () => this.planIt());
    for (const b of document.querySelectorAll('#grow [data-by]')) b.addEventListener('click', () => this.grow(+b.dataset.by, b.dataset.unit));
    on('faults-clear', 'click', () => { this.state.faults = []; this.faulted(); });
    on('find', 'keydown', e => { if (e.key !== 'Enter') return; const at = this.stage.lookup(e.target.value); if (at) { e.target.value = ''; this.select(at, true); } else toast(`There is no part ${e.target.value}`); });
    for (const b of document.querySelectorAll('[data-zoom]')) b.addEventListener('click', () => { if (!this.stage.scene) return; if (b.dataset.zoom === 'fit') this.stage.fit(); else this.stage.zoom(b.dataset.zoom === 'in' ? 1.5 : 1 / 1.5); });
    on('explain', 'click', () => this.explain(!this.state.explain));
    on('cancel', 'click', () => this.cancel());
    on('play', 'click', () => this.play());
    on('links-by', 'change', e => { this.stage.byClock = e.target.value === 'clock'; this.refresh(); });
    on('chain', 'change', e => { this.lanes.showChain = e.target.checked; this.lanes.paint(); });
    on('lane-find', 'input', e => this.lanes.filter(e.target.value));
    on('scrub', 'input', e => { this.pause(); this.seek(this.total * e.target.value / 1000); });
    this.lanes.onseek = t => { this.pause(); this.seek(t); };
    this.lanes.onpick = hit => { if (hit.lane.node !== undefined) this.select({ type: 'node', id: hit.lane.node, name: this.stage.nodeName(hit.lane.node) }); };
    for (const b of document.querySelectorAll('[data-layout]')) b.addEventListener('click', () => { if (this.state.layout === b.dataset.layout) return; this.state.layout = b.dataset.layout; this.redraw(); });
    this.stage.ondrop = (rack, to) => this.moveRack(rack, to);
    this.stage.movable = () => this.state.view === 'design';
    this.stage.onselect = sel => this.select(sel);
    this.stage.onhover = (hit, p) => { const tip = $('tip'); tip.hidden = !hit; if (hit) { tip.textContent = hit.name; tip.style.left = Math.min(p[0] + 14, this.stage.w - tip.offsetWidth - 8) + 'px'; tip.style.top = Math.max(0, p[1] - 30) + 'px'; } };
    const menu = $('exports'), button = $('export'), shut = () => { menu.hidden = true; button.setAttribute('aria-expanded', false); };
    on('export', 'click', () => { menu.hidden = !menu.hidden; button.setAttribute('aria-expanded', !menu.hidden); if (!menu.hidden) menu.querySelector('button').focus(); });
    menu.addEventListener('click', e => { const what = e.target.closest('[data-export]')?.dataset.export; if (what) { shut(); button.focus(); this.export(what); } });
    menu.addEventListener('keydown', e => { const list = [...menu.querySelectorAll('button')], at = list.indexOf(document.activeElement); if (e.key === 'Escape') { shut(); button.focus(); } else if (e.key === 'ArrowDown' || e.key === 'ArrowUp') { list[(at + (e.key === 'ArrowDown' ? 1 : list.length - 1)) % list.length].focus(); e.preventDefault(); } });
    addEventListener('click', e => { if (!e.target.closest('.menu')) shut(); });
    addEventListener('keydown', e => { if (e.key === ' ' && !e.target.closest('button, input, textarea, select, summary, [role=button]') && !$('dock').hidden) { e.preventDefault(); this.play(); } });
  }
}

const app = new App();
app.begin();
