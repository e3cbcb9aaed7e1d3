// The engines: their pages, their batches and what waits for them.
import { html } from "./vendor/preact-htm.js";
import { Steps } from "./timeline.js";

function Line({ values }) {
  // tokens a second over the last two minutes
  const most = Math.max(1, ...values);
  const points = values.map((v, i) => `${(i * 240) / 119},${40 - (v * 38) / most}`).join(" ");
  return html`<svg class="line" viewBox="0 0 240 40" role="img" aria-label=${`Tokens a second, at most ${most.toFixed(0)}`}>
    <polyline points=${points} />
  </svg>`;
}

function Pages({ pool }) {
  const share = (n) => (pool.total ? (n * 100) / pool.total : 0);
  const told = `${pool.held} pages held, ${pool.cached} cached, ${pool.free} free`;
  return html`<svg class="pages" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label=${told}>
      <rect class="free" width="100" height="6" />
      <rect class="held" width=${share(pool.held)} height="6" />
      <rect class="cached" x=${share(pool.held)} width=${share(pool.cached)} height="6" />
    </svg>
    <p>${told}</p>`;
}

export function Engines({ live }) {
  const engines = [...live.engines.values()];
  return html`<section aria-labelledby="engines">
    <h2 id="engines">Engines <span class="count">${live.known ? engines.length : "connecting"}</span></h2>
    <${Line} values=${live.rates} />
    ${!live.known
      ? null
      : engines.length === 0
      ? html`<p class="empty">No engine is connected. Programs wait until one is.</p>`
      : html`<ul class="engines">
          ${engines.map(
            (e) => html`<li key=${e.id}>
              <h3>${e.id} <span class=${`state ${e.state}`}>${e.state}</span></h3>
              <p>${e.model} on ${e.device}, ${e.dtype}${e.pool ? `, pool ${e.pool}` : ""}</p>
              ${e.pools.pages || e.pools.kv_pages || Object.values(e.pools)[0]
                ? html`<${Pages} pool=${e.pools.pages || e.pools.kv_pages || Object.values(e.pools)[0]} />`
                : null}
              <${Steps} steps=${live.steps.get(e.id) ?? []} />
              <dl>
                <dt>Programs</dt><dd>${e.programs}</dd>
                <dt>Tokens a second</dt><dd>${e.tokens_per_s}</dd>
                <dt>Steps</dt><dd>${e.steps}, ${e.in_flight} in flight</dd>
                <dt>Waiting</dt><dd>${e.queues_waiting} queues, ${e.waiting_s.toFixed(2)} s of work</dd>
                <dt>Order</dt><dd>${e.order}</dd>
              </dl>
            </li>`,
          )}
        </ul>`}
  </section>`;
}
