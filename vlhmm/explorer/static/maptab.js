// The view "Map": search, map, legend and card.

class MapView {
  constructor(data, getTheme) {
    Object.assign(this, { data, getTheme });
    const choose = (rank) => this.select(rank);
    this.map = new StateMap(data, getTheme, choose);
    this.card = new StateCard(data, getTheme, choose);
    this.search = new WordSearch(data, (option) => this.found(option));
    this.element = element(
      "div",
      { class: "map-view" },
      element("div", { class: "bar-row" }, this.search.element, exportButtons(`${data.name}-map`, () => this.map.toSvg(), getTheme)),
      element("div", { class: "split" }, element("figure", {}, this.map.element, this.legend()), this.card.element),
    );
  }

  legend() {
    const { data } = this;
    const all = data.usage.num_tokens;
    const held = data.states.use.values.reduce((sum, use) => sum + use, 0);
    const share = all > 0 ? held / all : 1;
    const shown =
      data.numKept === data.num_states
        ? `All ${count(data.num_states)} states.`
        : `The ${count(data.numKept)} most used of ${count(data.num_states)} states, which emit ${share >= 0.99995 ? "100" : fixed(100 * share, 2)} % of the tokens.`;
    return element(
      "figcaption",
      {},
      `${shown} Near: the same words before, after and in the states. Size: expected tokens, ${amount(data.mostUsed)} for the largest. `,
      data.hasBlocks ? "Colour: block; labels: the likeliest words of a block's most used state. " : "",
      `Text: ${data.text.label}, ${count(data.tokens.length)} tokens, perplexity ${fixed(data.text.perplexity, 1)}.`,
    );
  }

  select(rank) {
    this.map.select(rank);
    this.card.show(rank);
  }

  found(option) {
    if (option === null) return this.map.highlight([]);
    if (option.rank !== undefined) {
      this.map.highlight([]);
      return this.select(option.rank);
    }
    const states = this.data.statesOfWord(option.word);
    this.search.note.textContent = states.length
      ? `“${option.label}” comes from ${states.map(([rank, prob]) => `state ${this.data.number(rank)} (${probability(prob)})`).join(", ")}`
      : `“${option.label}” comes from no state of this page.`;
    this.map.highlight(states);
    if (states.length) this.select(states[0][0]);
    return undefined;
  }

  redraw() {
    this.map.draw();
    this.card.show(this.card.rank);
  }
}
