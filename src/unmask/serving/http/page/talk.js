// A conversation: its messages above the form; each answer is watched on the stage, and then said.
"use strict";

const talk = { said: [], on: () => $("conversing").checked };

// The request for an answer to the form's text, after all that was said.
function answerRequest(text, asked) {
  const { stop, ...options } = asked;
  const messages = [...talk.said, { role: "user", content: text }];
  return ["v1/chat/completions", { messages, max_tokens: number("length") ?? 16, ...options, ...(stop && { stop }) }];
}

// What was asked and answered joins the conversation.
function answered(question, answer) {
  talk.said.push({ role: "user", content: question }, { role: "assistant", content: answer });
  $("text").value = "";
  $("text").focus();
  showTalk();
}

function showTalk() {
  $("talk").hidden = !talk.on() || !talk.said.length;
  $("talk").replaceChildren(...talk.said.map(({ role, content }) => element("p", `turn ${role}`, content || "…")));
  $("forget").hidden = $("talk").hidden;
  $("talk").lastElementChild?.scrollIntoView({ block: "nearest" });
  const on = talk.on();
  for (const id of ["hint", "examples"]) $(id).hidden = on;
  $("stage").classList.toggle("talking", on);
  document.querySelector("label[for=text]").textContent = on ? "Message" : "Text";
  if (!running) $("go").textContent = on ? "Send" : "Go";
}

function wireTalk() {
  $("conversing").addEventListener("change", () => {
    if (talk.on() && EXAMPLES.some(([, { text }]) => text === $("text").value)) $("text").value = "";
    showTalk();
  });
  $("forget").addEventListener("click", () => { talk.said = []; showTalk(); });
  $("text").addEventListener("keydown", (event) => {
    if (talk.on() && event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.metaKey && !event.isComposing) {
      event.preventDefault();
      $("ask").requestSubmit();
    }
  });
}
