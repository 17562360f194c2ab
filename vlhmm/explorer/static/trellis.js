// One figure of a text, column by column: surprisal, posterior states with the likeliest path, entropy, and a constraint's probability.

const COLUMN = 134;
const LEFT = 112;
const ROW = 50;
const STRIP = 46;
const PILL_WIDTH = 92;
const PILL_HEIGHT = 38;
const PILL_CORNER = 6;
const LABEL_BELOW = 17;

class Trellis {
  constructor(analysis, theme, shown, onselect) {
    Object.assign(this, { analysis, theme, shown, onselect });
    this.named = new Map(analysis.states.map((state) => [state.state, state]));
    const tokens = analysis.tokens;
    // Below the likeliest states the path's own, where it is none of them.
    this.columns = tokens.map((token) => {
      const states = token.states.map(({ state, prob }) => ({ state, prob }));
      if (!states.some(({ state }) => state === token.path)) states.push({ state: token.path, prob: null });
      return states;
    });
    this.rows = Math.max(...this.columns.map((states) => states.length));
    this.top = { tokens: 22, surprisal: 36, states: 36 + STRIP + 26 };
    this.top.entropy = this.top.states + this.rows * ROW + 14;
    this.top.constraint = this.top.entropy + STRIP + 26;
    this.width = LEFT + tokens.length * COLUMN + 16;
    this.height = this.top.entropy + STRIP + 14 + (analysis.constraint ? STRIP + 40 : 0);
    this.svg = svgElement("svg", {
      viewBox: `0 0 ${this.width} ${this.height}`, width: this.width, height: this.height, class: "trellis", role: "group",
      "aria-label": "Trellis of posterior states",
    });
    this.pills = [];
    this.paint();
  }

  centre(column) {
    return LEFT + (column + 0.5) * COLUMN;
  }

  middle(row) {
    return this.top.states + (row + 0.5) * ROW;
  }

  text(x, y, text, properties = {}) {
    return svgElement("text", { x, y, fill: this.theme.ink, "font-size": 12, "text-anchor": "middle", ...properties }, text);
  }

  paint() {
    const { theme, analysis } = this;
    const label = (y, ...lines) =>
      lines.forEach((line, number) => this.svg.append(this.text(LEFT - 14, y + 15 * number, line, { "text-anchor": "end", fill: theme.muted, "font-size": 11.5 })));
    label(this.top.surprisal + STRIP - 14, "surprisal", "in nats");
    label(this.middle(0) + 1, "states", "given the text");
    label(this.top.entropy + STRIP - 14, "entropy", "in nats");
    this.strip(this.top.surprisal, analysis.tokens.map((token) => (token.log_prob === null ? Infinity : -token.log_prob)), (value) => theme.surprisal(value));
    this.strip(this.top.entropy, analysis.tokens.map((token) => token.entropy), () => theme.faint);
    analysis.tokens.forEach((token, column) =>
      this.svg.append(this.text(this.centre(column), this.top.tokens, shortened(this.shown(token.token), 14), { "font-weight": 650, "font-size": 14 })));
    this.moves();
    this.path();
    this.columns.forEach((states, column) => states.forEach(({ state, prob }, row) => this.pill(column, row, state, prob)));
    if (analysis.constraint) this.constraint(label);
  }

  strip(top, values, colour) {
    const most = Math.max(1, ...values.filter(Number.isFinite));
    this.svg.append(svgElement("line", { x1: LEFT, x2: this.width - 16, y1: top + STRIP, y2: top + STRIP, stroke: this.theme.line }));
    values.forEach((value, column) => {
      const height = Math.max(1, (Math.min(value, most) / most) * (STRIP - 16));
      const box = { x: this.centre(column) - PILL_WIDTH / 2, y: top + STRIP - height, width: PILL_WIDTH, height, fill: colour(value), stroke: this.theme.line };
      this.svg.append(svgElement("rect", box), this.text(this.centre(column), top + STRIP - height - 4, nats(value === Infinity ? null : value), { "font-size": 11 }));
    });
  }

  // The line from one pill to the next; thick where both states are likely together.
  link(column, before, after, properties) {
    const [x1, x2] = [this.centre(column) + PILL_WIDTH / 2, this.centre(column + 1) - PILL_WIDTH / 2];
    const [y1, y2] = [this.middle(before), this.middle(after)];
    const bend = (x2 - x1) / 2;
    this.svg.append(svgElement("path", { d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, fill: "none", ...properties }));
  }

  rowOf(column, state) {
    return this.columns[column]?.findIndex((one) => one.state === state) ?? -1;
  }

  moves() {
    this.analysis.tokens.slice(0, -1).forEach((token, column) =>
      token.states.forEach((likely, row) =>
        likely.next.forEach(({ state, prob }) => {
          const joint = likely.prob * prob;
          const after = this.rowOf(column + 1, state);
          if (after < 0 || joint < 0.005) return;
          this.link(column, row, after, { stroke: this.theme.muted, "stroke-width": 0.75 + 9 * joint, opacity: 0.25 + 0.4 * joint });
        })));
  }

  path() {
    const { tokens } = this.analysis;
    tokens.slice(0, -1).forEach((token, column) =>
      this.link(column, this.rowOf(column, token.path), this.rowOf(column + 1, tokens[column + 1].path), { stroke: this.theme.accent, "stroke-width": 2.5 }));
  }

  pill(column, row, state, prob) {
    const { theme } = this;
    const named = this.named.get(state);
    const onPath = this.analysis.tokens[column].path === state;
    const share = prob ?? 0;
    const [x, y] = [this.centre(column) - PILL_WIDTH / 2, this.middle(row) - PILL_HEIGHT / 2];
    const word = named.words.length ? this.shown(named.words[0].word) : "";
    const box = { x, y, width: PILL_WIDTH, height: PILL_HEIGHT, rx: PILL_CORNER };
    const group = svgElement(
      "g",
      {
        tabindex: column === 0 && row === 0 ? 0 : -1, role: "button", class: "pill", "data-state": state, "data-column": column, "data-value": prob,
        "aria-label": `${this.shown(this.analysis.tokens[column].token)}: state ${state}, ${word}, ${prob === null ? "less likely" : `probability ${probability(prob)}`}${onPath ? ", on the likeliest path" : ""}`,
        onclick: () => this.onselect(column, state),
        onfocus: () => this.onselect(column, state),
        onpointerenter: () => this.onselect(column, state),
        onkeydown: (event) => this.key(event, column, row),
      },
      svgElement("rect", { ...box, fill: theme.panel }),
      // A bar inside the pill, short of its round corners, is its probability.
      svgElement("rect", {
        x: x + PILL_CORNER, y: y + PILL_HEIGHT - 6, width: Math.max(0.5, (PILL_WIDTH - 2 * PILL_CORNER) * share), height: 4,
        fill: theme.block(named.block), class: "share",
      }),
      svgElement("rect", {
        ...box, fill: "none", stroke: onPath ? theme.accent : theme.line, "stroke-width": onPath ? 2.5 : 1,
        "stroke-dasharray": prob === null ? "4 3" : null,
      }),
      this.text(x + 8, y + 14, `${state}`, { "text-anchor": "start", "font-size": 10, fill: theme.muted }),
      this.text(x + PILL_WIDTH - 8, y + 14, prob === null ? "path" : probability(prob), { "text-anchor": "end", "font-size": 10, fill: theme.muted }),
      this.text(x + PILL_WIDTH / 2, y + 29, shortened(word, 13), { "font-size": 11.5, "font-weight": onPath ? 650 : 450 }),
    );
    this.pills.push({ column, row, group });
    this.svg.append(group);
  }

  key(event, column, row) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const there = column + step[0];
    const rows = this.columns[there]?.length;
    if (!rows) return;
    const wanted = Math.min(rows - 1, Math.max(0, row + step[1]));
    const next = this.pills.find((pill) => pill.column === there && pill.row === wanted);
    this.pills.forEach(({ group }) => group.setAttribute("tabindex", -1));
    next.group.setAttribute("tabindex", 0);
    next.group.focus();
  }

  // P(constraint | the first t tokens) at the boundaries between tokens.
  constraint(label) {
    const { theme } = this;
    const { probs } = this.analysis.constraint;
    const top = this.top.constraint;
    label(top + STRIP - 24, "p(constraint", "| words so far)");
    const x = (t) => LEFT + t * COLUMN;
    const y = (prob) => top + STRIP - prob * (STRIP - 12);
    for (const [prob, name] of [[0, "0"], [1, "1"]]) {
      this.svg.append(
        svgElement("line", { x1: LEFT, x2: this.width - 16, y1: y(prob), y2: y(prob), stroke: theme.line, "stroke-dasharray": prob ? "2 4" : null }),
        this.text(LEFT - 3, y(prob) + 4, name, { "text-anchor": "end", "font-size": 10, fill: theme.muted }),
      );
    }
    this.svg.append(svgElement("path", { d: probs.map((prob, t) => `${t ? "L" : "M"}${x(t)} ${y(prob)}`).join(""), fill: "none", stroke: theme.accent, "stroke-width": 2 }));
    // Below the point where the axis leaves room for it.
    probs.forEach((prob, t) =>
      this.svg.append(
        svgElement("circle", { cx: x(t), cy: y(prob), r: 3.5, fill: theme.accent, class: "constraint-point", "data-value": prob }),
        this.text(x(t), y(prob) + LABEL_BELOW > top + STRIP - 6 ? y(prob) - 9 : y(prob) + LABEL_BELOW, probability(prob), {
          "font-size": 10.5, stroke: theme.panel, "stroke-width": 3, "paint-order": "stroke", "text-anchor": t === 0 ? "start" : "middle",
        }),
      ));
  }
}
