// The page: follows the stream, and draws what changed.
import { Store } from './store.js';
import { Chart, clockTicks } from './chart.js';
import { Ranks } from './ranks.js';
import { Topology } from './topology.js';
import { Heat } from './heat.js';
import { Timeline, marks } from './timeline.js';
import * as tables from './tables.js';
import { put, count, large, loss, clock, time, el } from './format.js';

const store = new Store();
const ranks = new Ranks(store), topology = new Topology(store), heat = new Heat(store), timeline = new Timeline(store);

// The curves that the first panel shows, one at a time.
const curves = { loss: ['Loss', loss], grad_norm: ['Gradient norm', v => v == null ? '–' : v.toPrecision(4)], learning_rate: ['Learning rate', v => v == null ? '–' : v.toExponential(2)] };
let curve = 'loss';
const lossChart = new Chart(document.getElementById('loss'), {
  label: 'loss by step', smooth: true, zoom: true, none: 'no step yet',
  x: v => count(v), y: (v, places) => places > 4 ? v.toExponential(1) : v.toFixed(places),
  read: at => put('loss-read', at == null ? lossChart?.zoomed() ? 'double click: all steps' : '' : `step ${count(store.loss.steps[at])} · ${curves[curve][1](store.loss[curve][at])}${store.loss.stride > 1 ? ` · mean of ${store.loss.stride} steps` : ''}`),
});
for (const b of document.querySelectorAll('[data-curve]')) b.addEventListener('click', () => {
  curve = b.dataset.curve;
  for (const o of document.querySelectorAll('[data-curve]')) o.setAttribute('aria-pressed', String(o === b));
  put('h-loss', curves[curve][0]);
  drawLoss();
});
const rateChart = new Chart(document.getElementById('rate'), {
  label: 'tokens a second over time', zero: true, area: true, none: 'no step yet', xTicks: clockTicks,
  x: v => clock(v * 1e9), y: v => v >= 1e6 ? `${+(v / 1e6).toFixed(1)}M` : v >= 1e4 ? `${+(v / 1e3).toFixed(1)}k` : count(v),
  read: at => put('rate-read', at == null ? 'tokens / s' : `${clock(rateChart.xs[at] * 1e9)} · ${count(store.rate.rate[at])} tokens / s`),
});

function drawLoss() {
  const { steps } = store.loss, [name, tell] = curves[curve];
  const values = curve === 'loss' ? store.loss.loss : store.loss[curve].map(v => v || null);
  lossChart.set(steps, values, marks(store));
  const n = values.length;
  if (n) lossChart.picture.setAttribute('aria-label', `${name.toLowerCase()} by step: ${tell(values[0])} at step ${steps[0]}, ${tell(values[n - 1])} at step ${steps[n - 1]}; drag or press + to zoom, Escape for all steps`);
}

function drawRate() {
  const { start, width_ns, rate } = store.rate;
  const from = start == null ? 0 : (start - store.origin()) / 1000;
  rateChart.set(rate.map((_, i) => from + (i + 0.5) * width_ns / 1e9), rate);
}

function drawJob() {
  const j = store.job;
  put('title', j.title || 'weft');
  document.title = j.title ? `${j.title} · weft` : 'weft';
  const list = [j.model, j.params && !j.model.includes('parameters') ? `${large(j.params)} parameters` : '', j.layout, j.transport].filter(Boolean);
  put('what', list.join(' · ') || 'waiting for the run');
  put('foot', j.command || '');
  for (const k of ['watch', 'studio']) {
    const a = document.getElementById(k);
    if (j[k]) a.setAttribute('href', j[k]);
    a.hidden = !j[k];
  }
}

let first = null; // loss that the run began with

function drawSummary() {
  const s = store.summary;
  if (!s) return;
  put('f-step', count(s.step));
  put('f-step-sub', s.step_time.wall_ns ? `${time(s.step_time.wall_ns)} a step` : '\u00a0');
  first = store.loss.loss.find(v => v != null) ?? null;
  put('f-loss', s.diverged ? 'no number' : loss(s.loss));
  put('f-loss-sub', first != null ? `began at ${loss(first)}` : '\u00a0');
  put('f-rate', large(s.tokens_per_s));
  put('f-rate-sub', s.tokens ? `${large(s.tokens)} tokens so far` : '\u00a0');
  const ended = s.state === 'ended', healthy = ended ? s.states.left ?? 0 : s.states.healthy ?? 0;
  put('d-ranks', ended ? 'Ranks ended well' : 'Ranks healthy');
  const box = document.getElementById('f-ranks'), text = `${healthy}/${s.ranks}`;
  if (box.dataset.is !== text) {
    box.dataset.is = text;
    box.replaceChildren(count(healthy), el('small', {}, ` / ${count(s.ranks)}`));
  }
  const weight = ['failed', 'suspect', 'recovering', 'starting'];
  const other = Object.entries(s.states).filter(([k, n]) => k !== (ended ? 'left' : 'healthy') && n > 0).sort((a, b) => (weight.indexOf(a[0]) + 9) % 9 - (weight.indexOf(b[0]) + 9) % 9).map(([k, n]) => `${count(n)} ${k}`);
  const sub = put('f-ranks-sub', other.join(', ') || (s.ranks ? 'all of them' : '\u00a0'));
  sub.title = other.join(', ');
  sub.classList.toggle('warn', (s.states.failed ?? 0) + (s.states.suspect ?? 0) > 0);
  put('f-epoch', count(s.epoch));
  put('f-epoch-sub', s.failures ? `${count(s.failures)} ${s.failures === 1 ? 'failure' : 'failures'}${s.resume.count ? `, resume ${time(s.resume.p50_ns)}` : ''}` : 'no failures');
  if (link === 'live') badge(s.state, s.state);
  drawClock();
}

function drawClock() {
  const s = store.summary;
  if (!s) return;
  const now = store.elapsed();
  put('f-elapsed', clock(now));
  const left = s.left_ns >= 0 ? Math.max(0, s.left_ns - (now - s.elapsed_ns)) : -1;
  put('f-elapsed-sub', store.job.ended ? 'ended' : left >= 0 ? `${clock(left)} left` : 'no end set');
}

// Drawing waits for a frame, and draws only what changed.
const drawers = [
  [['job'], drawJob],
  [['summary'], drawSummary],
  [['loss', 'epochs', 'events', 'checkpoints'], drawLoss],
  [['rate', 'job'], drawRate],
  [['summary'], () => tables.stepTime(store)],
  [['topology'], () => topology.draw()],
  [['ranks', 'topology'], () => { ranks.draw(); topology.paint(); }],
  [['late'], () => { heat.draw(); if (!heat.at) put('late-read', heat.habit()); }],
  [['epochs', 'events'], () => timeline.draw()],
  [['summary'], () => timeline.strip()],
  [['collectives'], () => tables.collectives(store)],
  [['checkpoints'], () => tables.checkpoints(store)],
  [['measures'], () => tables.measures(store)],
];
let dirty = new Set(), frame = 0;

function draw(changed) {
  for (const c of changed) dirty.add(c);
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    const now = dirty;
    dirty = new Set();
    for (const [parts, f] of drawers) if (parts.some(p => now.has(p))) f();
  });
}

// The stream. The browser's own reconnecting is not relied on: it gives up when
// a server answers with an error.
let link = 'connecting', source = null, position = '', retry = 0, watch = 0;

function badge(state, text) {
  const b = document.getElementById('state');
  if (b.dataset.state !== state) b.dataset.state = state;
  put(b, text);
}

function lost(kind, text) {
  const box = document.getElementById('lost');
  box.hidden = !text;
  box.dataset.kind = kind;
  put(box, text);
}

function connect() {
  source?.close();
  source = new EventSource(position ? `/events?since=${encodeURIComponent(position)}` : '/events');
  const take = e => {
    const m = JSON.parse(e.data);
    position = e.lastEventId;
    link = 'live';
    retry = 0;
    lost('', '');
    if (m.full || m.board !== store.board) timeline.forget();
    draw(store.apply(m));
    alive();
  };
  source.addEventListener('all', take);
  source.addEventListener('change', take);
  source.addEventListener('bye', () => away(true));
  source.onerror = () => away(false);
  alive();
}

// alive gives the server five seconds to be heard again: it speaks every second.
function alive() {
  clearTimeout(watch);
  watch = setTimeout(() => away(false), 5000);
}

function away(said) {
  source?.close();
  source = null;
  clearTimeout(watch);
  if (store.job.ended) {
    link = 'ended';
    badge('ended', 'ended');
    lost('ended', 'The run has ended. These are its last values.');
  } else if (said) {
    link = 'stopped';
    badge('lost', 'stopped');
    lost('stopped', 'The server has stopped. These are the last values; the page goes on when it is back.');
  } else {
    link = 'lost';
    badge('lost', 'connection lost');
    lost('lost', store.board ? 'Connection lost. These are the last values; trying again.' : 'No answer from the run yet; trying again.');
  }
  retry = Math.min(retry + 1, 5);
  watch = setTimeout(connect, 400 * 2 ** (retry - 1));
}

// Colours: as the system has them, or as the reader chose.
const themes = ['auto', 'light', 'dark'];
function theme(name) {
  if (name === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  put('theme-name', name);
  heat.draw();
}
let chosen = 'auto';
try { chosen = localStorage.getItem('weft-theme') ?? 'auto'; } catch { /* storage is off: the choice lasts as long as the page */ }
if (!themes.includes(chosen)) chosen = 'auto';
theme(chosen);
document.getElementById('theme').addEventListener('click', () => {
  chosen = themes[(themes.indexOf(chosen) + 1) % themes.length];
  try { localStorage.setItem('weft-theme', chosen); } catch { /* as above */ }
  theme(chosen);
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => heat.draw());

setInterval(drawClock, 1000);
put('rate-read', 'tokens / s');
connect();
