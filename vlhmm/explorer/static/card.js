// The card of a state, the list of the most used ones, and the search for a word's states.

const LISTED_STATES = 20;

function bar(share, className = "bar") {
  const filledPart = element("i", {});
  filledPart.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return element("span", { class: className, "aria-hidden": "true" }, filledPart);
}

function blockChip(block, theme) {
  const dot = element("i", { class: "dot", "aria-hidden": "true" });
  dot.style.background = theme.block(block);
  return element("span", { class: "chip" }, dot, `block ${block}`);
}

// A button that opens the card of a state.
function stateButton(data, rank, prob, onselect) {
  return element(
    "button",
    { type: "button", class: "state-row", onclick: () => onselect(rank), "data-state": data.number(rank), "data-value": prob },
    element("span", { class: "prob" }, prob === null ? amount(data.use(rank)) : probability(prob)),
    element("span", { class: "number" }, String(data.number(rank))),
    element("span", { class: "words" }, data.label(rank, 3)),
  );
}

class StateCard {
  constructor(data, getTheme, onselect) {
    Object.assign(this, { data, getTheme, onselect });
    this.weight = 0.6;
    this.rank = null;
    this.element = element("aside", { class: "card", "aria-label": "The chosen state", "aria-live": "polite" });
    this.show(null);
  }

  show(rank) {
    this.rank = rank;
    this.element.replaceChildren(...(rank === null ? this.mostUsed() : this.described(rank)));
    this.element.scrollTop = 0;
  }

  mostUsed() {
    const { data } = this;
    const seen = new Map();
    for (let rank = 0; rank < data.numKept && seen.size < LISTED_STATES; rank += 1) {
      // Of one block the only one listed, unless there is but one block.
      const key = data.blocks.length > 1 ? data.block(rank) : rank;
      if (!seen.has(key)) seen.set(key, rank);
    }
    const rows = [...seen.values()].map((rank) => stateButton(data, rank, null, this.onselect));
    return [
      element("h2", {}, data.blocks.length > 1 ? "Most used states, one of each block" : "Most used states"),
      element("p", { class: "hint" }, "Choose a state here or on the map. The first number is its expected tokens of the text, the second its own."),
      element("div", { class: "rows" }, rows),
    ];
  }

  described(rank) {
    const { data } = this;
    const use = data.use(rank);
    return [
      element(
        "header",
        {},
        element("h2", { "data-state": data.number(rank) }, `State ${data.number(rank)}`),
        data.hasBlocks ? blockChip(data.block(rank), this.getTheme()) : null,
        button("×", () => this.onselect(null), { class: "close", "aria-label": "Close the card" }),
      ),
      element(
        "p",
        { class: "hint", "data-value": use },
        `${amount(use)} of ${count(data.tokens.length)} tokens, number ${count(rank + 1)} of ${count(data.num_states)} states by use`,
      ),
      this.wordsSection(rank),
      this.neighboursSection("Next states", data.next(rank)),
      this.neighboursSection("Previous states", data.previous(rank)),
      this.examplesSection(rank),
    ];
  }

  wordsSection(rank) {
    const list = element("ol", { class: "relevant" });
    const output = element("output", {});
    const fill = () => {
      const words = this.data.wordsOf(rank, this.weight);
      const most = Math.max(...words.map(({ prob }) => prob));
      output.textContent = `λ = ${fixed(this.weight, 1)}`;
      list.replaceChildren(
        ...words.map(({ word, prob, lift }) =>
          element(
            "li",
            { "data-word": this.data.words.name[word], "data-value": prob },
            element("span", { class: "word" }, this.data.wordName(word)),
            bar(prob / most),
            element("span", { class: "prob" }, probability(prob)),
            element("span", { class: "lift" }, `×${lift >= 10 ? count(lift) : fixed(lift, 1)}`),
          ),
        ),
      );
    };
    const slider = element("input", {
      type: "range", min: 0, max: 1, step: 0.1, value: this.weight, "aria-label": "Weight of the probability in the relevance, lambda",
      oninput: (event) => {
        this.weight = Number(event.target.value);
        fill();
      },
    });
    fill();
    return element(
      "section",
      {},
      element("h3", {}, "Words by relevance", element("span", { class: "units" }, "p(word | state) · lift")),
      list,
      element("label", { class: "slider" }, element("span", {}, "lift"), slider, element("span", {}, "probability"), output),
    );
  }

  neighboursSection(title, states) {
    const rows = states.map(([rank, prob]) => stateButton(this.data, rank, prob, this.onselect));
    const none = element("p", { class: "hint" }, "None among the states of this page.");
    return element("section", { class: title.split(" ")[0].toLowerCase() }, element("h3", {}, title), rows.length ? element("div", { class: "rows" }, rows) : none);
  }

  examplesSection(rank) {
    const examples = this.data.examples(rank).map(({ before, word, after, prob }) =>
      element("li", {}, element("span", { class: "context" }, `${before} `, element("mark", {}, word), ` ${after}`), element("span", { class: "prob" }, probability(prob))),
    );
    const none = element("p", { class: "hint" }, "It is nowhere the likeliest state in the text.");
    return element("section", {}, element("h3", {}, "In the text", element("span", { class: "units" }, "p(state | text)")), examples.length ? element("ul", { class: "examples" }, examples) : none);
  }
}

// A combobox over the vocabulary.
class WordSearch {
  constructor(data, onword) {
    Object.assign(this, { data, onword });
    this.options = [];
    this.active = -1;
    this.input = element("input", {
      type: "search", placeholder: "Search a word or a state's number", role: "combobox", "aria-expanded": "false", "aria-autocomplete": "list",
      "aria-controls": "vx-words", "aria-label": "Search a word or a state's number", autocomplete: "off", spellcheck: "false",
      oninput: () => this.suggest(), onkeydown: (event) => this.key(event), onblur: () => this.close(),
    });
    this.list = element("ul", { class: "options", role: "listbox", id: "vx-words", hidden: true });
    this.note = element("p", { class: "hint note", role: "status" });
    this.element = element("div", { class: "search" }, this.input, this.list, this.note);
  }

  suggest() {
    const text = this.input.value.trim();
    this.note.textContent = "";
    if (!text) {
      this.close();
      return this.onword(null);
    }
    const rank = this.data.rankOf.get(Number(text));
    const state = rank === undefined ? [] : [{ rank, label: `state ${text}`, detail: this.data.label(rank, 3) }];
    const words = this.data.wordsLike(text).map((word) => ({ word, label: this.data.wordName(word), detail: probability(this.data.words.prob.values[word]) }));
    this.options = [...words, ...state];
    if (!this.options.length) this.note.textContent = `No word of this page holds “${text}”.`;
    return this.open(this.options.length ? 0 : -1);
  }

  open(active) {
    this.active = active;
    this.list.hidden = active < 0;
    this.input.setAttribute("aria-expanded", String(active >= 0));
    this.list.replaceChildren(
      ...this.options.map((option, place) =>
        element(
          "li",
          // Before the field loses its focus, which closes the list.
          { role: "option", id: `vx-word-${place}`, "aria-selected": String(place === active), onpointerdown: (event) => {
            event.preventDefault();
            this.choose(place);
          } },
          element("span", {}, option.label),
          element("span", { class: "prob" }, option.detail),
        ),
      ),
    );
    if (active >= 0) this.input.setAttribute("aria-activedescendant", `vx-word-${active}`);
    else this.input.removeAttribute("aria-activedescendant");
  }

  close() {
    this.options = [];
    this.open(-1);
  }

  key(event) {
    if (event.key === "Enter" && this.active >= 0) this.choose(this.active);
    else if (event.key === "Escape") {
      this.input.value = "";
      this.suggest();
    } else {
      if (event.key === "Home" || event.key === "End") return;
      const next = arrowKeys(event, this.options.length, this.active, { ArrowDown: 1, ArrowUp: -1 });
      if (next === null || !this.options.length) return;
      this.open(next);
    }
    event.preventDefault();
  }

  choose(place) {
    const option = this.options[place];
    this.input.value = option.word === undefined ? String(this.data.number(option.rank)) : option.label;
    this.close();
    this.onword(option);
  }
}
