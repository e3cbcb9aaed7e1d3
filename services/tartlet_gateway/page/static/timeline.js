// Bars over time: an engine's steps, and a program's calls by queue.
import { html } from "./vendor/preact-htm.js";

const WIDTH = 600;
const LANE = 14;

function Bars({ lanes, from, to, label }) {
  // `lanes`: for each lane its bars, each with begin, end (seconds) and kind. One path a kind: thousands of bars are cheap
  const x = (s) => Math.max(0, ((s - from) * WIDTH) / (to - from));
  const paths = {};
  lanes.forEach((bars, lane) => {
    for (const bar of bars) {
      if (bar.end < from) continue;
      const left = x(bar.begin);
      const width = Math.max(0.5, x(bar.end) - left).toFixed(2);
      paths[bar.kind] = `${paths[bar.kind] ?? ""}M${left.toFixed(2)} ${lane * LANE + 2}h${width}v${LANE - 4}h-${width}z`;
    }
  });
  const height = Math.max(1, lanes.length) * LANE;
  return html`<svg class="bars" viewBox=${`0 0 ${WIDTH} ${height}`} preserveAspectRatio="none" role="img" aria-label=${label}>
    ${Object.entries(paths).map(([kind, d]) => html`<path class=${kind} d=${d} />`)}
  </svg>`;
}

const STEPS_S = 5;

export function Steps({ steps }) {
  // `steps`: [number, sent, answered, device seconds, tokens, commands, programs], in order
  if (!steps.length) return html`<p>No step since this page is open.</p>`;
  const to = steps[steps.length - 1][2];
  const from = to - STEPS_S;
  const shown = steps.filter((step) => step[2] >= from);
  const lanes = [[], []]; // two steps may be in flight
  let device = 0;
  let tokens = 0;
  for (const [number, sent, answered, device_s, of_step, commands] of shown) {
    const kind = of_step > commands ? "prefill" : "decode";
    lanes[number % 2].push({ begin: sent, end: answered - device_s, kind: "waits" });
    lanes[number % 2].push({ begin: answered - device_s, end: answered, kind });
    device += device_s;
    tokens += of_step;
  }
  const busy = Math.min(100, (device * 100) / Math.max(0.001, to - Math.max(from, shown[0][1])));
  const told = `${shown.length} steps, ${(tokens / shown.length).toFixed(1)} tokens each, device busy ${busy.toFixed(0)}%`;
  return html`<${Bars} lanes=${lanes} from=${from} to=${to} label=${`Steps of ${STEPS_S} s: ${told}`} />
    <p>${told}, in the ${STEPS_S} s up to the last one</p>`;
}

const LATEST = 8;
const LEGEND = { waits: "waits", prefill: "several tokens", decode: "one token", other: "no token" };

function Swatch({ kind }) {
  return html`<svg class="bars swatch" viewBox="0 0 10 10" aria-hidden="true"><path class=${kind} d="M1 1h8v8h-8z" /></svg>`;
}

export function Calls({ calls }) {
  // `calls`: as the trace of a program has them, in order
  if (!calls.length) return html`<p>No call since this panel is open.</p>`;
  const to = calls[calls.length - 1].answered_s;
  const from = Math.min(to - 0.05, Math.max(calls[0].arrived_s, to - STEPS_S));
  const queues = [...new Set(calls.map((call) => call.queue))].sort((a, b) => a - b);
  const lanes = queues.map((queue) =>
    calls
      .filter((call) => call.queue === queue)
      .flatMap((call) => [
        { begin: call.arrived_s, end: call.sent_s, kind: "waits" },
        { begin: call.sent_s, end: call.answered_s, kind: call.tokens > 1 ? "prefill" : call.tokens ? "decode" : "other" },
      ]),
  );
  const ms = (s) => `${(s * 1000).toFixed(1)} ms`;
  return html`<${Bars} lanes=${lanes} from=${from} to=${to} label=${`Calls of ${queues.length} queues over ${(to - from).toFixed(1)} s`} />
    <p class="hint">One lane a queue. ${Object.entries(LEGEND).map(([kind, text]) => html`<${Swatch} kind=${kind} /> ${text} `)}</p>
    <div class="wide" tabindex="0" role="region" aria-label="Latest calls"><table>
      <thead><tr><th scope="col">At</th><th scope="col">Call</th><th scope="col">Queue</th><th scope="col">Tokens</th>
        <th scope="col">Waited</th><th scope="col">Answered in</th><th scope="col">Step</th></tr></thead>
      <tbody>${calls.slice(-LATEST).reverse().map(
        (call) => html`<tr><td>${call.sent_s.toFixed(2)} s</td><td>${call.call}</td><td>${call.queue}</td>
          <td>${call.tokens}</td><td>${ms(call.sent_s - call.arrived_s)}</td><td>${ms(call.answered_s - call.sent_s)}</td>
          <td>${call.step % 2 ** 32} of ${call.engine}</td></tr>`,
      )}</tbody>
    </table></div>`;
}
