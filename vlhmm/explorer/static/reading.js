// The view "Reading": one text, token by token. `analyse` asks a server or a notebook; null: only the texts of the page.

class ReadingView {
  constructor(data, getTheme, analyse, onstate) {
    Object.assign(this, { data, getTheme, analyse, onstate });
    this.texts = [...data.texts];
    this.chosen = 0;
    this.token = 0;
    this.picker = element("div", { class: "texts", role: "radiogroup", "aria-label": "Texts", onkeydown: (event) => this.pickByKey(event) });
    this.status = element("p", { class: "hint note", role: "status" });
    this.body = element("div", {});
    this.element = element("div", { class: "reading-view" }, this.typing(), this.status, this.picker, this.body);
    this.redraw();
  }

  typing() {
    if (!this.analyse) {
      return element(
        "p",
        { class: "hint" },
        "This page was made without a server and shows the texts it was made with. For texts of your own: ",
        element("code", {}, "vlhmm serve"), " or ", element("code", {}, "vlhmm explore MODEL \"your text\""), ".",
      );
    }
    const text = element("input", { type: "text", placeholder: "Type a text to be read", "aria-label": "Text", required: true, spellcheck: "false" });
    const phrase = element("input", { type: "text", placeholder: "must contain (optional)", "aria-label": "A phrase the text must contain", spellcheck: "false" });
    return element(
      "form",
      {
        class: "typing",
        onsubmit: (event) => {
          event.preventDefault();
          this.ask(text.value, phrase.value.trim());
        },
      },
      text, phrase, element("button", { class: "primary" }, "Read"),
    );
  }

  async ask(text, phrase) {
    const number = (this.asked = (this.asked ?? 0) + 1);
    this.status.textContent = "Reading …";
    try {
      const analysis = await this.analyse(text, phrase ? { contains: [phrase] } : null);
      // A later question may have been answered before this one.
      if (number !== this.asked) return;
      this.status.textContent = "";
      this.texts.unshift(analysis);
      this.choose(0);
    } catch (error) {
      if (number === this.asked) this.status.textContent = error.message;
    }
  }

  choose(number) {
    [this.chosen, this.token] = [number, 0];
    this.redraw();
  }

  pickByKey(event) {
    const next = arrowKeys(event, this.texts.length, this.chosen);
    if (next === null) return;
    event.preventDefault();
    this.choose(next);
    this.picker.children[next].focus();
  }

  redraw() {
    this.picker.replaceChildren(
      ...this.texts.map(({ text }, number) =>
        button(shortened(text, 80), () => this.choose(number), {
          role: "radio", "aria-checked": String(number === this.chosen), tabindex: number === this.chosen ? 0 : -1, title: text,
        })),
    );
    const analysis = this.texts[this.chosen];
    if (!analysis) {
      this.body.replaceChildren(element("p", { class: "empty" }, "No text was analysed for this page: give one to vlhmm explore."));
      return;
    }
    this.analysis = analysis;
    this.named = new Map(analysis.states.map((state) => [state.state, state]));
    this.trellis = new Trellis(analysis, this.getTheme(), (name) => this.data.shown(name), (column, state) => this.describe(column, state));
    this.strip = element("div", { class: "tokens", role: "listbox", "aria-label": "Tokens", "aria-orientation": "horizontal", onkeydown: (event) => this.stripKey(event) });
    this.strip.append(...analysis.tokens.map((token, number) => this.tokenChip(token, number)));
    this.details = element("div", { class: "details" });
    this.body.replaceChildren(
      this.figures(),
      this.strip,
      this.scale(),
      element("div", { class: "bar-row" }, element("h3", {}, "Likely states of each token"), exportButtons(`${this.data.name}-trellis`, () => this.trellis.svg, this.getTheme)),
      this.trellisKey(),
      element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Trellis, scrolls sideways" }, this.trellis.svg),
      this.details,
    );
    this.describe(this.token, null);
  }

  figures() {
    const { analysis } = this;
    const figure = (name, value, shown) => element("div", {}, element("dt", {}, name), element("dd", { "data-figure": name, "data-value": value }, shown));
    return element(
      "dl",
      { class: "figures" },
      figure("tokens", analysis.tokens.length, count(analysis.tokens.length)),
      figure("log p(text)", analysis.log_prob, `−${nats(analysis.log_prob)}`),
      figure("perplexity", analysis.perplexity, analysis.perplexity === null ? "∞" : fixed(analysis.perplexity, 1)),
      figure("log p(text, path)", analysis.path_log_prob, `−${nats(analysis.path_log_prob)}`),
      figure("path entropy", analysis.path_entropy, fixed(analysis.path_entropy, 2)),
      analysis.constraint ? element("div", {}, element("dt", {}, "constraint"), element("dd", {}, element("code", {}, analysis.constraint.constraint))) : null,
    );
  }

  tokenChip(token, number) {
    const value = token.log_prob === null ? Infinity : -token.log_prob;
    const chip = element(
      "button",
      {
        type: "button", class: "token", role: "option", tabindex: number === this.token ? 0 : -1, "data-value": token.log_prob,
        onclick: () => this.describe(number, null), onfocus: () => this.describe(number, null), onpointerenter: () => this.describe(number, null),
      },
      element("span", {}, this.data.shown(token.token)),
      element("small", {}, nats(token.log_prob)),
    );
    chip.style.background = this.getTheme().surprisal(value);
    return chip;
  }

  scale() {
    const theme = this.getTheme();
    const steps = [0, 1, 2, 4, 6, 8, 10, 12].map((value) => {
      const step = element("span", {}, value === FULL_SURPRISAL ? `${value}+` : String(value));
      step.style.background = theme.surprisal(value);
      return step;
    });
    return element("p", { class: "scale hint" }, "Surprisal in nats, −log p(token | all before): ", ...steps);
  }

  trellisKey() {
    return element(
      "p",
      { class: "hint key" },
      element("span", {}, element("i", { "aria-hidden": "true" }), "the likeliest path"),
      element("span", {}, element("i", { class: "move", "aria-hidden": "true" }), "other moves, thicker where likelier"),
      element("span", {}, element("i", { class: "share", "aria-hidden": "true" }), "p(state | text) as a bar, coloured by block"),
    );
  }

  stripKey(event) {
    const next = arrowKeys(event, this.analysis.tokens.length, this.token);
    if (next === null) return;
    event.preventDefault();
    this.strip.children[next].focus();
  }

  // What is known of a token; of one of its states too, where one is meant.
  describe(number, state) {
    this.token = number;
    const token = this.analysis.tokens[number];
    [...this.strip.children].forEach((chip, place) => {
      chip.setAttribute("aria-selected", String(place === number));
      chip.setAttribute("tabindex", place === number ? 0 : -1);
    });
    this.trellis.pills.forEach(({ column, group }) => group.classList.toggle("here", column === number));
    const chosen = state ?? token.path;
    const likely = token.states.find((one) => one.state === chosen);
    this.details.replaceChildren(
      this.infillSection(token),
      this.stateSection(token),
      this.oneState(chosen, likely, number),
    );
  }

  infillSection(token) {
    const most = Math.max(...token.infill.map(({ prob }) => prob), 1e-9);
    const rows = token.infill.map(({ token: name, prob }) =>
      element(
        "li",
        { "data-word": name, "data-value": prob, class: name === token.token ? "same" : null },
        element("span", { class: "word" }, this.data.shown(name), name === token.token ? element("small", {}, " the word itself") : null),
        bar(prob / most),
        element("span", { class: "prob" }, probability(prob)),
      ));
    return element("section", { class: "infill" }, element("h3", {}, `In place of “${this.data.shown(token.token)}”`, element("span", { class: "units" }, "p(word | all others)")), element("ol", { class: "relevant" }, rows));
  }

  stateSection(token) {
    const rows = token.states.map(({ state, prob }) => this.stateRow(state, prob));
    return element("section", { class: "posterior" }, element("h3", {}, "Its states", element("span", { class: "units" }, "p(state | text)")), element("div", { class: "rows" }, rows), element("p", { class: "hint" }, `entropy ${fixed(token.entropy, 2)} nats`));
  }

  oneState(state, likely, number) {
    const named = this.named.get(state);
    const last = number === this.analysis.tokens.length - 1;
    const known = this.data.rankOf.has(state);
    return element(
      "section",
      { class: "one-state" },
      element("h3", {}, `State ${state}`, this.data.hasBlocks ? blockChip(named.block, this.getTheme()) : null),
      element("p", { class: "words" }, named.words.map(({ word, prob }) => element("span", {}, this.data.shown(word), element("small", {}, ` ${probability(prob)}`), " "))),
      likely ? element("p", { class: "hint" }, last ? "What may come next:" : "It goes on to:") : null,
      likely ? element("div", { class: "rows" }, likely.next.map((next) => this.stateRow(next.state, next.prob))) : null,
      known ? button("Show on the map", () => this.onstate(this.data.rankOf.get(state))) : element("p", { class: "hint" }, "Not among the states of the map."),
    );
  }

  stateRow(state, prob) {
    const named = this.named.get(state);
    const rank = this.data.rankOf.get(state);
    const cells = [
      element("span", { class: "prob" }, probability(prob)),
      element("span", { class: "number" }, String(state)),
      element("span", { class: "words" }, named.words.slice(0, 3).map(({ word }) => this.data.shown(word)).join(" ")),
    ];
    const properties = { class: "state-row", "data-state": state, "data-value": prob };
    if (rank === undefined) return element("div", properties, cells);
    return element("button", { type: "button", title: "Show on the map", onclick: () => this.onstate(rank), ...properties }, cells);
  }
}
