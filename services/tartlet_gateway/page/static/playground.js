// An editor for a program, a button that runs the program, and what the program says.
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { call, events } from "./api.js";

const FIRST = `from inferlet import Context


async def main(args: list[str]) -> None:
    async with Context() as ctx:
        ctx.fill(args[0] if args else "374+588=")
        async for piece in ctx.generate(max_tokens=32):
            print(piece, end="", flush=True)
`;
const KEPT = "tartlet.playground";
const MOST = 100000;

function lineOf(error) {
  // the last line of the program's own file in a traceback
  const lines = [...(error || "").matchAll(/playground\.py["']?,? line (\d+)|playground\.py:(\d+)/g)];
  const last = lines.at(-1);
  return last ? Number(last[1] || last[2]) : 0;
}

function told(error) {
  if (!error) return "";
  return error.tartlet?.fields?.traceback || error.message;
}

export function Playground() {
  const [source, setSource] = useState(sessionStorage.getItem(KEPT) || FIRST);
  const [args, setArgs] = useState("374+588=");
  const [models, setModels] = useState([]);
  const [model, setModel] = useState("");
  const [output, setOutput] = useState("");
  const [error, setError] = useState("");
  const [end, setEnd] = useState("");
  const [running, setRunning] = useState("");
  const numbers = useRef(null);

  useEffect(() => {
    call("GET", "/v1/models")
      .then((reply) => reply.json())
      .then((list) => setModels(list.data.map((m) => m.id).filter((id) => !id.includes("/"))))
      .catch((e) => setError(e.message));
  }, []);

  const edit = (text) => {
    setSource(text);
    sessionStorage.setItem(KEPT, text);
  };

  const run = async () => {
    setOutput("");
    setError("");
    setEnd("");
    setRunning("…");
    try {
      const given = args.trim() ? args.split("\n") : [];
      const body = { source, filename: "playground.py", args: given, model, stream: true, tied: true };
      for await (const event of events(await call("POST", "/v1/programs", body))) {
        if (event.type === "accepted") setRunning(event.id);
        else if (event.type === "ended") {
          setError(told(event.error));
          const usage = event.usage;
          setEnd(`${usage.sampled_tokens} tokens in ${usage.wall_s.toFixed(2)} s`);
          if (event.result) setOutput((text) => `${text}${event.result}`);
        } else if (event.type === "error") setError(told(event.error));
        else setOutput((text) => (text + (event.text ?? "(bytes)") + (event.type === "message" ? "\n" : "")).slice(-MOST));
      }
    } catch (e) {
      setError(e.message);
    } finally {
      setRunning("");
    }
  };

  const stop = () => call("DELETE", `/v1/programs/${running}`).catch((e) => setError(e.message));
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (!running) run();
    }
  };
  const wrong = lineOf(error);
  return html`<section class="playground" aria-labelledby="playground">
    <h2 id="playground">Playground</h2>
    <div class="editor">
      <pre class="numbers" aria-hidden="true" ref=${numbers}>${source.split("\n").map(
        (_, i) => html`<span class=${i + 1 === wrong ? "wrong" : ""}>${i + 1}${"\n"}</span>`,
      )}</pre>
      <textarea aria-label="Program, in Python" spellcheck="false" wrap="off" rows="16" value=${source}
        aria-invalid=${wrong ? "true" : "false"} onKeyDown=${keys} onInput=${(e) => edit(e.target.value)}
        onScroll=${(e) => { numbers.current.scrollTop = e.target.scrollTop; }}></textarea>
    </div>
    <div class="controls">
      <label for="args">Arguments, one a line</label>
      <textarea id="args" rows="2" value=${args} onInput=${(e) => setArgs(e.target.value)}></textarea>
      <label for="model">Model</label>
      <select id="model" value=${model} onChange=${(e) => setModel(e.target.value)}>
        <option value="">the default</option>
        ${models.map((name) => html`<option value=${name}>${name}</option>`)}
      </select>
      <button type="button" class="run" disabled=${!!running} onClick=${run}>Run</button>
      <button type="button" disabled=${running.length < 2} onClick=${stop}>Stop</button>
      <span class="hint">Ctrl-Enter runs</span>
    </div>
    ${error ? html`<div role="alert" class="error">
      ${wrong ? html`<p>Line ${wrong}: ${source.split("\n")[wrong - 1]?.trim()}</p>` : null}<pre tabindex="0">${error}</pre>
    </div>` : null}
    <pre class="output" role="log" tabindex="0" aria-label="Output">${output}</pre>
    <p role="status">${running ? "The program runs." : end}</p>
  </section>`;
}
