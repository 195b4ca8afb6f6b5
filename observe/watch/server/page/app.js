// The page of a cluster: follows the stream and draws what it says.
const $ = id => document.getElementById(id);
const put = (id, text) => { const e = typeof id === 'string' ? $(id) : id; if (e.textContent !== text) e.textContent = text; return e; };
function el(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes ?? {})) if (v != null) e.setAttribute(k, v);
  e.append(...children.filter(c => c != null));
  return e;
}
function svg(name, attributes, ...children) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [k, v] of Object.entries(attributes ?? {})) if (v != null) e.setAttribute(k, v);
  e.append(...children);
  return e;
}
const count = n => new Intl.NumberFormat('en-US').format(Math.round(n));
const digits = x => Math.abs(x) >= 99.95 ? x.toFixed(0) : Math.abs(x) >= 9.995 ? x.toFixed(1) : x.toFixed(2);
function span(s) {
  const a = Math.abs(s);
  if (a < 5e-9) return '–';
  if (a < 1e-3) return `${digits(s * 1e6)} µs`;
  if (a < 1) return `${digits(s * 1e3)} ms`;
  if (a < 120) return `${digits(s)} s`;
  if (a < 7200) return `${Math.round(s / 60)} min`;
  return a < 172800 ? `${digits(s / 3600)} h` : `${digits(s / 86400)} days`;
}
function size(b) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const i = b > 0 ? Math.min(4, Math.floor(Math.log2(b) / 10)) : 0, x = b / 1024 ** i;
  return `${Number.isInteger(x) ? x : digits(x)} ${units[i]}`;
}
function large(x) {
  const a = Math.abs(x);
  return a >= 1e12 ? digits(x / 1e12) + ' T' : a >= 1e9 ? digits(x / 1e9) + ' G' : a >= 1e6 ? digits(x / 1e6) + ' M' : a >= 1e4 ? digits(x / 1e3) + ' k' : a >= 100 ? count(x) : String(+x.toPrecision(3));
}
const two = n => String(n).padStart(2, '0');
const clock = at => { const d = new Date(at * 1000); return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`; };
const day = at => { const d = new Date(at * 1000); return `${two(d.getMonth() + 1)}-${two(d.getDate())} ${clock(at)}`; };

function rows(id, list, cells, none) {
  const body = $(id).tBodies[0];
  const columns = $(id).tHead.rows[0].cells.length;
  body.replaceChildren(...(list.length ? list.map(x => el('tr', {}, ...cells(x).map(c => c instanceof Node ? el('td', {}, c) : el('td', {}, String(c))))) : [el('tr', {}, el('td', { class: 'empty', colspan: columns }, none))]));
}

// alike joins evidence that says the same with other numbers: the last one is shown.
function alike(evidence) {
  const out = [];
  for (const e of evidence) {
    const key = e.text.replace(/[\d.]+/g, '#'), last = out.at(-1);
    if (last && last.key === key) Object.assign(last, { n: last.n + 1, to: e.at, text: e.text });
    else out.push({ key, n: 1, at: e.at, to: e.at, text: e.text });
  }
  return out;
}

function incident(i, now) {
  const over = i.ended > 0;
  const li = el('li', { class: `${i.severity}${over ? ' over' : ''}` },
    el('span', { class: 'sign', title: i.severity }, over ? '✓' : i.severity === 'critical' ? '■' : '▲'));
  const box = el('div', {}, el('h3', {}, i.verdict),
    el('p', {}, `#${i.id} ${i.kind} · ${day(i.began)} · ${over ? `lasted ${span(i.ended - i.began)}` : `for ${span(now - i.began)}`} · ${Math.round(i.confidence * 100)}% sure${i.where?.length ? ' · ' + i.where.join('; ') : ''}`));
  if (!over) {
    if (i.cause) box.append(el('p', {}, i.cause));
    box.append(el('p', { class: 'fix' }, `Do: ${i.fix}`));
  }
  for (const c of i.consequences ?? []) box.append(el('p', {}, `Follows: ${c}`));
  if (i.evidence.length) box.append(el('details', over ? {} : { open: '' }, el('summary', {}, `evidence (${i.evidence.length})`), el('ul', {}, ...alike(i.evidence).map(g => el('li', {}, g.n === 1 ? `${clock(g.at)} ${g.text}` : `${clock(g.at)} to ${clock(g.to)}, ${g.n} times: ${g.text}`)))));
  li.append(box);
  return li;
}

// timeline draws incidents as bars over the last hour, or as long as they reach.
function timeline(list, now) {
  const box = $('timeline'), w = box.clientWidth || 400, h = box.clientHeight || 190;
  const from = Math.max(now - 3600 * 6, Math.min(now - 600, ...list.map(i => i.began - 30)));
  const x = at => 4 + (w - 8) * (Math.max(from, at) - from) / (now - from || 1);
  const shown = list.slice(0, Math.floor((h - 30) / 14));
  const g = svg('svg', { viewBox: `0 0 ${w} ${h}`, role: 'img', 'aria-label': `${list.length} incidents over time` });
  for (let k = 0; k <= 4; k++) {
    const at = from + (now - from) * k / 4;
    g.append(svg('path', { class: 'grid', d: `M${x(at)} 4V${h - 18}` }), svg('text', { x: Math.min(w - 44, Math.max(0, x(at) - 22)), y: h - 4 }, clock(at).slice(0, 5)));
  }
  shown.forEach((i, k) => {
    const y = 6 + k * 14, end = i.ended || now;
    g.append(svg('rect', { class: `${i.severity === 'critical' ? 'span-bad' : 'span-warn'}${i.ended ? ' span-over' : ''}`, x: x(i.began), y, width: Math.max(3, x(end) - x(i.began)), height: 10, rx: 3 }, svg('title', {}, i.verdict)));
    const name = i.kind + (i.subject.ranks.length ? ` rank ${i.subject.ranks.slice(0, 3).join(', ')}` : i.subject.hosts.length ? ` ${i.subject.hosts[0]}` : '');
    const right = x(end) + 6 + name.length * 6 < w;
    g.append(svg('text', { x: right ? x(end) + 5 : Math.max(2, x(i.began) - 5), y: y + 9, 'text-anchor': right ? 'start' : 'end' }, name));
  });
  box.replaceChildren(g);
  put('r-time', list.length ? `${list.filter(i => !i.ended).length} open, ${list.filter(i => i.ended).length} over` : 'nothing happened');
}

// mix paints at most two fifths of a colour, so that ink on it can be read.
const mix = (x, name) => `color-mix(in oklab, var(${name}) ${Math.round(40 * Math.max(0, Math.min(1, x)))}%, var(--sunk))`;

function heat(h) {
  const box = $('heat');
  if (!h.cells.length) { box.replaceChildren(el('p', { class: 'empty' }, 'no agent has reported InfiniBand or RoCE ports')); put('r-heat', ''); return; }
  box.style.gridTemplateColumns = `repeat(${h.columns.length}, minmax(30px, 1fr))`;
  const list = h.columns.map(c => el('span', { class: 'col', title: c }, c.replace('rail ', 'r')));
  const at = new Map(h.cells.map(c => [`${c.row}/${c.column}`, c]));
  let bad = 0;
  for (let r = 0; r < h.rows.length; r++) for (let k = 0; k < h.columns.length; k++) {
    const c = at.get(`${r}/${k}`);
    if (!c) { list.push(el('span', {})); continue; }
    const state = c.bad || c.down ? 'bad' : c.warn ? 'warn' : '';
    if (state === 'bad') bad++;
    const t = el('span', { class: `tile ${state}`, title: `${c.name}: ${c.ports} ports, ${c.down} down, ${c.bad} bad, ${c.warn} with warnings; sends ${large(c.tx_bytes_per_s)}B/s, ${Math.round(c.load * 100)}% of what it could` },
      state === 'bad' ? `■ ${c.bad + c.down}` : state === 'warn' ? `▲ ${c.warn}` : c.load >= 0.005 ? `${Math.round(c.load * 100)}%` : '');
    t.style.background = mix(c.load, '--accent');
    list.push(t);
  }
  box.replaceChildren(...list);
  put('r-heat', bad ? `${bad} with bad ports` : `${h.cells.length} places, all good`);
}

function links(list) {
  const box = $('links'), l = list[0];
  if (!l) { box.replaceChildren(el('p', { class: 'empty' }, 'no job sends over TCP; ports of RDMA are compared by rail')); put('r-links', ''); return; }
  const ranks = l.ranks.slice(0, 64);
  box.style.gridTemplateColumns = `auto repeat(${ranks.length}, minmax(46px, 64px))`;
  const out = [el('span', { class: 'label' }, 'from \\ to'), ...ranks.map(r => el('span', { class: 'label' }, String(r)))];
  const at = new Map(l.cells.map(c => [`${c.from}/${c.to}`, c]));
  for (const a of ranks) {
    out.push(el('span', { class: 'label' }, String(a)));
    for (const b of ranks) {
      const c = at.get(`${a}/${b}`);
      if (!c) { out.push(el('span', { class: 'tile none' }, a === b ? '' : '·')); continue; }
      const slow = c.cut || c.ratio > 3;
      const t = el('span', { class: `tile${slow ? ' slow' : ''}`, title: c.cut ? `nothing gets from rank ${a} to rank ${b}` : `rank ${a} to rank ${b}: ${large(c.mb_per_s * 1e6)}B/s while there was something to send, ${digits(c.ratio)} times the median delay` }, c.cut ? '× cut' : `${slow ? '■ ' : ''}${large(c.mb_per_s)}`);
      t.style.background = mix(c.cut ? 1 : Math.log10(Math.max(1, c.ratio)) / 2, '--failed');
      out.push(t);
    }
  }
  box.replaceChildren(...out);
  put('r-links', `${l.job}: MB/s while there was something to send; the colour is the delay`);
}

let table = null, asked = 0;
async function askTable() {
  if (Date.now() - asked < 2000) return;
  asked = Date.now();
  try { table = await (await fetch('api/table?n=64')).json(); } catch { return; }
  rows('table', table.rows, r => [r.job, r.rank, r.host, r.pid, r.gpu, r.nic || '–', r.rail < 0 ? '–' : r.rail, r.leaf || '–', r.leaf ? r.port : '–', count(r.operation), span(Math.max(0, r.late_s)), size(r.memory_bytes),
    el('span', { class: r.trouble ? 't-bad' : '' }, r.trouble ? `■ ${r.trouble}` : `${r.state}${r.waits ? ', waits' : ''}`)], 'no rank of a job was found');
  put('r-table', table.total > table.rows.length ? `the first ${table.rows.length} of ${count(table.total)}` : `${table.total} ranks`);
}

function draw(v) {
  const h = v.health;
  put('title', v.title ? `weft watch · ${v.title}` : 'weft watch');
  document.title = `${h.state === 'good' ? '' : '! '}${v.title} · weft watch`;
  put('verdict', h.verdict);
  put('state', h.state).dataset.state = h.state;
  put('f-hosts', count(h.hosts)); put('s-hosts', `${h.expected ? `of ${count(h.expected)}, ` : ''}${h.silent} silent`);
  put('f-ports', count(h.ports)); put('s-ports', `${h.ports_down} down`);
  put('f-checks', count(h.checks)); put('s-checks', `${h.checks_bad} not good`);
  put('f-jobs', count(h.jobs)); put('s-jobs', `${count(h.ranks)} ranks`);
  const open = v.incidents.filter(i => !i.ended);
  put('f-open', count(open.length)); put('s-open', `${h.open.critical ?? 0} critical, ${h.open.warning ?? 0} warnings`);
  put('f-series', large(h.series)); put('s-series', `${count(h.reports)} reports`);
  const shut = new Set([...document.querySelectorAll('#incidents details:not([open])')].map(d => d.dataset.id));
  const list = v.incidents.slice(0, 60).map(i => { const e = incident(i, v.now); const d = e.querySelector('details'); if (d) { d.dataset.id = i.id; if (shut.has(String(i.id))) d.removeAttribute('open'); } return e; });
  $('incidents').replaceChildren(...(list.length ? list : [el('li', { class: 'over' }, el('span', { class: 'sign' }, '✓'), el('div', {}, 'nothing was wrong since the server started'))]));
  put('r-incidents', open.length ? `${open.length} open` : 'none is open');
  timeline(v.incidents, v.now);
  rows('jobs', v.jobs, j => [el('span', { class: `t-${j.state}`, title: j.verdict ?? '' }, `${j.state === 'bad' ? '■ ' : j.state === 'warn' ? '▲ ' : ''}${j.job}`), `${j.ranks} of ${j.size}`, j.hosts, j.operations_per_s ? large(j.operations_per_s) : '–', span(j.quiet_s)], 'no job runs');
  heat(v.heat);
  rows('collectives', v.collectives.slice(0, 40), c => [c.job, c.op, size(c.bytes), c.ranks, c.took_s ? span(c.took_s) : '–', large(c.busbw_gb_per_s), c.predicted_s ? span(c.predicted_s) : '–', c.predicted_ratio ? digits(c.predicted_ratio) : '–', c.baseline_s ? span(c.baseline_s) : 'learning',
    el('span', { class: c.ratio > 2 ? 't-bad' : c.ratio > 1.5 ? 't-warn' : '' }, c.ratio ? `${c.ratio > 1.5 ? '▲ ' : ''}${digits(c.ratio)}` : '–')], 'no collective was told of yet');
  rows('late', v.late.slice(0, 24), l => [l.rank, l.host, el('span', { class: l.cost >= 0.02 && l.last_share >= 0.6 ? 't-bad' : '' }, `${(l.cost * 100).toFixed(1)}%`), span(l.late_s)], 'no lateness is known yet');
  links(v.links);
  $('changes').replaceChildren(...(v.changes.length ? v.changes.map(c => el('li', {}, el('time', {}, day(c.at)), `${c.host}: ${c.what} ${c.from ? `was ${c.from}, ` : ''}${c.to ? `is ${c.to}` : 'is gone'}`)) : [el('li', { class: 'faint' }, 'nothing changed')]));
  put('r-changes', v.changes.length ? `${v.changes.length} changes` : '');
  put('foot', `as of ${day(v.now)}`);
  askTable();
  if (!$('host').options.length) hosts();
}

async function hosts() {
  try {
    const list = (await (await fetch('api/hosts')).json()).hosts;
    if (!list.length || $('host').options.length) return;
    $('host').replaceChildren(...list.slice(0, 2000).map(h => el('option', {}, h.host)));
    series();
  } catch { /* asked again with the next view */ }
}
async function series() {
  const list = (await (await fetch(`api/series?host=${encodeURIComponent($('host').value)}`)).json()).series ?? [];
  const was = $('series').value;
  $('series').replaceChildren(...list.map(s => el('option', {}, s.name)));
  const first = list.find(s => s.name === was) ?? list.find(s => s.name.startsWith('node_infiniband_port_data_transmitted')) ?? list.find(s => s.name.startsWith('weft_memory')) ?? list[0];
  if (first) $('series').value = first.name;
  history();
}
async function history() {
  const name = $('series').value;
  if (!name) return;
  const r = await fetch(`api/history?host=${encodeURIComponent($('host').value)}&series=${encodeURIComponent(name)}&hours=${$('hours').value}`);
  const a = await r.json();
  const box = $('history'), w = box.clientWidth || 600, h = box.clientHeight || 190;
  let p = a.points ?? [];
  if (a.error || p.length < 2) { box.replaceChildren(el('p', { class: 'empty' }, a.error ?? 'too few points yet')); put('r-history', ''); return; }
  const rate = /_total($|\{)/.test(name);
  if (rate) p = p.slice(1).map((q, k) => { const d = Math.max(0, q.mean - p[k].mean) / (q.at - p[k].at || 1); return { at: q.at, mean: d }; });
  const ys = p.map(q => q.mean), lo = Math.min(0, ...ys), hi = Math.max(...ys, lo + 1e-9), from = p[0].at, to = p.at(-1).at;
  const x = at => 52 + (w - 60) * (at - from) / (to - from || 1), y = v => h - 20 - (h - 30) * (v - lo) / (hi - lo);
  const g = svg('svg', { viewBox: `0 0 ${w} ${h}`, role: 'img', 'aria-label': `${name} over time` });
  for (let k = 0; k <= 3; k++) { const v = lo + (hi - lo) * k / 3; g.append(svg('path', { class: 'grid', d: `M52 ${y(v)}H${w - 8}` }), svg('text', { x: 46, y: y(v) + 4, 'text-anchor': 'end' }, large(v))); }
  for (let k = 0; k <= 3; k++) { const t = from + (to - from) * k / 3; g.append(svg('text', { x: Math.min(w - 50, x(t) - 14), y: h - 4 }, clock(t).slice(0, 5))); }
  const d = p.map((q, k) => `${k ? 'L' : 'M'}${x(q.at).toFixed(1)} ${y(q.mean).toFixed(1)}`).join('');
  g.append(svg('path', { class: 'area', d: `${d}L${x(to)} ${y(lo)}L${x(from)} ${y(lo)}Z` }), svg('path', { class: 'smooth', d }));
  box.replaceChildren(g);
  put('r-history', `${rate ? 'a second, ' : ''}last ${large(ys.at(-1))}`);
}
$('host').addEventListener('change', series);
$('series').addEventListener('change', history);
$('hours').addEventListener('change', history);
$('pick').addEventListener('submit', e => e.preventDefault());
setInterval(() => { if ($('series').value) history(); }, 15000);

const themes = ['auto', 'light', 'dark'];
let theme = 0;
try { theme = Math.max(0, themes.indexOf(localStorage.getItem('weft-theme') ?? 'auto')); } catch { /* no memory */ }
function dress() {
  if (themes[theme] === 'auto') delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = themes[theme];
  put('theme-name', themes[theme]);
}
$('theme').addEventListener('click', () => { theme = (theme + 1) % 3; try { localStorage.setItem('weft-theme', themes[theme]); } catch { /* no memory */ } dress(); });
dress();

let heard = Date.now();
function follow() {
  const s = new EventSource('events');
  s.addEventListener('view', e => { heard = Date.now(); $('lost').hidden = true; const v = JSON.parse(e.data); window.weftView = v; draw(v); });
}
follow();
setInterval(() => { if (Date.now() - heard > 6000) { put('lost', `The server has said nothing for ${span((Date.now() - heard) / 1000)}. What is shown is old.`).hidden = false; put('state', 'unknown').dataset.state = 'unknown'; } }, 1000);
