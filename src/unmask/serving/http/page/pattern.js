// A pattern is for each blank by itself. When some tokens of a blank are kept and the rest is drawn again, the pattern
// has to see them: then it is one for the whole text, with what was given spelled out.
"use strict";

const spelled = (text) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");

// `tokens` are a candidate's, `again` says which of them are drawn anew.
function wholePattern(pattern, tokens, again) {
  const kinds = tokens.map((token, place) => (!token.given ? "drawn" : again[place] ? "free" : "given"));
  return tokens.map((token, place) => {
    if (kinds[place] === "given") return spelled(token.text);
    if (kinds[place] === kinds[place - 1]) return "";
    return kinds[place] === "free" ? "(?s:.*)" : `(?:${pattern})`;
  }).join("");
}
