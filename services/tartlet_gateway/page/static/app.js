// The page: its tabs, the state of the connection, and the dialog for a key.
import { html, render, useEffect, useState } from "./vendor/preact-htm.js";
import { setKey } from "./api.js";
import { connect, listen, state } from "./live.js";
import { Programs } from "./programs.js";
import { Engines } from "./engines.js";
import { Playground } from "./playground.js";

const TABS = { programs: Programs, engines: Engines, playground: Playground };
const SAID = {
  connecting: "Connecting …",
  live: "Live",
  "control-away": "Recovering: control is away, and this is what it last said. Programs go on when it is back.",
  "gateway-away": "The gateway doesn't answer. The page connects again by itself.",
  key: "A key is needed.",
};

export function useLive() {
  const [, again] = useState(0);
  useEffect(() => listen(() => again((n) => n + 1)), []);
  return state;
}

function tabOf() {
  const name = location.hash.slice(1).split("/")[0];
  return name in TABS ? name : "programs";
}

function KeyForm() {
  const [text, setText] = useState("");
  const submit = (event) => {
    event.preventDefault();
    setKey(text.trim());
    connect();
  };
  return html`<form class="key" onSubmit=${submit}>
    <label for="key">API key</label>
    <input id="key" type="password" autocomplete="off" value=${text} onInput=${(e) => setText(e.target.value)} />
    <button type="submit">Use this key</button>
    <p>\`tartlet keys create\` makes keys. This one stays in this tab.</p>
  </form>`;
}

function App() {
  const live = useLive();
  const [tab, setTab] = useState(tabOf());
  useEffect(() => {
    const moved = () => setTab(tabOf());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const Shown = TABS[tab];
  return html`
    <header>
      <h1>Tartlet</h1>
      <nav aria-label="Views">
        ${Object.keys(TABS).map(
          (name) => html`<a href=${`#${name}`} aria-current=${name === tab ? "page" : undefined}>${name}</a>`,
        )}
      </nav>
      <p class=${`connection ${live.connection}`} role="status">${SAID[live.connection]}</p>
    </header>
    <main>${live.connection === "key" ? html`<${KeyForm} />` : html`<${Shown} live=${live} />`}</main>
  `;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
connect();
