// Passing a draw on: its text, a link that draws it again, a page that plays by itself.
"use strict";

const plain = (row) => player.recording.candidates[row].map(({ text }) => text).join("");

async function give(text, said) {
  try { await navigator.clipboard.writeText(text); $("told").textContent = said; }
  catch { prompt("Copy:", text); }
}

const packed = (value) => btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(value)))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const unpacked = (text) => JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0))));

// Everything stays behind the #, which browsers do not send; the seed makes the draw the same for whoever opens it.
function link() {
  const hash = "#" + packed({ ...formState(), seed: String(player.recording.seed), tokens: base, whole });
  history.replaceState(null, "", hash);
  give(location.href, "link copied");
}

async function save() {
  const [style, code] = await Promise.all(["page/style.css", "page/player.js"].map(async (path) => (await fetch(path)).text()));
  const { candidates, steps, law, remasks } = player.recording;
  const kept = { candidates, law, remasks, done: true, steps: steps.map(({ draft }) => ({ draft: draft && [...draft] })) };
  const data = JSON.stringify(kept).replaceAll("<", "\\u003c");
  const end = "</" + "script>";
  const page = `<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>text out of masks</title><style>${style}</style><main id="stage"></main>
<script type="application/json" id="data">${data}${end}<script>${code}
const recording = JSON.parse(document.getElementById("data").textContent);
for (const step of recording.steps) if (step.draft) step.draft = new Map(step.draft);
new Player(document.getElementById("stage"), recording);${end}</html>`;
  const there = URL.createObjectURL(new Blob([page], { type: "text/html" }));
  Object.assign(document.createElement("a"), { href: there, download: "unmask.html" }).click();
  setTimeout(() => URL.revokeObjectURL(there), 1000);
}
