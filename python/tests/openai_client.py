"""The official openai client against a server: python openai_client.py http://127.0.0.1:7070/v1 [MODEL]

Prints one line per check and exits with 1 if one fails. The requests that it sends are those that
move/infer/testdata/openai-requests.json holds for tests on machines without the package.
"""

import sys

import openai


def main(base, model):
    client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
    done = []

    def check(name, ok, what):
        done.append(ok)
        print(f"{'ok  ' if ok else 'FAIL'} {name}: {what}")

    def refused(name, kind, param, code, call):
        try:
            check(name, False, call())
        except openai.APIError as e:
            check(name, isinstance(e, kind) and e.param == param and e.code == code, f"{type(e).__name__} {e.param} {e.code}: {e.body['message']}")

    ids = [m.id for m in client.models.list()]
    check("models", ids == [model], ids)
    check("model", client.models.retrieve(model).id == model, model)

    whole = client.completions.create(model=model, prompt="The quick brown fox", max_tokens=12, temperature=0)
    text, usage = whole.choices[0].text, whole.usage
    check("completion", whole.object == "text_completion" and whole.choices[0].finish_reason == "length", repr(text))
    check("usage", (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (19, 12, 31), usage)

    parts = list(client.completions.create(model=model, prompt="The quick brown fox", max_tokens=12, temperature=0, stream=True,
                                           stream_options={"include_usage": True}))
    check("stream", "".join(c.choices[0].text for c in parts if c.choices) == text, f"{len(parts)} events")
    check("stream usage", parts[-1].choices == [] and parts[-1].usage.total_tokens == 31 and all(c.usage is None for c in parts[:-1]), parts[-1].usage)
    check("stream end", [c.choices[0].finish_reason for c in parts if c.choices][-1] == "length", "length")

    stop = text[4:6]
    cut = client.completions.create(model=model, prompt="The quick brown fox", max_tokens=12, temperature=0, stop=[stop])
    check("stop", cut.choices[0].text == text[:text.index(stop)] and cut.choices[0].finish_reason == "stop", repr(cut.choices[0].text))

    def draw(seed):
        r = client.completions.create(model=model, prompt=["one", "two"], n=2, max_tokens=8, seed=seed)
        return [c.text for c in sorted(r.choices, key=lambda c: c.index)]
    a, b, c = draw(1), draw(1), draw(2)
    check("seed", a == b and a != c and len(set(a)) == 4, a)

    chat = client.chat.completions.create(model=model, messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
                                          max_completion_tokens=10, temperature=0)
    said = chat.choices[0].message
    check("chat", chat.object == "chat.completion" and said.role == "assistant", repr(said.content))
    parts = list(client.chat.completions.create(model=model, messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
                                                max_completion_tokens=10, temperature=0, stream=True))
    check("chat stream", parts[0].choices[0].delta.role == "assistant" and "".join(p.choices[0].delta.content or "" for p in parts) == said.content,
          f"{len(parts)} events")
    parted = client.chat.completions.create(model=model, temperature=0, max_tokens=3, logprobs=True, top_logprobs=2,
                                            messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])
    scores = parted.choices[0].logprobs.content
    check("chat logprobs", len(scores) == 3 and all(len(s.top_logprobs) == 2 and s.logprob == s.top_logprobs[0].logprob for s in scores), scores[0].token)
    scores = client.completions.create(model=model, prompt=[72, 105], max_tokens=4, temperature=0, logprobs=3).choices[0].logprobs
    check("logprobs", len(scores.tokens) == 4 and len(scores.top_logprobs[0]) == 3, scores.token_logprobs)

    refused("no such model", openai.NotFoundError, "model", "model_not_found", lambda: client.completions.create(model="gpt-9", prompt="x"))
    refused("too long", openai.BadRequestError, "prompt", "context_length_exceeded", lambda: client.completions.create(model=model, prompt="x" * 100000))
    refused("bad temperature", openai.BadRequestError, "temperature", None, lambda: client.completions.create(model=model, prompt="x", temperature=9))
    refused("tools", openai.BadRequestError, "tools", "unsupported_parameter", lambda: client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "x"}], tools=[{"type": "function", "function": {"name": "f"}}]))
    refused("no embeddings", openai.NotFoundError, None, "unknown_url", lambda: client.embeddings.create(model=model, input="x"))
    print(f"{sum(done)} of {len(done)} checks passed, openai {openai.__version__}")
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "weft-gpt"))
