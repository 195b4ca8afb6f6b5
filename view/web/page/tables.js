// Tables and lists: collectives, checkpoints, measures, the time of a step.
import { el, put, count, size, time, span, digits, clock } from './format.js';

const unit = ([n, u]) => [n, el('span', { class: 'unit-of' }, u ? ` ${u}` : '')];
const td = (...children) => el('td', {}, ...children);

export function collectives(store) {
  const body = document.querySelector('#collectives tbody');
  const list = store.collectives;
  if (!list.length) {
    body.replaceChildren(el('tr', {}, el('td', { colspan: 10, class: 'empty' }, 'no collective yet')));
    return;
  }
  const most = Math.max(...list.map(c => c.busbw_gb_per_s), 1e-9);
  const all = Math.max(1, list.reduce((sum, c) => sum + c.total_ns, 0));
  body.replaceChildren(...list.map(c => {
    const meter = el('span', { class: 'meter', 'aria-hidden': 'true' });
    meter.style.width = `${Math.max(1, Math.round(28 * c.busbw_gb_per_s / most))}px`;
    const [n, u] = size(c.bytes).split(' ');
    return el('tr', {}, td(c.op), el('td', { title: `${count(c.bytes)} bytes` }, ...unit([n, u])), td(count(c.count / Math.max(1, c.ranks))),
      td(...unit(span(c.mean_ns))), ...against(c), td(share(c.total_ns / all)), td(c.bytes ? rate(c.algbw_gb_per_s) : '–'), c.bytes ? td(meter, rate(c.busbw_gb_per_s)) : td('–'));
  }));
}

const against = c => c.predicted_ns ? [td(...unit(span(c.took_ns))), td(...unit(span(c.predicted_ns))), td(`${digits(c.predicted_ratio)}×`)] : [td('–'), td('–'), td('–')];
const share = x => x >= 0.0995 ? `${Math.round(100 * x)}%` : x >= 0.001 ? `${(100 * x).toFixed(1)}%` : '< 0.1%';
const rate = x => x >= 0.001 || x === 0 ? digits(x) : '< 0.001';

const saveSigns = { complete: '✓', writing: '…', failed: '×', emergency: '!' };

export function checkpoints(store) {
  const body = document.querySelector('#saves tbody');
  const list = [...store.checkpoints].reverse();
  if (!list.length) {
    body.replaceChildren(el('tr', {}, el('td', { colspan: 6, class: 'empty' }, 'none yet')));
    put('saves-read', '');
    return;
  }
  const whole = list.find(c => c.state === 'complete' || c.state === 'emergency');
  put('saves-read', whole ? `last whole one of step ${count(whole.step)}` : 'no whole one yet');
  const origin = store.origin();
  body.replaceChildren(...list.slice(0, 50).map(c => {
    const state = el('td', { class: `s-${c.state}` }, `${saveSigns[c.state] ?? '·'} ${c.state}`);
    if (c.text) state.title = c.text;
    return el('tr', {}, td(count(c.step)), state, td(c.bytes ? size(c.bytes) : '–'), td(c.took_ns ? time(c.took_ns) : '–'),
      td(c.took_ns && c.bytes ? `${size(c.bytes / (c.took_ns / 1e9))}/s` : '–'), td(c.at ? clock((Date.parse(c.at) - origin) * 1e6) : '–'));
  }));
}

export function measures(store) {
  const box = document.getElementById('measures');
  if (!store.measures.length) {
    box.replaceChildren(el('div', {}, el('dt', { class: 'faint' }, 'measured as the run goes on')));
    return;
  }
  box.replaceChildren(...store.measures.map(m => el('div', {}, el('dt', {}, m.name), el('dd', { class: 'value' }, m.value), m.note ? el('dd', { class: 'note' }, m.note) : null)));
}

export function stepTime(store) {
  const t = store.summary?.step_time;
  const bar = document.getElementById('time-bar'), key = document.getElementById('time-key');
  if (!t || !t.steps || !t.wall_ns) {
    put('time-of', '');
    return;
  }
  const comm = t.exposed_ns + t.tensor_ns; // for which ranks stand still
  const known = t.forward_ns + t.backward_ns + comm + t.bubble_ns;
  const parts = [['c1', 'forward', t.forward_ns], ['c2', 'backward', t.backward_ns], ['c3', 'communication', comm], ['c4', 'bubble', t.bubble_ns], ['c5', 'the rest', Math.max(0, t.wall_ns - known)]];
  const all = Math.max(known, t.wall_ns);
  put('time-of', `takes ${time(t.wall_ns)}, mean of ${t.steps}`);
  if (bar.children.length !== parts.length) {
    bar.replaceChildren(...parts.map(([c]) => el('i', { class: c })));
    key.replaceChildren(...parts.map(([c, name]) => el('li', {}, el('span', { class: `swatch ${c}` }), name, el('b', {}))));
  }
  parts.forEach(([, , ns], i) => {
    bar.children[i].style.flex = `${(ns / all).toFixed(4)} 1 0px`;
    put(key.children[i].querySelector('b'), time(ns));
  });
  bar.setAttribute('aria-label', parts.map(([, name, ns]) => `${name} ${time(ns)}`).join(', '));
  const hidden = document.getElementById('time-hidden');
  if (t.comm_ns > 0) {
    const text = `${Math.round(100 * (1 - Math.min(1, t.exposed_ns / t.comm_ns)))}% of ${time(t.comm_ns)} collectives among replicas behind computing`;
    if (hidden) put(hidden, text);
    else key.after(el('p', { id: 'time-hidden', class: 'key' }, text));
  } else hidden?.remove();
}
