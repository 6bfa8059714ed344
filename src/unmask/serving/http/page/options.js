// The options of a draw: elements with `data-option`, each with the name of a field of the API as its id. What nobody has
// changed is empty and is not sent, so that the model's defaults hold; they are shown as placeholders.
"use strict";

const OPTIONS = [...document.querySelectorAll("[data-option]")];
const TEXTS = ["text", "sampler", "length"]; // other fields that a link keeps

let card = null; // what the server says about its model

// The values that hold where nothing is given.
function defaults() {
  if (!$("plain").checked) return card.defaults;
  return { sampler: card.samplers[0].name, steps: null, temperature: 1, top_p: 1, top_k: 0, no_repeat: 0 };
}

// Names, bounds and explanations as the API has them.
async function describe() {
  const known = (await (await fetch("openapi.json")).json()).components.schemas.CompletionRequest.properties;
  for (const input of OPTIONS) {
    const field = known[input.id], [kind = field] = (field.anyOf ?? []).filter(({ type }) => type !== "null");
    input.title = field.description ?? "";
    if (input.type !== "number") continue;
    input.min = kind.minimum ?? kind.exclusiveMinimum ?? "";
    input.max = kind.maximum ?? kind.exclusiveMaximum ?? "";
    input.step = kind.type === "integer" ? 1 : "any";
  }
  $("n").max = card.max_candidates;
  $("length").max = card.max_tokens;
  $("classifier_label").append(...card.labels.map((label) => new Option(label)));
  $("classifier_label").disabled = $("classifier_weight").disabled = $("classifier_exact").disabled = !card.labels.length;
}

// The sampler in force: its name, as the server lists it, and the fields that its line sets.
function inForce() {
  const [name, set = ""] = ($("sampler").value || defaults().sampler).split(":");
  return [card.samplers.find((one) => one.name === name), Object.fromEntries(set.split(",").filter(Boolean).map((part) => part.split("=")))];
}

// Show what holds: placeholders, and the fields of the sampler.
function refresh() {
  const usual = defaults(), [sampler, set] = inForce();
  $("sampler").options[0].textContent = `default (${usual.sampler})`;
  for (const id of ["temperature", "top_p"]) $(id).placeholder = usual[id];
  $("top_k").placeholder = usual.top_k || "all";
  $("no_repeat").placeholder = usual.no_repeat || "off";
  $("about").textContent = sampler?.about ?? "";
  const own = $("sampler").value === "";
  $("steps").disabled = !sampler?.takes_steps;
  $("steps").required = Boolean(sampler?.needs_steps) && !(own && usual.steps);
  $("steps").placeholder = (own && usual.steps) || (sampler?.takes_steps ? "auto" : "none");
  if ($("steps").disabled) $("steps").value = "";
  if ($("steps").required && !$("steps").value) $("steps").value = 16;
  ownFields(sampler, set);
  count();
}

function ownFields(sampler, set) {
  const fields = (sampler?.fields ?? []).filter(({ steps }) => !steps);
  $("own").hidden = !fields.length;
  const line = $("sampler").value || defaults().sampler;
  if ($("own").dataset.of === line) return;
  $("own").dataset.of = line;
  $("own").querySelector("legend").textContent = `Sampler ${sampler?.name ?? ""}`;
  $("own").querySelector(".fields").replaceChildren(...fields.map(({ name, about, kind, choices, default: usual }) => {
    const label = element("label", "", name.replaceAll("_", " ") + " ");
    const values = kind === "boolean" ? ["true", "false"] : choices;
    const input = element(values.length ? "select" : "input");
    const now = String(set[name] ?? usual ?? "none");
    if (values.length) input.append(new Option(now, ""), ...values.filter((value) => value !== now).map((value) => new Option(value)));
    else Object.assign(input, { type: kind === "text" ? "text" : "number", step: kind === "integer" ? 1 : "any", placeholder: now });
    input.dataset.own = name;
    label.title = about;
    label.append(input);
    return label;
  }));
}

const ownInputs = () => [...$("own").querySelectorAll("[data-own]")];

// The line of the sampler with its own fields, threshold:tau=0.8, or null for the default as it is.
function samplerLine() {
  const [sampler, set] = inForce(), changed = ownInputs().filter(({ value }) => value !== "");
  if (!changed.length) return $("sampler").value || null;
  for (const input of changed) set[input.dataset.own] = input.value;
  return `${sampler.name}:${Object.entries(set).map((pair) => pair.join("=")).join(",")}`;
}

function valueOf(input) {
  if (input.type === "checkbox") return input.checked || null;
  if (input.value === "" || input.disabled) return null;
  if (input.type === "number") return Number(input.value);
  if (input.dataset.option === "lines") return input.value.split("\n").filter(Boolean);
  if (input.dataset.option !== "json") return input.value;
  try { return JSON.parse(input.value); } catch { throw Object.assign(new Error(`${input.id} must be JSON, such as ${input.placeholder}`), { param: input.id }); }
}

// What the visitor has changed, as fields of a request.
function chosen() {
  const found = Object.fromEntries(OPTIONS.map((input) => [input.id, valueOf(input)]).filter(([, value]) => value !== null));
  const line = samplerLine();
  if (line) found.sampler = line;
  // A stored number of steps belongs to the stored sampler, which is named here only for its own fields.
  if (line && !$("sampler").value && defaults().steps) found.steps ??= defaults().steps;
  return found;
}

const isSet = (input) => (input.type === "checkbox" ? input.checked : input.value !== "");

function count() {
  const inside = [...$("more").querySelectorAll("[data-option], [data-own]")].filter(isSet).length;
  $("changed").textContent = inside ? `· ${inside} set` : "";
}

// The form as a link keeps it, and back.
function formState() {
  const state = Object.fromEntries(TEXTS.map((id) => [id, $(id).value]));
  for (const input of OPTIONS.filter(isSet)) state[input.id] = input.type === "checkbox" ? "yes" : input.value;
  state.own = Object.fromEntries(ownInputs().filter(isSet).map((input) => [input.dataset.own, input.value]));
  return state;
}

function setForm(state) {
  for (const id of TEXTS) if (typeof state[id] === "string") $(id).value = state[id];
  for (const input of OPTIONS) {
    const value = typeof state[input.id] === "string" ? state[input.id] : "";
    if (input.type === "checkbox") input.checked = value !== ""; else input.value = value;
  }
  refresh();
  for (const input of ownInputs()) input.value = String(state.own?.[input.dataset.own] ?? "");
  count();
  $("more").open ||= $("changed").textContent !== "";
}

// ---- examples

const STORY = "Once upon a time, there was a little [5]. One day, [24]. The end.";
const EXAMPLES = [
  ["a story with blanks", { text: STORY }],
  ["a beginning", { text: "Lily and Tom went to the park. They saw" }],
  ["blanks of any length", { text: "The ___ was very happy because ___." }],
  ["a pattern", { text: "Tom has [4] and Lily has [4].", pattern: "\\d{1,2} (cats|dogs|balls)" }],
  ["one of three words", { text: "Lily lost her doll. She was very [3].", one_of: "happy\nsad\nangry" }],
  ["eight steps", { text: STORY, sampler: "groups", steps: "8" }],
  ["tokens drawn again", { text: STORY, sampler: "remask-rescale", steps: "48" }],
  ["exact samples", { text: STORY, plain: "yes" }],
];

function examples(begin) {
  const fills = card.samplers.some(({ name }) => name === "groups");
  $("examples").append(...EXAMPLES.filter(([, { text }]) => fills || !BLANK.test(text)).map(([name, state]) => {
    const button = element("button", "", name);
    button.type = "button";
    button.addEventListener("click", () => { setForm({ sampler: "", seed: $("seed").value, n: $("n").value, ...state }); begin(); });
    return button;
  }));
}
