// The page of a lab: asks for its state and its picture once a second.
const $ = id => document.getElementById(id);
const rate = v => v >= 1e9 ? (v / 1e9).toFixed(1) + ' GB/s' : v >= 1e6 ? (v / 1e6).toFixed(1) + ' MB/s' : v >= 1e3 ? (v / 1e3).toFixed(1) + ' KB/s' : v.toFixed(0) + ' B/s';
const put = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };
const cell = (text, kind) => { const d = document.createElement('td'); d.textContent = text; if (kind) d.className = kind; return d; };

async function get(name) {
  const r = await fetch(name);
  if (!r.ok) throw new Error(await r.text());
  return r;
}

function show(s) {
  const wrong = s.cables.filter(w => w.wrong).length;
  document.title = 'lab ' + s.lab;
  put('title', 'lab ' + s.lab);
  put('what', `${s.nodes.length} nodes, ${s.cables.length} cables`);
  put('state', wrong ? `${wrong} cable${wrong > 1 ? 's' : ''} broken` : 'as it was made');
  $('state').dataset.state = wrong ? 'stalled' : 'training';
  const rows = s.cables.slice().sort((a, b) => (b.wrong ? 1 : 0) - (a.wrong ? 1 : 0) || (b.from_a_Bps + b.from_b_Bps) - (a.from_a_Bps + a.from_b_Bps)).slice(0, 24);
  $('rows').replaceChildren(...rows.map(w => {
    const tr = document.createElement('tr');
    tr.append(cell(w.a + ' - ' + w.b), cell(rate(w.from_a_Bps), 'n'), cell(rate(w.from_b_Bps), 'n'), cell(w.wrong ? '! ' + w.wrong : 'up', w.wrong ? 'bad' : ''));
    return tr;
  }));
  put('over', `${rows.length} of ${s.cables.length}, mean rates over ${s.over_s.toFixed(1)} s`);
}

async function turn() {
  try {
    const [picture, state] = await Promise.all([get('lab.svg'), get('state.json')]);
    $('picture').replaceChildren(document.importNode(new DOMParser().parseFromString(await picture.text(), 'image/svg+xml').documentElement, true));
    show(await state.json());
    $('lost').hidden = true;
  } catch (e) {
    $('lost').textContent = 'The lab does not answer: ' + e.message + ' Trying again.';
    $('lost').hidden = false;
    put('state', 'unknown');
    $('state').dataset.state = 'lost';
  }
  setTimeout(turn, 1000);
}
turn();
