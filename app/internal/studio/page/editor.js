'use strict';
// The text of the cluster file: a textarea with painted text under it, line numbers, and errors at their lines.

class Editor {
  constructor(box) {
    this.box = box; this.text = $('text'); this.paint = $('paint'); this.gutter = $('gutter');
    this.bad = new Map();
    this.onchange = () => {};
    this.text.addEventListener('input', () => { this.draw(); clearTimeout(this.soon); this.soon = setTimeout(() => { this.soon = 0; this.onchange(this.text.value); }, 350); });
    this.text.addEventListener('scroll', () => this.follow());
    // Tab indents once something was typed; until then, and after Escape, it goes on to the next control.
    this.text.addEventListener('focus', () => { this.typed = false; });
    this.text.addEventListener('input', () => { this.typed = true; });
    this.text.addEventListener('keydown', e => {
      if (e.key === 'Escape') this.typed = false;
      if (e.key !== 'Tab' || e.shiftKey || e.ctrlKey || !this.typed) return;
      e.preventDefault();
      document.execCommand('insertText', false, '  ');
    });
  }

  value() { return this.text.value; }
  set(text) { clearTimeout(this.soon); this.soon = 0; if (text !== this.text.value) { this.text.value = text; } this.bad.clear(); this.draw(); }

  // errors marks lines; a line of 0 stands for the whole file.
  errors(lines) {
    this.bad = new Map(lines.filter(l => l.line > 0).map(l => [l.line, l.text]));
    this.box.classList.toggle('bad', lines.length > 0);
    this.text.setAttribute('aria-invalid', lines.length > 0);
    this.draw();
  }

  go(line) {
    const lines = this.text.value.split('\n'), at = lines.slice(0, line - 1).reduce((n, l) => n + l.length + 1, 0);
    this.text.focus();
    this.text.setSelectionRange(at, at + (lines[line - 1]?.length ?? 0));
    this.text.scrollTop = Math.max(0, (line - 4) * 18);
  }

  draw() {
    const lines = this.text.value.split('\n');
    this.paint.replaceChildren(...lines.map((l, i) => { const row = paintLine(l); if (this.bad.has(i + 1)) row.className = 'e'; return row; }));
    this.gutter.replaceChildren(...lines.flatMap((_, i) => [this.bad.has(i + 1) ? el('b', {}, '● ' + (i + 1)) : String(i + 1), '\n']));
    this.follow();
  }

  follow() { this.paint.scrollTop = this.gutter.scrollTop = this.text.scrollTop; this.paint.scrollLeft = this.text.scrollLeft; }
}

// paintLine colours one line of YAML: keys, numbers, texts, remarks.
function paintLine(line) {
  const row = el('span');
  const rest = /(#.*$)|("[^"]*"|'[^']*')|([\w./[\]-]+)(?=\s*:)|(\b\d[\w.]*\b)/g;
  let at = 0;
  for (const m of line.matchAll(rest)) {
    if (m[1] && m.index > 0 && !/\s/.test(line[m.index - 1])) continue;
    row.append(line.slice(at, m.index), el('span', { class: m[1] ? 'c' : m[2] ? (/^\s*:/.test(line.slice(m.index + m[0].length)) ? 'k' : 's') : m[3] ? 'k' : 'n' }, m[0]));
    at = m.index + m[0].length;
  }
  row.append(line.slice(at), '\n');
  return row;
}
