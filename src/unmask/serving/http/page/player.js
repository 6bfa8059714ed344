// A recording of a draw, shown step by step: the page uses it live, a saved page uses it alone.
//
// A recording is { candidates: [[token]], steps: [{draft}], law, remasks }; a token is { text, given, confidence, call,
// past }: call is the step that drew it, 0 for tokens from before; past are the tokens that were at its position
// until they were masked again: { text, given, confidence, call, until }.
"use strict";

const PACE = 1000 / 30; // milliseconds a step at least

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// 0 for a token the model was certain of, 1 for one it gave 1 in 1000 or less.
const doubt = (confidence) => Math.min(1, -Math.log10(Math.max(confidence, 1e-9)) / 3) + 0; // + 0: no minus zero

class Player {
  // `live` hears of marks and asks for new draws; without it the player only shows.
  constructor(root, recording, live) {
    this.recording = recording;
    this.live = live;
    this.at = 0; // the step that is shown
    this.following = true; // the newest step, as they come
    this.root = element("section", live ? "player live" : "player");
    this.root.setAttribute("aria-label", "how the text came about");
    this.reel();
    this.build();
    this.legend();
    root.replaceChildren(this.root);
    this.paint(0);
    this.run();
  }

  get last() { return this.recording.steps.length; }

  reel() {
    const bar = element("div", "reel");
    this.button = element("button", "", "Pause");
    this.button.type = "button";
    this.slider = element("input");
    Object.assign(this.slider, { type: "range", min: 0, max: 0, value: 0, step: 1 });
    this.slider.setAttribute("aria-label", "step");
    this.output = element("output");
    bar.append(this.button, this.slider, this.output);
    this.root.append(bar);
    this.slider.addEventListener("input", () => { this.following = false; this.paint(Number(this.slider.value)); });
    this.button.addEventListener("click", () => {
      if (!this.following && this.at >= this.last) this.paint(0);
      this.following = !this.following;
      this.run();
    });
  }

  // One span per token, made once: a step only changes those it touches.
  build() {
    this.cells = [];
    this.cards = [];
    const grid = element("div", "candidates");
    this.recording.candidates.forEach((tokens, number) => {
      const card = element("article", "candidate");
      const text = element("p", "text");
      text.setAttribute("role", this.live ? "group" : "text");
      text.setAttribute("aria-label", `candidate ${number + 1}`);
      const spans = tokens.map((_, place) => {
        const span = element("span", "token");
        span.append("", element("span", "core")); // the space before a word, which is never coloured, and the word
        span.dataset.place = place;
        if (this.live) { span.tabIndex = place ? -1 : 0; span.setAttribute("role", "button"); }
        return span;
      });
      text.append(...spans);
      card.append(text);
      if (this.live) this.live.card(card, text, number);
      this.cells.push(spans);
      this.cards.push(card);
      grid.append(card);
    });
    this.root.append(grid);
  }

  legend() {
    const line = element("p", "legend");
    line.append("sure", element("span", "scale"), "doubtful");
    if (this.live) line.append(" · click a token, or press Enter on it, to ", element("b", "", "lock"), " it, again to ",
      element("b", "", "mask"), " it");
    if (this.recording.remasks) line.append(" · ", element("span", "remasked-mark", "framed"), ": masked again at this step");
    this.law = element("p", "legend");
    this.root.append(line, this.law);
  }

  // What a position shows at the current step: a token, the most likely token so far, or nothing.
  look(number, place) {
    const last = this.recording.candidates[number][place];
    const token = last.call !== null && last.call <= this.at ? last : last.past.find(({ call, until }) => call <= this.at && this.at < until);
    if (token) return { token, fresh: token.call === this.at && this.at > 0 && this.at < this.last };
    const step = this.at > 0 ? this.recording.steps[this.at - 1] : null;
    return {
      again: last.past.some(({ until }) => until === this.at),
      lean: step && step.draft ? step.draft.get(number + ":" + place) : undefined,
    };
  }

  paint(at) {
    this.at = at;
    this.recording.candidates.forEach((tokens, number) => tokens.forEach((_, place) => this.cell(number, place)));
    this.slider.max = this.last;
    this.slider.value = at;
    this.output.textContent = `step ${at} of ${this.last}`;
    this.law.textContent = this.recording.law ? `Distribution of the samples: ${this.recording.law}` : "";
    this.button.textContent = this.following && (at < this.last || !this.recording.done) ? "Pause" : at < this.last ? "Play" : "Again";
    if (this.live) this.live.painted(this);
  }

  cell(number, place) {
    const span = this.cells[number][place];
    const { token, fresh, lean, again } = this.look(number, place);
    let name = "token", shown = "\u2007\u2007", title = "";
    if (token) {
      shown = token.text === "" ? "\u00b7" : token.text;
      name += token.given ? " given" : " drawn";
      if (token.text === "" && !token.given) name += " mute";
      if (fresh) name += " fresh";
      if (token.confidence !== null) {
        span.style.setProperty("--doubt", doubt(token.confidence).toFixed(3));
        title = `step ${token.call}, ${Math.round(100 * token.confidence)} %`;
      }
    } else if (lean !== undefined && lean !== "") {
      shown = lean;
      name += " lean";
    } else name += " blank";
    if (again) { name += " remasked"; title = `masked again at step ${this.at}`; }
    const mark = this.live ? this.live.mark(number, place) : "";
    if (mark) name += " " + mark;
    const gap = token || lean ? shown.match(/^\s*(?=\S)/)?.[0] ?? "" : "";
    if (span.textContent !== shown) { span.firstChild.data = gap; span.lastChild.textContent = shown.slice(gap.length); }
    if (span.className !== name) span.className = name;
    if (span.title !== title) span.title = title;
    if (this.live) span.setAttribute("aria-label", `${token ? token.text || "special" : "blank"}${mark ? ", " + mark + "ed" : ""}`);
  }

  // Follow the steps as they come, no faster than the eye; at once for those who want no motion.
  run() {
    if (this.timer) return;
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    let before = 0;
    const tick = (now) => {
      this.timer = 0;
      if (!this.root.isConnected || !this.following) { this.paint(this.at); return; }
      if (this.at < this.last && (still || now - before >= PACE)) {
        before = now;
        this.paint(still ? this.last : this.at + 1);
      } else if (this.recording.done && this.at >= this.last) {
        this.following = false;
        this.paint(this.at);
        return;
      }
      this.timer = requestAnimationFrame(tick);
    };
    this.timer = requestAnimationFrame(tick);
  }

  end() { this.following = false; this.paint(this.last); }
}
