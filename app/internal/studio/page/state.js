'use strict';
// What the page shows, as one value. It lives in the address behind '#': a link shares it, and no server sees it.
// Version 1. A later version adds a step to migrate; an unknown or broken link gives the page as it starts, with a note.

const stateVersion = 1;
const startState = () => ({
  view: 'design', layout: 'network', explain: false, text: '', faults: [], sel: null,
  a: { op: 'all-reduce', bytes: 2 ** 26, algo: 'auto', gpus: 0, routing: 'adaptive', faults: true, program: '' },
  b: null,
  plan: { model: 'llama3-70b', batch: 1024, seq: 8192, framework: 'megatron', dtype: 'bf16', gpus: 0, tokens: '15T', layout: '' },
  ran: { a: false, b: false, bound: false, plan: false },
});

// What a link carries, and how each key is checked.
const stateKeys = {
  view: v => ['design', 'collective', 'plan', 'live'].includes(v),
  layout: v => ['network', 'floor'].includes(v),
  explain: v => typeof v === 'boolean',
  text: v => typeof v === 'string' && v.length < 500000,
  faults: v => Array.isArray(v) && v.every(f => typeof f.part === 'string' && f.factor >= 0 && f.factor <= 1),
  sel: v => v === null || typeof v === 'string',
  a: v => isRun(v), b: v => v === null || isRun(v),
  plan: v => v && typeof v.model === 'string' && v.batch > 0 && v.seq > 0,
  ran: v => v && typeof v === 'object',
};
function isRun(v) { return v && typeof v.op === 'string' && v.bytes >= 1 && typeof v.algo === 'string'; }

async function squeeze(bytes, stream) {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
}

async function writeState(state) {
  const kept = {};
  for (const k of Object.keys(stateKeys)) kept[k] = state[k];
  const raw = await squeeze(new TextEncoder().encode(JSON.stringify(kept)), new CompressionStream('deflate-raw'));
  let text = '';
  for (const b of raw) text += String.fromCharCode(b);
  return stateVersion + '.' + btoa(text).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
}

// readState gives what a link says, or null. Keys that do not check are left at their start.
async function readState(text) {
  const [version, body] = text.split('.');
  if (+version !== stateVersion || !body) throw new Error('this link is of another version of weft studio');
  const raw = Uint8Array.from(atob(body.replaceAll('-', '+').replaceAll('_', '/')), c => c.charCodeAt(0));
  return checkState(JSON.parse(new TextDecoder().decode(await squeeze(raw, new DecompressionStream('deflate-raw')))));
}

function checkState(given) {
  const state = startState();
  for (const [k, right] of Object.entries(stateKeys)) {
    if (given[k] === undefined || !right(given[k])) continue;
    state[k] = typeof state[k] === 'object' && state[k] && !Array.isArray(state[k]) ? { ...state[k], ...given[k] } : given[k];
  }
  return state;
}

// keptToken keeps a page's token for this tab, so that it can be loaded again when the address holds the state instead.
function keptToken(given) {
  try {
    if (given) sessionStorage.setItem('weft-token', given);
    return given ?? sessionStorage.getItem('weft-token');
  } catch { return given; } // a file has no storage
}

function fragment() { return new URLSearchParams(location.hash.slice(1)); }
