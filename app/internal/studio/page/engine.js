'use strict';
// The engine behind the page: a server, or the same Go code as WebAssembly in a worker.
// Both answer ask(method, question, {progress, signal}) with a promise; an error has .text and .lines.

class EngineError extends Error {
  constructor(p) { super(p.text); this.text = p.text; this.lines = p.lines ?? []; this.code = p.code; }
}

class ServerEngine {
  constructor(token) { this.token = token; }

  headers() { return this.token ? { Authorization: 'Bearer ' + this.token } : {}; }

  // page gives the page as one file that opens with a state.
  async page(open) {
    const answer = await fetch('page', { method: 'POST', headers: { 'Content-Type': 'application/json', ...this.headers() }, body: JSON.stringify(open) })
      .catch(() => { throw new EngineError({ text: 'The server does not answer. Is weft studio still running?', code: 0 }); });
    if (!answer.ok) throw new EngineError({ ...(await answer.json().catch(() => ({}))).error, code: answer.status });
    return answer.blob();
  }

  async ask(method, question, { progress, signal } = {}) {
    let answer;
    try {
      answer = await fetch('api/' + method, { method: 'POST', headers: { 'Content-Type': 'application/json', ...this.headers() }, body: JSON.stringify(question ?? {}), signal });
    } catch (e) {
      if (e.name === 'AbortError') throw e;
      throw new EngineError({ text: 'The server does not answer. Is weft studio still running?', code: 0 });
    }
    if (!answer.ok) throw new EngineError({ ...(await answer.json().catch(() => ({}))).error, code: answer.status });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      rest += value;
      for (let at; (at = rest.indexOf('\n')) >= 0;) {
        const line = JSON.parse(rest.slice(0, at));
        rest = rest.slice(at + 1);
        if (line.progress) progress?.(line.progress);
        else if (line.error) throw new EngineError(line.error);
        else return line.result;
      }
    }
    throw new EngineError({ text: 'The server ended before it had answered.' });
  }
}

// WorkerEngine keeps one worker. Go in a worker does not see messages while it computes, so cancelling ends the worker
// and starts another from the same compiled module.
class WorkerEngine {
  constructor(module, script) { this.module = module; this.script = script; this.number = 0; this.queue = Promise.resolve(); }

  static async load() {
    const text = $('wasm').textContent.trim();
    const raw = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), c => c.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream('gzip'));
    const module = await WebAssembly.compile(await new Response(stream).arrayBuffer());
    return new WorkerEngine(module, $('worker').textContent);
  }

  worker() {
    if (!this.live) {
      this.live = new Worker(URL.createObjectURL(new Blob([this.script], { type: 'text/javascript' })));
      this.live.postMessage({ module: this.module });
    }
    return this.live;
  }

  ask(method, question, o = {}) {
    const turn = this.queue.then(() => this.now(method, question, o));
    this.queue = turn.catch(() => {});
    return turn;
  }

  now(method, question, { progress, signal }) {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(new DOMException('cancelled', 'AbortError'));
      const w = this.worker(), id = ++this.number;
      const stop = () => { w.terminate(); this.live = null; reject(new DOMException('cancelled', 'AbortError')); };
      signal?.addEventListener('abort', stop, { once: true });
      w.onmessage = e => {
        if (e.data.id !== id) return;
        if (e.data.progress) { progress?.(JSON.parse(e.data.progress)); return; }
        signal?.removeEventListener('abort', stop);
        if (e.data.error) reject(new EngineError(JSON.parse(e.data.error))); else resolve(JSON.parse(e.data.result));
      };
      w.onerror = e => { this.live = null; reject(new EngineError({ text: 'The engine stopped: ' + e.message })); };
      w.postMessage({ id, method, body: JSON.stringify(question ?? {}) });
    });
  }
}
