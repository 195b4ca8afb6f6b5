'use strict';
// What stands beside the picture: figures with their reasons, the selected part, runs, plans.

// figure is a number, or a table or bars (more), that tells when opened how it is computed and where it comes from.
function figure(f, ...more) {
  const why = el('div', { class: 'why' }, el('b', {}, 'How'), f.formula, el('b', {}, 'From'), f.source);
  const all = app.state.explain;
  return el('details', { class: 'fig ' + (f.state ?? ''), 'data-key': f.key, open: f.open || all },
    el('summary', {}, el('span', {}, f.name), el('b', {}, f.value ?? ''), f.note ? el('small', {}, f.note) : null),
    ...more, more.length ? el('details', { class: 'explain', open: all }, el('summary', {}, 'how, and from what'), why) : why);
}

function facts(title, list, ...more) { return el('section', {}, el('h2', {}, title), ...list.map(f => figure(f)), ...more); }

function showFigures(d) {
  const more = [];
  const table = (heads, rows) => el('div', { class: 'wide', tabindex: 0, role: 'group', 'aria-label': 'table' }, el('table', {}, el('thead', {}, el('tr', {}, ...heads.map(h => el('th', { scope: 'col' }, h)))), el('tbody', {}, ...rows)));
  if (d.losses?.length) more.push(figure({ key: 'losses', name: 'What a loss costs', value: String(d.losses.length), formula: 'one part of each sort is taken out of the graph; the bisection is computed again, and GPUs that no longer reach the others are counted', source: 'the graph of the cluster file' },
    table(['part', 'bisection left', 'GPUs cut off'], d.losses.map(l => el('tr', {}, el('td', {}, l.part), el('td', {}, percent(l.bisection_left)), el('td', {}, countText(l.gpus_cut_off)))))));
  if (d.bill?.length) more.push(figure({ key: 'bill', name: 'Bill of materials', value: d.bill.length + ' lines', formula: 'parts and cables counted in the graph × unit price', source: [...new Set(d.bill.map(i => i.source).filter(Boolean))].join('; ') || 'the catalogue; these items have no price' },
    table(['item', 'count', 'USD'], d.bill.map(i => el('tr', {}, el('td', { title: i.source }, i.item), el('td', {}, countText(i.count)), el('td', {}, i.usd ? countText(i.usd) : '–'))))));
  const notes = (d.notes ?? []).map(n => el('p', { class: 'say' }, n));
  $('figures').replaceChildren(facts(d.name, d.figures, ...more, ...notes));
}

// runFacts shows one simulated run.
function runFacts(name, tint, r, other) {
  const faster = other && r.time_ps ? other.time_ps / r.time_ps : 0;
  const how = [
    { key: 'time', name: 'How this time is found', formula: 'from the first rank\'s start to the last one\'s end; concurrent messages share each link\'s rate' + (r.channels ? `; ${r.channels} channel${r.channels > 1 ? 's' : ''}` : ''), source: r.source },
    { key: 'busbw', name: 'Bus bandwidth', value: rateText(r.busbw_bytes_per_s), note: 'algorithm bandwidth ' + rateText(r.algbw_bytes_per_s), formula: 'size ÷ time × the factor of the operation, as nccl-tests counts', source: r.source },
  ];
  if (r.proof) how.push({ key: 'proof', name: 'Proof', value: 'proven', state: 'good', note: `${r.proof.steps} steps, digest ${r.digest}`, formula: 'every rank ends with every contribution, once; no deadlock, no race', source: r.proof.method + ' proof of the program itself' });
  const whole = r.critical.reduce((n, c) => n + c.ps, 0) || 1;
  return el('section', { 'data-run': name },
    el('h2', {}, `${name.toUpperCase()}: ${r.op} of ${byteSize(r.bytes)} on ${countText(r.gpus)} GPUs`),
    el('p', { class: 'big' }, el('i', { class: 'dot-' + name }), el('strong', {}, duration(r.time_ps)), el('span', { class: 'soft' }, r.algo + (faster > 1.1 ? `, ${digits(faster)} times as fast` : faster > 1.0005 ? `, ${digits(100 - 100 / faster, 2)}% less time` : ''))),
    r.limit ? el('p', { class: 'say' }, el('b', {}, 'Limited by '), r.limit) : null,
    r.faults?.length ? el('p', { class: 'say' }, el('b', {}, 'With '), r.faults.map(f => f.part + (f.factor ? ' at ' + percent(f.factor) : ' dead')).join(', ')) : null,
    ...(r.notes ?? []).map(n => el('p', { class: 'say' }, n)),
    ...how.map(f => figure(f)),
    r.critical.length ? figure({ key: 'where', name: 'Where the time goes', open: true, formula: 'the critical path, the longest chain of events of which each waited for the one before, split by what it was doing', source: 'the simulated events' },
      el('ul', { class: 'bars' }, ...r.critical.map(c => el('li', {}, el('span', {}, c.name), el('span', { class: 'track' }, el('i', { style: { width: 100 * c.ps / whole + '%' } })), el('b', {}, percent(c.ps / whole)))))) : null,
    r.tiers.length ? figure({ key: 'tiers', name: 'Load of links', formula: 'bytes that passed a link ÷ (its rate × the time), by tier', source: 'counted on every link' },
      el('table', {}, el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'tier'), el('th', { scope: 'col' }, 'mean'), el('th', { scope: 'col' }, 'busiest'))),
        el('tbody', {}, ...r.tiers.map(t => el('tr', {}, el('td', {}, t.name), el('td', {}, percent(t.mean)), el('td', {}, percent(t.most))))))) : null);
}

function boundFacts(b, run) {
  return el('section', {}, el('h2', {}, 'No schedule beats this'),
    figure({ key: 'bound', name: 'Least time', value: duration(b.time_ps), note: `${rateText(b.rate_bytes_per_s)} of ${b.op}` + (run?.time_ps ? `; A reaches ${percent(b.time_ps / run.time_ps)} of it` : ''), formula: b.formula, source: 'max-flow and an exact linear program over cuts' + (b.exact ? '; some schedule reaches it' : '; whether a schedule reaches it is not known') }),
    el('p', { class: 'say cut' }, b.why));
}

function triedList(r) {
  const list = (r.tried ?? []).filter(t => t.time_ps).sort((a, b) => a.time_ps - b.time_ps), out = (r.tried ?? []).filter(t => t.why);
  if (!list.length) return [];
  const most = list[list.length - 1].time_ps;
  return [el('h2', {}, `${list.length} algorithm${list.length === 1 ? "" : "s"} simulated`), el('ul', { class: 'bars' }, ...list.slice(0, 12).map(t => el('li', {}, el('span', {}, t.algo), el('span', { class: 'track' }, el('i', { style: { width: 100 * t.time_ps / most + '%' } })), el('b', {}, duration(t.time_ps))))),
    out.length ? el('details', {}, el('summary', { class: 'hint' }, `${out.length} left out`), ...out.map(t => el('p', { class: 'say' }, el('b', {}, t.algo + ' '), t.why))) : null].filter(Boolean);
}

// lanesOf makes lanes of a trace: one for each rank that was recorded.
function lanesOf(r, label, tint, stage) {
  const t = r.trace, nodes = t.nodes, part = rank => nodes[rank] === undefined ? '' : stage.nodeName(nodes[rank]);
  const named = rank => rank < t.ranks ? 'rank ' + rank : part(rank) || 'switch'; // switches that reduce have the numbers behind the GPUs'
  const by = new Map(t.shown.map(rank => [rank, []])), at = new Map(t.shown.map((rank, i) => [rank, i]));
  for (let i = 0; i < t.rank.length; i++) {
    const sends = t.to[i] >= 0;
    by.get(t.rank[i])?.push([t.begin_ps[i], sends ? t.flow_ps[i] : t.begin_ps[i], t.end_ps[i], sends ? tint : 'nic',
      () => `${t.ops[t.op[i]]} of ${byteSize(t.bytes[i])}` + (sends ? ' to ' + named(t.to[i]) : '') + (t.from[i] >= 0 ? ' from ' + named(t.from[i]) : '') + `, channel ${t.channel[i]}`]);
  }
  const lanes = [...by].map(([rank, spans]) => ({ name: label + named(rank), node: nodes[rank], part: part(rank), spans: spans.sort((a, b) => a[0] - b[0]) }));
  const chain = Array.from(t.chain, i => ({ lane: lanes[at.get(t.rank[i])], begin: t.begin_ps[i], end: t.end_ps[i] })).filter(c => c.lane);
  return { label, tint, lanes, chain, gaps: t.gaps, total: r.time_ps, load: (t.load_tiers ?? []).map((name, i) => ({ name, values: t.load[i] })) };
}

// scatter shows layouts: step time over memory, the front marked.
function scatter(box, points, cost, onpick) {
  const chosen = cost.layout_text, range = cost.step_interval_90;
  const w = box.clientWidth || 280, h = 220, left = 42, bottom = 30;
  const xs = points.map(p => p.step_s), ys = points.map(p => p.memory_peak_bytes / 1e9);
  const x0 = Math.min(...xs), x1 = Math.max(...xs), y0 = Math.min(...ys), y1 = Math.max(...ys), px = (x1 - x0) * .08 || x1 * .05, py = (y1 - y0) * .12 || y1 * .05;
  const X = v => left + (v - x0 + px) / (x1 - x0 + 2 * px) * (w - left - 8), Y = v => h - bottom - (v - y0 + py) / (y1 - y0 + 2 * py) * (h - bottom - 8);
  const s = svgEl('svg', { viewBox: `0 0 ${w} ${h}`, role: 'group', 'aria-label': 'layouts by step time and memory' });
  for (const t of roundTicks(x0 - px, x1 + px, Math.max(2, w / 90))) s.append(svgEl('path', { class: 'g', d: `M${X(t)} 4V${h - bottom}` }), svgEl('text', { x: X(t), y: h - bottom + 13, 'text-anchor': 'middle' }, digits(t) + ' s'));
  for (const t of roundTicks(y0 - py, y1 + py, 4)) s.append(svgEl('path', { class: 'g', d: `M${left} ${Y(t)}H${w - 4}` }), svgEl('text', { x: left - 5, y: Y(t) + 3, 'text-anchor': 'end' }, digits(t) + ' GB'));
  s.append(svgEl('text', { x: w - 4, y: h - 4, 'text-anchor': 'end' }, 'step time, memory of a GPU'));
  const front = points.filter(p => p.front).sort((a, b) => a.step_s - b.step_s);
  if (front.length > 1) s.append(svgEl('path', { class: 'front-line', d: 'M' + front.map(p => `${X(p.step_s)} ${Y(p.memory_peak_bytes / 1e9)}`).join('L') }));
  for (const p of [...points].sort((a, b) => a.front - b.front)) {
    const pick = () => onpick(p), text = `${p.layout}: ${seconds(p.step_s)}, ${gigabytes(p.memory_peak_bytes)}, MFU ${percent(p.mfu)}`;
    if (p.layout === chosen && range) { const y = Y(p.memory_peak_bytes / 1e9), a = Math.max(left, X(range.low_s)), b = Math.min(w - 4, X(range.high_s)); s.append(svgEl('path', { class: 'range', d: `M${a} ${y}H${b}M${a} ${y - 4}v8M${b} ${y - 4}v8` })); }
    s.append(svgEl('circle', { cx: X(p.step_s), cy: Y(p.memory_peak_bytes / 1e9), r: p.front ? 4.5 : 3.5, class: p.front ? 'front' : '', tabindex: 0, role: 'button', 'aria-pressed': String(p.layout === chosen), 'aria-label': text, onclick: pick, onkeydown: e => { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); pick(); } } }, svgEl('title', {}, text)));
  }
  box.replaceChildren(s);
}

function planFacts(p) {
  const c = p.cost, range = c.step_interval_90, list = [
    { key: 'step', name: 'Step', value: seconds(c.step_s), note: (range ? `90%: ${seconds(range.low_s)} to ${seconds(range.high_s)}. ` : '') + c.layout_text.replaceAll(',', ',\u200b'), formula: 'kernels × one fitted factor, the pipeline run as a schedule, transfers that nothing hides', source: `factor ${digits(c.factor)}: ${c.factor_source}` + (range ? `; interval from ${range.steps} measured steps of ${range.models} ${range.class} models that were left out` : '') },
    { key: 'tokens', name: 'Tokens/s per GPU', value: countText(c.tokens_per_s_per_gpu), formula: 'batch × sequence ÷ step ÷ GPUs', source: 'the step above' },
    { key: 'mfu', name: 'MFU', value: percent(c.mfu), note: c.flops_convention, formula: 'useful FLOPs ÷ (step × peak FLOP/s × GPUs)', source: `${digits(c.tflops_per_gpu)} TFLOP/s per GPU of ${p.gpu}` },
    { key: 'memory', name: 'Memory', value: gigabytes(c.memory_peak_bytes), state: c.fits ? 'good' : 'bad', note: c.fits ? `of ${gigabytes(c.memory_capacity_bytes)}, on stage ${c.memory_worst_stage}` : `does not fit: ${gigabytes(c.memory_over_bytes)} too much`, formula: 'state + activations at the peak of the worst stage', source: 'the terms on the left' },
    { key: 'bubble', name: 'Idle in the pipeline', value: percent(c.bubble), formula: 'share of the step that the busiest rank waits', source: 'the schedule below' },
  ];
  if (p.days) list.push({ key: 'days', name: 'To train', value: p.days > 1 ? digits(p.days) + ' days' : digits(p.days * 24) + ' hours', note: `${digits(p.tokens / 1e12)}T tokens, without failures`, formula: 'tokens ÷ (batch × sequence) × step', source: 'the step above' },
    { key: 'usd', name: 'Cost', value: p.usd >= 1e6 ? '$' + digits(p.usd / 1e6) + ' million' : '$' + countText(p.usd), note: `${digits(p.mwh)} MWh`, formula: 'GPU hours × price of a GPU hour', source: 'catalogue price' });
  const n = c.nearest, more = [];
  if (n) more.push(el('p', { class: 'say' }, el('b', {}, 'Nearest measured step '), `${n.id}: ${n.what.replaceAll(',', ',\u200b')}, measured ${seconds(n.measured_step_s)}; the model is off by ${n.error >= 0 ? '+' : ''}${digits(100 * n.error)}% there.`));
  if (p.changes?.length) more.push(figure({ key: 'changes', name: 'What would help', formula: 'the same layouts, priced with one thing changed', source: 'the step above' }, ...p.changes.map(x => el('p', { class: 'say' }, el('b', {}, x.what + ' '), `${seconds(x.step_s)}, ${digits(100 * x.gain)}% less`))));
  if (p.why) more.push(figure({ key: 'terms', state: 'tree', name: 'Every term of the step', formula: 'each line is computed from those below it, as it says', source: 'the model, the cluster file and the catalogue' }, termTree(p.why)));
  return facts(`${p.model} on ${countText(c.gpus)} ${p.gpu}`, list, ...more, ...(p.notes ?? []).map(t => el('p', { class: 'say' }, t)));
}

function termText(t) { return t.unit === 's' ? seconds(t.value) : t.unit === 'B' ? gigabytes(t.value) : digits(t.value) + ' ' + t.unit; }
function termTree(t) {
  const head = [t.name, ' ', el('b', {}, termText(t)), t.why ? el('small', {}, t.why) : null].filter(Boolean);
  return t.terms?.length ? el('details', {}, el('summary', {}, ...head), ...t.terms.map(termTree)) : el('div', { class: 'leaf' }, ...head);
}

function memoryBars(c) {
  const most = Math.max(c.memory_capacity_bytes, c.memory_peak_bytes);
  return [figure({ key: 'memory-terms', open: true, name: `Memory of a GPU on stage ${c.memory_worst_stage}`, formula: (c.memory ?? []).filter(t => t.why).map(t => `${t.name}: ${t.why}`).join('; ') || 'the sum of these', source: 'the layout; capacity from the catalogue' }, el('ul', { class: 'bars' }, ...[...(c.memory ?? []), { name: 'capacity', value: c.memory_capacity_bytes, cap: true }].map(t => el('li', { title: t.why }, el('span', {}, t.name), el('span', { class: 'track' }, el('i', { style: { width: 100 * t.value / most + '%', background: t.cap ? 'var(--p5)' : '' } })), el('b', {}, gigabytes(t.value))))))];
}

// stagePaint colours GPUs by pipeline stage: ranks count tensor first, then context, data, pipeline.
function stagePaint(p) {
  const nodes = unpack(p.nodes), l = p.cost.layout, stages = l.PP ?? l.pp ?? 1, per = Math.max(1, Math.round(p.cost.gpus / stages)), paint = new Map();
  for (let r = 0; r < Math.min(nodes.length, p.cost.gpus); r++) { const st = Math.floor(r / per); paint.set(nodes[r], `hsl(${(st * 360 / Math.max(stages, 3) + 195) % 360} 45% ${document.documentElement.matches('[data-theme=dark]') ? 58 : 50}%)`); }
  return { paint, stages };
}

function passLanes(p) {
  const lanes = [];
  for (const s of p.passes ?? []) {
    const lane = lanes[s.rank] ??= { name: 'stage ' + s.rank, spans: [] };
    lane.spans.push([s.begin_s, s.begin_s, s.end_s, { F: 'p1', B: 'p3', W: 'p4' }[s.pass] ?? 'p2', () => `${{ F: 'forward', B: 'backward', W: 'weight gradients' }[s.pass]} of micro-batch ${s.micro}` + (s.chunk ? `, chunk ${s.chunk}` : '')]);
  }
  return [{ label: '', tint: 'p1', lanes: lanes.filter(Boolean), gaps: [], total: p.pipe_s }];
}
