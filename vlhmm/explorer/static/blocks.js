// The view "Blocks": the words of each block, and its states.

const SHOWN_WORDS = 120;
const SHOWN_STATES = 12;

class BlocksView {
  constructor(data, getTheme, onstate) {
    Object.assign(this, { data, getTheme, onstate });
    this.chosen = 0;
    this.element = element("div", { class: "blocks-view" });
    const words = data.wordsByBlock();
    this.words = data.blocks.map(({ block }) => words.get(block));
    this.list = element("div", { class: "block-list", role: "listbox", "aria-label": "Blocks, those with most tokens first", onkeydown: (event) => this.key(event) });
    this.details = element("section", { class: "block", "aria-live": "polite" });
    this.redraw();
  }

  redraw() {
    const { data } = this;
    if (!data.blocks.length) {
      this.element.replaceChildren(element("p", { class: "empty" }, "The states of this model are in no blocks: each word has states of its own choice."));
      return;
    }
    const most = data.blocks[0].num_tokens || 1;
    const theme = this.getTheme();
    this.list.replaceChildren(
      ...data.blocks.map((block, place) => {
        const dot = element("i", { class: "dot", "aria-hidden": "true" });
        dot.style.background = theme.block(block.block);
        return element(
          "button",
          { type: "button", class: "block-row", role: "option", "aria-selected": String(place === this.chosen), tabindex: place === this.chosen ? 0 : -1, onclick: () => this.choose(place), "data-block": block.block, "data-value": block.num_tokens },
          dot,
          element("span", { class: "number" }, String(block.block)),
          element("span", { class: "words" }, this.words[place].slice(0, 6).map((word) => data.wordName(word)).join(" ")),
          bar(block.num_tokens / most),
          element("span", { class: "prob" }, amount(block.num_tokens)),
        );
      }),
    );
    this.element.replaceChildren(
      element("p", { class: "hint" }, `${count(data.num_blocks)} blocks; a word comes from the states of its block alone. The bars are expected tokens of the text: ${data.text.label}.`),
      element("div", { class: "split" }, this.list, this.details),
    );
    this.describe();
  }

  choose(place) {
    this.list.children[this.chosen].setAttribute("aria-selected", "false");
    this.list.children[this.chosen].setAttribute("tabindex", -1);
    this.chosen = place;
    this.list.children[place].setAttribute("aria-selected", "true");
    this.list.children[place].setAttribute("tabindex", 0);
    this.describe();
  }

  key(event) {
    const next = arrowKeys(event, this.data.blocks.length, this.chosen);
    if (next === null) return;
    event.preventDefault();
    this.choose(next);
    this.list.children[next].focus();
  }

  describe() {
    const { data } = this;
    const block = data.blocks[this.chosen];
    const words = this.words[this.chosen];
    const states = data.statesOfBlock(block.block);
    const figure = (name, value) => element("div", {}, element("dt", {}, name), element("dd", {}, value));
    const left = block.num_words - Math.min(SHOWN_WORDS, words.length);
    const parts = [
      element("h2", {}, `Block ${block.block}`),
      element(
        "dl",
        { class: "figures" },
        figure("words", count(block.num_words)),
        figure("states", count(block.num_states)),
        figure("tokens", amount(block.num_tokens)),
        figure("as if equal", `${fixed(block.effective, 1)} states`),
      ),
      element("h3", {}, "Words", element("span", { class: "units" }, "most frequent first")),
      element("ul", { class: "cloud" }, words.slice(0, SHOWN_WORDS).map((word) => element("li", { title: `p = ${probability(data.words.prob.values[word])}` }, data.wordName(word)))),
      left > 0 ? element("p", { class: "hint" }, `and ${count(left)} more`) : null,
      element("h3", {}, "Most used states", element("span", { class: "units" }, "expected tokens")),
      element("div", { class: "rows" }, states.slice(0, SHOWN_STATES).map((rank) => stateButton(data, rank, null, this.onstate))),
      states.length ? null : element("p", { class: "hint" }, "None of its states is on this page."),
    ];
    this.details.replaceChildren(...parts.filter(Boolean));
  }
}
