// The view "Training": learning curve, and the perplexities of baselines on the same text.

const CHART = { width: 860, height: 420, left: 64, right: 190, top: 28, bottom: 48 };

class TrainingView {
  constructor(data, getTheme) {
    Object.assign(this, { data, getTheme });
    this.element = element("div", { class: "training-view" });
    this.redraw();
  }

  redraw() {
    const { training } = this.data;
    if (!training) {
      this.element.replaceChildren(element("p", { class: "empty" }, "The folder of this model holds no log of a training run, so there is no learning curve to show."));
      return;
    }
    this.svg = this.chart(training);
    this.element.replaceChildren(
      element("div", { class: "bar-row" }, element("h3", {}, "Learning curve"), exportButtons(`${this.data.name}-training`, () => this.svg, this.getTheme)),
      element("div", { class: "split" }, element("div", { class: "scroll" }, this.svg), element("div", {}, this.table(training.summary.perplexity), this.figures(training.summary))),
    );
  }

  baselines(summary) {
    return Object.entries(summary.perplexity ?? {})
      .filter(([name, splits]) => name !== "HMM" && typeof splits.valid === "number")
      .map(([name, splits]) => ({ name, value: splits.valid }));
  }

  chart({ summary, steps, checks }) {
    const theme = this.getTheme();
    const { width, height, left, right, top, bottom } = CHART;
    const curves = [...steps, ...checks].filter(({ perplexity }) => perplexity > 0);
    const lowest = Math.min(...curves.map(({ perplexity }) => perplexity));
    const highest = Math.max(...curves.map(({ perplexity }) => perplexity));
    // A baseline far from the curves would flatten them; the table has it.
    const baselines = this.baselines(summary).filter(({ value }) => value > lowest / 3 && value < highest * 1.5);
    const all = [...curves.map(({ perplexity }) => perplexity), ...baselines.map(({ value }) => value)];
    const [low, high] = [Math.log(Math.min(...all) * 0.9), Math.log(Math.max(...all) * 1.1)];
    const most = Math.max(...curves.map(({ tokens }) => tokens), 1);
    const x = (tokens) => left + (tokens / most) * (width - left - right);
    const y = (perplexity) => top + ((high - Math.log(perplexity)) / (high - low)) * (height - top - bottom);
    const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "chart", role: "img", "aria-label": "Perplexity against tokens seen in training" });
    const text = (px, py, words, properties) => svg.append(svgElement("text", { x: px, y: py, fill: theme.muted, "font-size": 12, ...properties }, words));
    for (const tick of logTicks(Math.exp(low), Math.exp(high))) {
      svg.append(svgElement("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), stroke: theme.line }));
      text(left - 8, y(tick) + 4, count(tick), { "text-anchor": "end" });
    }
    for (const tick of linearTicks(most)) text(x(tick), height - bottom + 20, shortCount(tick), { "text-anchor": "middle" });
    text(left + (width - left - right) / 2, height - 8, "tokens seen in training", { "text-anchor": "middle" });
    text(0, 12, "perplexity, log scale");
    const line = (points, properties) =>
      svg.append(svgElement("path", { d: points.map(({ tokens, perplexity }, at) => `${at ? "L" : "M"}${x(tokens).toFixed(1)} ${y(perplexity).toFixed(1)}`).join(""), fill: "none", ...properties }));
    baselines.forEach(({ value }) => svg.append(svgElement("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: theme.muted, "stroke-dasharray": "6 4" })));
    line(steps, { stroke: theme.faint, "stroke-width": 1.5 });
    line(checks, { stroke: theme.accent, "stroke-width": 2.5 });
    checks.forEach(({ tokens, perplexity }) => svg.append(svgElement("circle", { cx: x(tokens), cy: y(perplexity), r: 3.5, fill: theme.accent, class: "check", "data-value": perplexity })));
    const labels = baselines.map(({ name, value }) => ({ words: `${name} ${fixed(value, 1)}`, at: y(value), fill: theme.muted }));
    if (checks.length) labels.push({ words: `validation ${fixed(checks.at(-1).perplexity, 1)}`, at: y(checks.at(-1).perplexity), fill: theme.accent, weight: 650 });
    if (steps.length) labels.push({ words: `training ${fixed(steps.at(-1).perplexity, 1)}`, at: y(steps.at(-1).perplexity), fill: theme.muted });
    for (const { words, at, fill, weight } of apart(labels, 17)) text(width - right + 10, at + 4, words, { fill, "font-weight": weight });
    return svg;
  }

  figures(summary) {
    const run = summary.run ?? summary;
    const figure = (name, value) => (value === null || value === undefined ? null : element("div", {}, element("dt", {}, name), element("dd", {}, value)));
    return element(
      "dl",
      { class: "figures" },
      figure("steps", `${count(summary.step)} of ${count(summary.num_steps)}`),
      figure("tokens", count(summary.tokens)),
      figure("best validation", `${fixed(summary.best_valid_perplexity, 1)} at step ${count(summary.best_step)}`),
      figure("time", typeof run.train_seconds === "number" ? `${count(run.train_seconds)} s` : null),
      figure("device", run.device),
    );
  }

  table(perplexity) {
    if (!perplexity) return element("p", { class: "hint" }, "The run left no results, so baselines are unknown.");
    const splits = [...new Set(Object.values(perplexity).flatMap((of) => Object.keys(of)))];
    const rows = Object.entries(perplexity).map(([name, of]) =>
      element("tr", { class: name === "HMM" ? "best" : null }, element("th", { scope: "row" }, name === "HMM" ? `HMM, ${count(this.data.num_states)} states` : name),
        splits.map((split) => element("td", { "data-value": of[split] }, typeof of[split] === "number" ? fixed(of[split], 1) : "–"))));
    return element("table", {}, element("caption", {}, "Perplexity on held-out text"),
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "model"), splits.map((split) => element("th", { scope: "col" }, split)))), element("tbody", {}, rows));
  }
}

function logTicks(low, high) {
  const every = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const digit of [1, 1.5, 2, 3, 4, 5, 7]) every.push(digit * 10 ** power);
  }
  const inside = every.filter((tick) => tick >= low && tick <= high);
  return inside.length > 9 ? inside.filter((tick) => [1, 2, 5].includes(Number(tick.toExponential(0)[0]))) : inside;
}

function linearTicks(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  const step = [0.1, 0.2, 0.25, 0.5, 1].map((share) => share * power * 2).find((one) => most / one <= 6) ?? 2 * power;
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, number) => number * step);
}

function shortCount(value) {
  if (value >= 1e6) return `${Number((value / 1e6).toFixed(2))}M`;
  return value >= 1e3 ? `${Number((value / 1e3).toFixed(1))}k` : String(value);
}

// Moves labels down as far as they need to stand `gap` apart.
function apart(labels, gap) {
  const sorted = [...labels].sort((one, other) => one.at - other.at);
  sorted.forEach((label, place) => {
    if (place && label.at < sorted[place - 1].at + gap) label.at = sorted[place - 1].at + gap;
  });
  return sorted;
}
