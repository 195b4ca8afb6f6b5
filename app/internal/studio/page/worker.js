// Behind wasm_exec.js, in a worker: starts the engine and passes questions on to it.
'use strict';
let ready;
const started = new Promise(r => { ready = r; });
onmessage = async e => {
  if (e.data.module) {
    const go = new Go();
    const instance = await WebAssembly.instantiate(e.data.module, go.importObject);
    go.run(instance);
    ready();
    return;
  }
  await started;
  weftStudio(e.data.id, e.data.method, e.data.body);
};
