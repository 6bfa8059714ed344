// The reference: every address, what it takes and what it gives, from the server's own description.
"use strict";

function node(name, className, ...inside) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...inside);
  return made;
}

function kind(schema, all) {
  if (schema.$ref) return kind(resolve(schema, all), all);
  if (schema.anyOf) return schema.anyOf.map((one) => kind(one, all)).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${kind(schema.items ?? {}, all)}`;
  if (schema.type === "object") return schema.title ?? "object";
  return schema.type ?? "anything";
}

const resolve = (schema, all) => (schema?.$ref ? all[schema.$ref.split("/").pop()] : schema);

function bounds(schema) {
  const words = { minimum: "≥", maximum: "≤", exclusiveMinimum: ">", exclusiveMaximum: "<", minItems: "at least" };
  const one = [schema, ...(schema.anyOf ?? [])].find((part) => Object.keys(words).some((key) => key in part)) ?? {};
  const found = Object.entries(words).filter(([key]) => key in one && Math.abs(one[key]) < 2 ** 53);
  return found.map(([key, word]) => `${word} ${one[key]}`).join(", ");
}

function fields(schema, all, title) {
  const shape = resolve(schema, all);
  if (!shape?.properties) return [];
  const needed = new Set(shape.required ?? []);
  const rows = Object.entries(shape.properties).map(([name, field]) => {
    const said = [kind(field, all), bounds(field)];
    if (field.default !== undefined && field.default !== null && field.default !== "") said.push(`default ${JSON.stringify(field.default)}`);
    if (title === "Takes" && needed.has(name)) said.push("required");
    return node("tr", "", node("td", "", name), node("td", "", said.filter(Boolean).join(", ")), node("td", "", field.description ?? ""));
  });
  return [node("h3", "", title), node("table", "", ...rows)];
}

async function show() {
  const said = await (await fetch("openapi.json")).json();
  const all = said.components.schemas;
  for (const [path, methods] of Object.entries(said.paths)) {
    for (const [method, about] of Object.entries(methods)) {
      const takes = about.requestBody?.content?.["application/json"]?.schema;
      const gives = about.responses?.["200"]?.content?.["application/json"]?.schema;
      document.getElementById("reference").append(node("section", "operation",
        node("h2", "", node("span", "", method.toUpperCase()), path),
        node("p", "", about.description ?? ""),
        ...(takes ? fields(takes, all, "Takes") : []), ...(gives ? fields(gives, all, "Gives") : [])));
    }
  }
}

show();
