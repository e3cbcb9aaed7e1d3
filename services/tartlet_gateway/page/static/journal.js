// A recorded run, turn by turn: the calls that the program gave, and what it was told then.
import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { call } from "./api.js";

const COUNT = 25;

function Line({ what, detail, line, bytes, text }) {
  return html`<tr><td>${what}</td><td>${detail}</td><td title=${line}>${line?.split("/").pop() ?? ""}</td><td>${bytes} bytes</td>
    <td class="text">${text ?? ""}</td></tr>`;
}

function endOf(ended) {
  if (!ended) return "The program waits or computes here.";
  return `The program ended ${ended.success ? "well" : `in ${ended.error.name}`}. ${ended.text ?? ""}`;
}

function Turn({ turn, total, ended }) {
  const { calls, messages, told } = turn;
  const where = (call) => `${call.queue ? `queue ${call.queue}, ` : ""}ticket ${call.ticket}`;
  const last = turn.turn === total;
  return html`<tbody>
    <tr class="turn"><th scope="rowgroup" colspan="5">Turn ${turn.turn}${last ? "" : `, told at ${turn.at_s.toFixed(3)} s`}</th></tr>
    ${(calls ?? []).map((c) => html`<${Line} what=${c.call} detail=${where(c)} ...${{ line: c.line, bytes: c.bytes, text: c.text }} />`)}
    ${calls === null ? html`<tr><td colspan="5">The calls of this turn aren't known.</td></tr>` : null}
    ${turn.calls_left_out ? html`<tr><td colspan="5">${turn.calls_left_out} more calls</td></tr>` : null}
    ${messages.map((m) => html`<${Line} what="message from a client" detail=${`at ${m.at_s.toFixed(3)} s`}
      bytes=${m.bytes} text=${m.text} />`)}
    ${(told ?? []).map((a) => html`<${Line} what=${`told: ${a.event}${a.error ? ` ${a.error.name}` : ""}`}
      detail=${a.call ? `of ${a.call}, ticket ${a.ticket}` : ""} bytes=${a.bytes} text=${a.text} />`)}
    ${turn.told_left_out ? html`<tr><td colspan="5">${turn.told_left_out} more answers</td></tr>` : null}
    ${last ? html`<tr><td colspan="5">${endOf(ended)}</td></tr>` : null}
  </tbody>`;
}

export function Journal({ id, state }) {
  const [first, setFirst] = useState(1);
  const [texts, setTexts] = useState(false);
  const [again, setAgain] = useState(0);
  const [page, setPage] = useState(null);
  const [told, setTold] = useState("");
  const [reading, setReading] = useState(false);

  useEffect(() => {
    const over = new AbortController();
    (async () => {
      setReading(true);
      setTold("");
      try {
        const asked = `first=${first}&count=${COUNT}${texts ? "&texts=true" : ""}`;
        const reply = await call("GET", `/v1/programs/${id}/journal?${asked}`, undefined, over.signal);
        setPage(await reply.json());
      } catch (e) {
        if (over.signal.aborted) return;
        setPage(null);
        setTold(e.message);
      }
      if (!over.signal.aborted) setReading(false);
    })();
    return () => over.abort();
  }, [id, first, texts, again]);

  const to = page ? (page.next ?? page.total + 1) - 1 : 0;
  return html`<div class="controls">
      <button type="button" disabled=${reading || first === 1} onClick=${() => setFirst(Math.max(1, first - COUNT))}>Earlier turns</button>
      <button type="button" disabled=${reading || !page?.next} onClick=${() => setFirst(page.next)}>Later turns</button>
      <button type="button" disabled=${reading} onClick=${() => setAgain(again + 1)}>Read again</button>
      <label><input type="checkbox" checked=${texts} onChange=${(e) => setTexts(e.target.checked)} /> Show prompts and texts</label>
    </div>
    ${state === "recovering" ? html`<p class="told">The program is recovering: another runtime takes it up from this journal.</p>` : null}
    <p role="status">${reading ? "The journal is being read …" : told || (page ? `Turns ${first} to ${to} of ${page.total}` : "")}</p>
    ${page?.why_no_calls ? html`<p class="told">Calls are missing: ${page.why_no_calls}</p>` : null}
    ${page?.total === 1 ? html`<p class="empty">The program has been told nothing so far.</p>` : null}
    ${page ? html`<div class="wide tall" tabindex="0" role="region" aria-label="Turns of the journal"><table>
      <thead><tr><th scope="col">What</th><th scope="col">Which</th><th scope="col">Line</th><th scope="col">Size</th>
        <th scope="col">Text</th></tr></thead>
      ${page.turns.map((turn) => html`<${Turn} key=${turn.turn} turn=${turn} total=${page.total} ended=${page.ended} />`)}
    </table></div>` : null}`;
}
