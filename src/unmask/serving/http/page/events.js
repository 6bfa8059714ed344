// Server-Sent Events of a POST: yields [name, data] until the stream ends. Errors carry the server's own words.
"use strict";

async function refusal(response) {
  let said = { message: `the server answered ${response.status}.` };
  try { said = (await response.json()).error; } catch { /* not JSON: the status must do */ }
  return Object.assign(new Error(said.message), { status: response.status, param: said.param });
}

async function* events(path, body, { key, signal }) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) throw await refusal(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n");
      const field = (name) => lines.filter((line) => line.startsWith(name)).map((line) => line.slice(name.length)).join("\n");
      const data = field("data: ");
      if (!data) continue; // a comment, which keeps the connection open
      if (data === "[DONE]") return;
      const name = field("event: "), said = JSON.parse(data);
      if (name === "error") throw new Error(said.error.message);
      yield [name, said];
    }
  }
}
