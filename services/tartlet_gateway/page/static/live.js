// The state of engines and programs as the gateway tells it over one WebSocket, and who shows it.
import { key } from "./api.js";

const AGAIN_MS = 1000;
const MOST_STEPS = 1000;
const listeners = new Set();
let frame = 0;

export const state = {
  engines: new Map(),
  programs: new Map(),
  members: 0, // grows when programs come or go
  totals: {},
  known: false, // whether the gateway has told anything yet
  connection: "connecting", // connecting, live, control-away, gateway-away, key
  steps: new Map(), // the latest steps of each engine
  rates: [], // tokens a second, newest last
};

export function listen(call) {
  listeners.add(call);
  return () => listeners.delete(call);
}

export function changed() {
  // joined in one frame, however many messages came
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    for (const call of listeners) call();
  });
}

export function following(known, told) {
  // the steps that are known and then those told that are new; a control that began again counts from the start
  const last = known.length ? known[known.length - 1][0] : -1;
  if (told.length && told[told.length - 1][0] < last) return told;
  return [...known, ...told.filter((step) => step[0] > last)].slice(-MOST_STEPS);
}

export function apply(message) {
  if (message.whole) {
    state.engines.clear();
    state.programs.clear();
    state.members += 1;
  }
  for (const engine of message.engines) {
    state.engines.set(engine.id, engine);
    const known = state.steps.get(engine.id) ?? [];
    state.steps.set(engine.id, following(known, engine.recent_steps ?? []));
  }
  const now = performance.now();
  for (const program of message.programs) {
    const known = state.programs.get(program.id);
    program.started = known?.started ?? now - program.age_s * 1000;
    if (!known) state.members += 1;
    state.programs.set(program.id, program);
  }
  for (const id of message.engines_gone) {
    state.engines.delete(id);
    state.steps.delete(id);
  }
  for (const id of message.programs_gone) state.members += state.programs.delete(id) ? 1 : 0;
  state.totals = message.totals;
  state.known = true;
  state.connection = message.connected ? "live" : "control-away";
}

let socket = null;
let opened = false;

export function connect() {
  const url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/live`;
  const protocols = ["tartlet", ...(key() ? [`tartlet.key.${key()}`] : [])];
  opened = false;
  socket = new WebSocket(url, protocols);
  socket.onopen = () => {
    opened = true;
  };
  socket.onmessage = (event) => {
    apply(JSON.parse(event.data));
    changed();
  };
  socket.onclose = async () => {
    state.connection = opened ? "gateway-away" : await reason();
    changed();
    if (state.connection !== "key") setTimeout(connect, AGAIN_MS);
  };
}

async function reason() {
  // a browser doesn't tell a page why a handshake was refused, so ask with a plain request
  try {
    const reply = await fetch("/v1/models", { headers: key() ? { authorization: `Bearer ${key()}` } : {} });
    return reply.status === 401 ? "key" : "gateway-away";
  } catch {
    return "gateway-away";
  }
}

setInterval(() => {
  let rate = 0;
  for (const engine of state.engines.values()) rate += engine.tokens_per_s;
  state.rates.push(rate);
  if (state.rates.length > 120) state.rates.shift();
}, 1000);
