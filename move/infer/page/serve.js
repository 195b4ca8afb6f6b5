"use strict";
// Draws what /api/serve says, twice a second.
const ms = (ns) => (ns ? (ns / 1e6).toFixed(ns < 1e7 ? 2 : 0) + " ms" : "");
const cell = (row, text, kind) => { const c = row.insertCell(); c.textContent = text; if (kind) c.className = kind; };
function table(id, heads, rows) {
  const t = document.getElementById(id);
  t.replaceChildren();
  const head = t.createTHead().insertRow();
  for (const h of heads) { const th = document.createElement("th"); th.textContent = h; head.append(th); }
  const body = t.createTBody();
  for (const cells of rows) { const r = body.insertRow(); for (const c of cells) Array.isArray(c) ? cell(r, c[0], c[1]) : cell(r, c); }
}
function draw(s) {
  const c = s.model.config;
  document.getElementById("model").textContent = `GPT of ${c.Layers} layers of width ${c.Width}, context ${c.Context}; ${s.asked} requests so far`;
  table("times", ["cache comes", "requests", "first token after, p50", "first token after, p99", "between tokens, p50", "between tokens, p99"],
    (s.ttft || []).map((x, i) => [x.mode, x.count, ms(x.p50_ns), ms(x.p99_ns), ms(s.tpot[i].p50_ns), ms(s.tpot[i].p99_ns)]));
  table("workers", ["worker", "role", "pid", "state", "requests now", "requests done", "restarts", "why it was restarted"],
    s.workers.map((w) => [w.name, w.role, w.pid, !w.live ? ["gone", "off"] : w.silent ? ["silent", "off"] : "live", w.requests, w.done, w.restarts, (w.last || "").slice(0, 60)]));
  table("requests", ["request", "state", "cache comes", "prompt tokens", "answer tokens", "first token after", "between tokens", "prompt computed in", "transfer left then", "blocks from the cache", "path", "workers", "tries", "error"],
    s.requests.slice(0, 15).map((r) => [r.id, r.error ? ["failed", "off"] : r.state, r.mode + (r.recomputed ? ", recomputed" : ""), r.prompt_tokens, r.tokens, ms(r.ttft_ns), ms(r.tpot_ns),
      ms(r.prefill_ns), ms(r.exposed_ns), r.shared_blocks ? r.shared_blocks + " of " + r.blocks.length : "", r.path || "", [r.prefill_worker, r.decode_worker].filter(Boolean).join(" to "), r.attempts, r.error || ""]));
  const k = s.cache;
  document.getElementById("cache").textContent = !k ? "" : k.error ? `The cache service at ${k.address} does not answer: ${k.error}` :
    `The cache service at ${k.address} has ${k.blocks} of ${k.room} blocks in memory; ${k.found} of ${k.asked} blocks asked for were there, ${k.stored} were stored. Blocks with a frame came from it.`;
  const colour = new Map(s.workers.map((w, i) => [w.name, "w" + (i % 8)]));
  const blocks = document.getElementById("blocks");
  blocks.replaceChildren();
  for (const r of s.requests.slice(0, 8)) {
    const line = document.createElement("div");
    line.className = "request";
    const name = document.createElement("b");
    name.textContent = `request ${r.id}: ${r.where}`;
    const all = document.createElement("div");
    line.append(name, all);
    for (const [i, h] of r.blocks.entries()) {
      const b = document.createElement("span");
      b.className = "block " + (colour.get(r.where) || "") + (i < r.shared_blocks ? " shared" : "");
      b.textContent = h;
      all.append(b);
    }
    blocks.append(line);
  }
}
async function poll() {
  try {
    const a = await fetch("api/serve");
    if (a.ok) draw(await a.json());
  } catch (e) {
    document.getElementById("model").textContent = "the run has ended, or cannot be reached";
  }
  setTimeout(poll, 500);
}
poll();
