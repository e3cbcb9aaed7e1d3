// Requests to the gateway's API, with the key that the user gave. The key lives as long as the tab.
const NAME = "tartlet.key";

export function key() {
  return sessionStorage.getItem(NAME) || "";
}

export function setKey(text) {
  sessionStorage.setItem(NAME, text);
}

export async function call(method, path, body, signal) {
  const headers = key() ? { authorization: `Bearer ${key()}` } : {};
  if (body !== undefined) headers["content-type"] = "application/json";
  const reply = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal });
  if (!reply.ok) {
    const told = await reply.json().catch(() => ({}));
    throw new Error(told.error?.message || `The gateway answered with status ${reply.status}.`);
  }
  return reply;
}

export async function* events(reply) {
  // server-sent events of a reply, as objects
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    for (let at = text.indexOf("\n\n"); at >= 0; at = text.indexOf("\n\n")) {
      const lines = text.slice(0, at).split("\n");
      text = text.slice(at + 2);
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (data.length) yield JSON.parse(data.join("\n"));
    }
  }
}
