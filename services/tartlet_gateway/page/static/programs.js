// The programs that run: a table of which only the visible rows are in the document, and one program's details.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { call, events } from "./api.js";
import { Journal } from "./journal.js";
import { Calls } from "./timeline.js";

const ROW = 32;
const SHOWN = 40;
const KEPT = 20000;
const COLUMNS = ["Name", "State", "Model", "Tokens", "Pages", "Age", "Waited / served"];

function seconds(value) {
  if (value < 60) return `${value.toFixed(1)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
}

function ageOf(program) {
  return (performance.now() - program.started) / 1000;
}

function cells(p) {
  const name = p.name || p.id.slice(0, 8);
  const served = `${p.waited_s.toFixed(2)} / ${p.service_s.toFixed(2)} s`;
  return [name, p.state, p.model || "–", `${p.sampled_tokens}`, `${p.pages}`, seconds(ageOf(p)), served];
}

export function Programs({ live }) {
  const [top, setTop] = useState(0);
  const [chosen, choose] = useState(location.hash.split("/")[1] ?? "");
  const setChosen = (id) => {
    choose(id);
    history.replaceState(null, "", id ? `#programs/${id}` : "#programs"); // a link to the program, its end included
  };
  const [focus, setFocus] = useState(0);
  const body = useRef(null);
  const rows = useMemo(
    () => [...live.programs.values()].sort((a, b) => b.started - a.started).map((program) => program.id),
    [live.members], // not for each change: a thousand programs change four times a second
  );
  const first = Math.max(0, Math.min(Math.floor(top / ROW) - 4, rows.length - SHOWN));
  const visible = rows.slice(first, first + SHOWN).map((id) => live.programs.get(id));
  const at = Math.min(focus, Math.max(0, rows.length - 1));

  const move = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -rows.length, End: rows.length }[event.key];
    if (event.key === "Enter" && rows[at]) setChosen(rows[at]);
    if (step === undefined) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(rows.length - 1, at + step));
    setFocus(next);
    const box = body.current;
    if (next * ROW < box.scrollTop) box.scrollTop = next * ROW;
    if ((next + 1) * ROW > box.scrollTop + box.clientHeight) box.scrollTop = (next + 1) * ROW - box.clientHeight;
  };

  const more = live.totals.programs_left_out;
  const count = live.known ? `${live.totals.programs ?? 0} running` : "connecting";
  return html`
    <section aria-labelledby="programs">
      <h2 id="programs">Programs <span class="count">${count}</span></h2>
      ${more ? html`<p>${more} older programs run too, and aren't listed.</p>` : null}
      ${!live.known
        ? null
        : rows.length === 0
        ? html`<p class="empty">No program runs. Start one in the <a href="#playground">playground</a>, or with
            <code> tartlet run</code>.</p>`
        : html`<div class="grid" role="grid" aria-label="Running programs" aria-rowcount=${rows.length + 1}
            aria-colcount=${COLUMNS.length}>
            <div role="rowgroup"><div class="row head" role="row" aria-rowindex="1">
              ${COLUMNS.map((name) => html`<span role="columnheader">${name}</span>`)}
            </div></div>
            <div class="body" role="rowgroup" tabindex="0" ref=${body} onKeyDown=${move}
              aria-label="Rows: arrow keys move, Enter shows a program"
              onScroll=${(e) => setTop(e.target.scrollTop)}>
              <svg role="presentation" aria-hidden="true" width="1" height=${rows.length * ROW}></svg>
              ${visible.map((p, i) => html`<${Row} key=${p.id} program=${p} index=${first + i}
                focused=${first + i === at} chosen=${p.id === chosen}
                choose=${() => { setFocus(first + i); setChosen(p.id); }} />`)}
            </div>
          </div>`}
      ${chosen ? html`<${Program} id=${chosen} program=${live.programs.get(chosen)} key=${chosen}
        close=${() => setChosen("")} />` : null}
    </section>
  `;
}

function Row({ program, index, focused, chosen, choose }) {
  const line = useRef(null);
  useEffect(() => {
    line.current.style.transform = `translateY(${index * ROW}px)`; // through the object model, which the policy allows
  }, [index]);
  return html`<div ref=${line} role="row" aria-rowindex=${index + 2} aria-selected=${chosen ? "true" : "false"}
    class=${`row${focused ? " focused" : ""}${chosen ? " chosen" : ""}`} onClick=${choose}>
    ${cells(program).map((text, at) => html`<span role="gridcell" class=${at === 1 ? `state ${text}` : ""}>${text}</span>`)}
  </div>`;
}

const CALLS = 400;

function Trace({ id }) {
  const [calls, setCalls] = useState([]);
  const [trace, setTrace] = useState("");
  const [told, setTold] = useState("");
  useEffect(() => {
    const over = new AbortController();
    (async () => {
      try {
        for await (const event of events(await call("GET", `/v1/programs/${id}/trace`, undefined, over.signal))) {
          if (event.type === "trace") setTrace(event.trace_id);
          else if (event.type === "calls") setCalls((known) => [...known, ...event.calls].slice(-CALLS));
          else setTold(event.error.message);
        }
      } catch (e) {
        if (!over.signal.aborted) setTold(e.message);
      }
    })();
    return () => over.abort();
  }, [id]);
  const shown = useMemo(() => html`<${Calls} calls=${calls} />`, [calls]); // output comes far more often than calls do
  return html`<h4>Calls</h4>
    ${trace ? html`<p>Trace ${trace}</p>` : null}
    ${told ? html`<p role="status" class="told">${told}</p>` : shown}`;
}

function Program({ id, program, close }) {
  const [output, setOutput] = useState("");
  const [told, setTold] = useState("");
  const [message, setMessage] = useState("");
  const [journal, setJournal] = useState(false);

  useEffect(() => {
    const over = new AbortController();
    (async () => {
      try {
        for await (const event of events(await call("GET", `/v1/programs/${id}/events`, undefined, over.signal))) {
          if (event.type === "ended") {
            setTold(event.error ? event.error.message : "The program has ended well.");
            return;
          }
          setOutput((text) => (text + (event.text ?? "(bytes)") + (event.type === "message" ? "\n" : "")).slice(-KEPT));
        }
      } catch (e) {
        if (!over.signal.aborted) setTold(e.message);
      }
    })();
    return () => over.abort();
  }, [id]);

  const act = async (work) => {
    try {
      await work();
    } catch (e) {
      setTold(e.message);
    }
  };
  const send = (event) => {
    event.preventDefault();
    act(async () => {
      await call("POST", `/v1/programs/${id}/messages`, { text: message });
      setMessage("");
    });
  };
  return html`<section class="detail" aria-labelledby="detail">
    <h3 id="detail">${program?.name || id}</h3>
    <button type="button" class="close" onClick=${close}>Close</button>
    ${program
      ? html`<dl>
          <dt>Id</dt><dd>${id}</dd>
          <dt>State</dt><dd>${program.state}${program.recovered_s ? `, stood still for ${program.recovered_s} s` : ""}</dd>
          <dt>Engines</dt><dd>${program.engines.join(", ") || "none"}</dd>
          <dt>Tokens</dt><dd>${program.input_tokens} in, ${program.sampled_tokens} out, ${program.cached_tokens} cached</dd>
          <dt>Pages</dt><dd>${program.pages}, at most ${program.peak_pages}</dd>
          <dt>Queues</dt><dd>${Object.entries(program.queues).map(([q, n]) => `${q}: ${n} waiting`).join(", ") || "none"}</dd>
          <dt>Commands</dt><dd>${program.commands}, ${program.in_flight} in flight</dd>
        </dl>`
      : html`<p>This program doesn't run any more.</p>`}
    ${program ? html`<${Trace} id=${id} key=${id} />` : null}
    ${told ? html`<p role="status" class="told">${told}</p>` : null}
    <pre role="log" tabindex="0" aria-label="Output">${output}</pre>
    <h4>Journal <button type="button" aria-expanded=${journal ? "true" : "false"}
      onClick=${() => setJournal(!journal)}>${journal ? "Hide the journal" : "Show the journal"}</button></h4>
    ${journal ? html`<${Journal} id=${id} state=${program?.state} key=${id} />` : null}
    ${program
      ? html`<form onSubmit=${send}>
          <label for="message">Message</label>
          <input id="message" value=${message} onInput=${(e) => setMessage(e.target.value)} />
          <button type="submit">Send</button>
          <button type="button" class="danger" onClick=${() => act(() => call("DELETE", `/v1/programs/${id}`))}>
            End the program
          </button>
        </form>`
      : null}
  </section>`;
}
