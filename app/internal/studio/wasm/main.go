//go:build js && wasm

// Program wasm is the engine of weft studio inside a page. A worker starts it and calls weftStudio(id, method, body); the
// answer comes back by postMessage: {id, progress}, then {id, result} or {id, error}, each of them JSON text.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"syscall/js"
	"time"

	"github.com/weft-fabric/weft/app/internal/studio/engine"
)

func main() {
	limits := engine.Default()
	limits.Time = 10 * time.Minute // the page's reader cancels by ending the worker
	e := engine.New(limits)
	post := js.Global().Get("postMessage")
	send := func(id js.Value, key string, v any) {
		text, err := json.Marshal(v)
		if err != nil {
			key, text = "error", []byte(`{"text":"the answer cannot be written"}`)
		}
		message := js.Global().Get("Object").New()
		message.Set("id", id)
		message.Set(key, string(text))
		post.Invoke(message)
	}
	js.Global().Set("weftStudio", js.FuncOf(func(_ js.Value, args []js.Value) any {
		id, method, body := args[0], args[1].String(), args[2].String()
		go func() {
			got, err := e.Do(context.Background(), method, []byte(body), func(p engine.Progress) { send(id, "progress", p) })
			if p := (*engine.Problem)(nil); errors.As(err, &p) {
				send(id, "error", p)
			} else if err != nil {
				send(id, "error", engine.Problem{Text: err.Error()})
			} else {
				send(id, "result", got)
			}
		}()
		return nil
	}))
	js.Global().Call("postMessage", "ready")
	select {}
}
