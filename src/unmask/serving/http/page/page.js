// The page: a form, a draw that is watched, and marks on its tokens.
"use strict";

const $ = (id) => document.getElementById(id);
const BLANK = /(^|[^\\])(\[\d{1,9}(-\d{1,9})?\]|_{3,})/; // as templates are written

let player = null;
let base = null; // the tokens that the shown draw began with; null when it began with the form's text
let whole = null; // the pattern of all of its text, when it began with tokens
let running = null; // the AbortController of a draw under way
let marks = []; // of each candidate: place -> "lock" or "mask"

// ---- the form

async function load() {
  const response = await fetch("v1/models", { headers: $("key").value ? { Authorization: `Bearer ${$("key").value}` } : {} });
  if (!response.ok) throw await refusal(response);
  card = (await response.json()).data[0];
  $("model").textContent = `${card.id} · ${card.parameters.toLocaleString("en")} parameters · up to ${card.max_tokens} tokens`;
  $("length").value = Math.min(64, Math.floor(card.max_tokens / 2));
  await describe();
  $("sampler").replaceChildren(new Option("default", ""), ...card.samplers.map(({ name }) => new Option(name)));
  examples(draw);
  $("talks").hidden = !card.talks;
  $("conversing").checked = card.talks && location.hash.length < 2;
  showTalk();
  refresh();
}

const number = (id) => ($(id).value === "" ? null : Number($(id).value));

const settings = () => ({ ...chosen(), stream: true, events: "steps", draft: $("draft").checked });

// The address and the body of a draw: of the form's text, or of tokens with blanks.
function request(tokens) {
  const { stop, ...asked } = settings(), text = $("text").value;
  if (!tokens && talk.on()) return answerRequest(text, { stop, ...asked });
  if (tokens) return ["v1/infill", { tokens, ...asked, ...(whole && { pattern: whole, whole: true }) }];
  if (BLANK.test(text)) return ["v1/infill", { text, ...asked }];
  return ["v1/completions", { prompt: text, max_tokens: number("length") ?? 16, ...asked, ...(stop && { stop }) }];
}

// ---- a draw

async function draw(tokens = null, before = null, pattern = null) {
  running?.abort();
  const mine = running = new AbortController();
  complain(null);
  busy(true);
  base = tokens;
  whole = pattern;
  const recording = { candidates: [], steps: [], law: "", done: false };
  try {
    const [path, body] = request(tokens);
    for await (const [name, said] of events(path, body, { key: $("key").value, signal: mine.signal })) {
      if (name === "begin") begin(recording, said, before);
      if (name === "step") step(recording, said);
      if (name === "end") finish(recording, said);
      if (name === "end" && path === "v1/chat/completions") answered(body.messages.at(-1).content, said.choices[0].text);
    }
  } catch (error) {
    if (error.name !== "AbortError") complain(error);
  } finally {
    if (running === mine) { running = null; busy(false); }
    recording.done = true;
    if (player?.recording === recording) player.run();
  }
}

// `before` holds the tokens that are kept from an earlier draw: they stay what they were, drawn or given.
function begin(recording, said, before) {
  recording.candidates = said.candidates.map((row) => row.map((token, place) => {
    const kept = before?.[place];
    if (token.id !== null && kept) return { ...kept, call: 0, past: [] };
    return { ...token, call: token.id === null ? null : 0, past: [] };
  }));
  recording.remasks = said.sampler.startsWith("remask-");
  recording.law = said.law;
  recording.seed = said.seed;
  marks = recording.candidates.map((row) => row.map((token, place) => (before?.[place]?.lock && token.id !== null ? "lock" : "")));
  $("empty").hidden = true;
  player = new Player($("stage"), recording, live);
  $("tools").hidden = false;
  if ($("stage").getBoundingClientRect().top > innerHeight - 100) $("stage").scrollIntoView(); // on a phone it is far below Go
}

function step(recording, { call, committed, draft, masked = [] }) {
  for (const { candidate, position, token, text, confidence } of committed) {
    const now = recording.candidates[candidate][position];
    if (now.call && now.id === token) { // the last pass of continuous diffusion commits every token once more
      Object.assign(now, { text, confidence });
      continue;
    }
    if (now.call) // replaced, as in continuous diffusion
      now.past.push({ text: now.text, confidence: now.confidence, given: false, call: now.call, until: call });
    Object.assign(now, { id: token, text, confidence, call });
  }
  for (const { candidate, position } of masked) { // what stood there is kept for the slider
    const token = recording.candidates[candidate][position], { text, confidence } = token;
    token.past.push({ text, confidence, given: false, call: token.call, until: call });
    Object.assign(token, { id: null, text: "", confidence: null, call: null });
  }
  const leans = draft && new Map(draft.map(({ candidate, position, text }) => [candidate + ":" + position, text]));
  recording.steps.push({ draft: leans });
}

// A character spread over several tokens is known only now.
function finish(recording, said) {
  recording.scores = said.choices.map(({ score }) => score ?? null);
  said.choices.forEach(({ tokens }, row) => tokens.forEach(({ text }, place) => { recording.candidates[row][place].text = text; }));
  recording.done = true;
}

function busy(yes) {
  $("halt").hidden = !yes;
  $("go").textContent = yes ? "Again" : talk.on() ? "Send" : "Go";
}

// What is wrong with the pattern is said beside it, everything else in one place; the field at fault is marked.
function complain(error) {
  const beside = error?.param === "pattern";
  for (const [id, mine] of [["error", error !== null && !beside], ["pattern-error", beside]]) {
    $(id).hidden = !mine;
    $(id).textContent = mine ? error.message : "";
    if (mine) $(id).scrollIntoView({ block: "nearest" });
  }
  for (const input of OPTIONS) {
    const wrong = error?.param === input.id;
    input.setAttribute("aria-invalid", wrong);
    if (wrong && $("more").contains(input)) $("more").open = true;
    if (wrong) input.focus();
  }
  if (error?.status === 401) { $("locked").hidden = false; $("key").focus(); }
}

// ---- marks on tokens: plain, locked, to be masked

const NEXT = { "": "lock", lock: "mask", mask: "" };

const live = {
  mark: (row, place) => marks[row]?.[place] ?? "",

  card(card, text, row) {
    const actions = document.createElement("div");
    actions.className = "actions";
    const again = element("button", "again", "Redraw");
    const copy = element("button", "", "Copy text");
    again.type = copy.type = "button";
    again.addEventListener("click", () => resample(row));
    copy.addEventListener("click", () => give(plain(row), "text copied"));
    actions.append(again, copy, element("span", "mean"));
    card.append(actions);
    text.addEventListener("click", (event) => turn(row, event.target));
    text.addEventListener("keydown", (event) => keys(row, event));
  },

  painted(shown) {
    const { candidates, done } = shown.recording;
    candidates.forEach((tokens, row) => {
      const masked = marks[row].filter((mark) => mark === "mask").length;
      const locked = marks[row].filter((mark) => mark === "lock").length;
      const again = shown.cards[row].querySelector(".again");
      const label = masked ? `Redraw ${masked} masked` : locked ? `Redraw all but ${locked} locked` : "Redraw";
      if (again.textContent !== label) again.textContent = label;
      again.disabled = !done || tokens.some(({ id }) => id === null);
      const drawn = tokens.map((_, place) => shown.look(row, place).token).filter((token) => (token?.confidence ?? null) !== null);
      const mean = drawn.reduce((sum, { confidence }) => sum + confidence, 0) / drawn.length;
      const score = candidates.length > 1 ? shown.recording.scores?.[row] ?? null : null; // compares candidates
      const said = [drawn.length && `${Math.round(100 * mean)} % sure on average`, score !== null && `score ${score.toFixed(2)}`];
      shown.cards[row].querySelector(".mean").textContent = said.filter(Boolean).join(" · ");
    });
  },
};

function turn(row, target, to) {
  const place = Number(target.closest(".token")?.dataset.place ?? NaN);
  const token = player.recording.candidates[row][place];
  if (!token || token.id === null) return;
  const next = NEXT[marks[row][place]];
  marks[row][place] = to ?? (token.given && next === "lock" ? "mask" : next); // what is given is locked already
  player.cell(row, place);
  live.painted(player);
}

function keys(row, event) {
  const span = event.target, place = Number(span.dataset.place);
  const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const mark = { l: "lock", m: "mask", Backspace: "mask", Delete: "mask", Escape: "" }[event.key];
  if (move) {
    const next = player.cells[row][place + move];
    if (next) { span.tabIndex = -1; next.tabIndex = 0; next.focus(); }
  } else if (event.key === "Enter" || event.key === " ") turn(row, span);
  else if (mark !== undefined) turn(row, span, mark);
  else return;
  event.preventDefault();
}

// Masked tokens are drawn again and the rest stays; with none masked, all that is neither given nor locked.
function resample(row) {
  const tokens = player.recording.candidates[row];
  const masked = marks[row].includes("mask");
  const again = tokens.map((token, place) => (masked ? marks[row][place] === "mask" : !token.given && marks[row][place] !== "lock"));
  if (!again.includes(true)) { complain(new Error("everything is given or locked: unlock a token, or mask one.")); return; }
  const before = tokens.map((token, place) => ({ ...token, lock: marks[row][place] === "lock" }));
  if (number("seed") !== null) $("seed").value = number("seed") + 1; // the same seed would draw the same again
  const pattern = $("pattern").value && wholePattern($("pattern").value, tokens, again);
  draw(tokens.map(({ id }, place) => (again[place] ? null : id)), before, pattern);
}

// ---- wiring

$("ask").addEventListener("submit", (event) => { event.preventDefault(); if (card) draw(); else start(); });
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); $("ask").requestSubmit(); }
});
for (const id of ["sampler", "plain"]) $(id).addEventListener("change", refresh);
$("more").addEventListener("input", count);
$("reset").addEventListener("click", () => setForm({ sampler: "", seed: $("seed").value, n: $("n").value }));
$("halt").addEventListener("click", () => running?.abort());
wireTalk();
$("link").addEventListener("click", link);
$("save").addEventListener("click", save);

async function start() {
  try {
    await load();
    complain(null);
  } catch (error) { complain(error); return; }
  let told = null;
  try { told = location.hash.length > 1 ? unpacked(location.hash.slice(1)) : null; } catch { complain(new Error("this link is damaged.")); }
  if (!told) { if (!$("text").value && !talk.on()) $("text").value = EXAMPLES[0][1].text; return; }
  setForm(told);
  draw(Array.isArray(told.tokens) ? told.tokens : null, null, typeof told.whole === "string" ? told.whole : null);
}

start();
