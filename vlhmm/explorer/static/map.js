// The map of states: a canvas to look at and to move about in with mouse or keys.

const MAP_MARGIN = 28;
const LABELLED_BLOCKS = 24;
const LABEL_GAP = [14, 10];

class StateMap {
  constructor(data, getTheme, onselect) {
    Object.assign(this, { data, getTheme, onselect });
    this.selected = null;
    this.hovered = null;
    this.found = new Map();
    this.view = { scale: 1, x: 0, y: 0 };
    this.canvas = element("canvas", {
      class: "map",
      tabindex: 0,
      role: "img",
      "aria-label":
        `Map of ${count(data.numKept)} states. Arrow keys go to the nearest state in a direction, plus and minus zoom, zero shows all.`,
    });
    this.tip = element("div", { class: "tip", hidden: true });
    this.element = element("div", { class: "map-box" }, this.canvas, this.tip, this.zoomButtons());
    this.listen();
    this.size = { width: 0, height: 0 };
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  zoomButtons() {
    return element(
      "div",
      { class: "zoom", role: "group", "aria-label": "Zoom" },
      button("+", () => this.zoom(1.5), { "aria-label": "Zoom in" }),
      button("−", () => this.zoom(1 / 1.5), { "aria-label": "Zoom out" }),
      button("⤢", () => this.showAll(), { "aria-label": "Show all", title: "Show all" }),
    );
  }

  place(rank) {
    const { width, height } = this.size;
    const reach = (value) => value / 2 - MAP_MARGIN;
    const positions = this.data.states.position.values;
    const { scale, x, y } = this.view;
    return [
      width / 2 + (positions[2 * rank] - x) * reach(width) * scale,
      height / 2 - (positions[2 * rank + 1] - y) * reach(height) * scale,
    ];
  }

  radius(rank) {
    const share = Math.sqrt(this.data.use(rank) / this.data.mostUsed);
    return (1.5 + 9 * share) * Math.min(3, this.view.scale ** 0.4);
  }

  // Many reasons to draw in one turn make one picture.
  draw() {
    // Read once: a size that is asked for lays the page out anew.
    this.size = { width: this.element.clientWidth, height: this.element.clientHeight };
    this.awaited ??= requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    this.awaited = undefined;
    const { width, height } = this.size;
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    this.surface = new CanvasSurface(context, this.getTheme().font);
    this.paint(this.surface);
  }

  toSvg() {
    const { width, height } = this.size;
    const surface = new SvgSurface(width, height, this.surface);
    this.paint(surface);
    return surface.svg;
  }

  paint(surface) {
    const { data } = this;
    const theme = this.getTheme();
    const { width, height } = this.size;
    const searching = this.found.size > 0;
    const colours = new Map();
    const colour = (block) => {
      if (!colours.has(block)) colours.set(block, theme.block(block));
      return colours.get(block);
    };
    // The most used first, so that small ones stay visible on large ones.
    for (let rank = 0; rank < data.numKept; rank += 1) {
      const [x, y] = this.place(rank);
      if (x < -20 || y < -20 || x > width + 20 || y > height + 20) continue;
      surface.circle(x, y, this.radius(rank), { fill: colour(data.block(rank)), alpha: searching ? 0.15 : 0.7 });
    }
    if (!searching) this.paintLabels(surface, theme, this.blockLabels(), 11);
    for (const [rank] of this.found) {
      const [x, y] = this.place(rank);
      surface.circle(x, y, this.radius(rank) + 4, { fill: colour(data.block(rank)), stroke: theme.ink, width: 2 });
    }
    this.paintLabels(surface, theme, [...this.found].map(([rank, prob]) => [rank, `${data.number(rank)} · ${probability(prob)}`]), 12);
    for (const [rank, line] of [[this.hovered, 1.5], [this.selected, 3]]) {
      if (rank === null) continue;
      const [x, y] = this.place(rank);
      surface.circle(x, y, this.radius(rank) + 3, { stroke: theme.ink, width: line });
    }
  }

  // The most used state of each block, with its words.
  blockLabels() {
    const labelled = new Set();
    const labels = [];
    for (let rank = 0; rank < this.data.numKept && labels.length < LABELLED_BLOCKS; rank += 1) {
      const block = this.data.block(rank);
      if (labelled.has(block)) continue;
      labelled.add(block);
      labels.push([rank, shortened(this.data.label(rank, 2), 22)]);
    }
    return labels;
  }

  // Above or below its state, where there is room, with a gap to the others; the first labels come first, and one without room is left out.
  paintLabels(surface, theme, labels, size) {
    const { width, height } = this.size;
    const [gapX, gapY] = LABEL_GAP;
    // The buttons, and the states that are marked.
    const taken = [[width - 44, height - 118, width, height]];
    for (const rank of [this.hovered, this.selected]) {
      if (rank === null) continue;
      const [x, y] = this.place(rank);
      const reach = this.radius(rank) + 3;
      taken.push([x - reach, y - reach, x + reach, y + reach]);
    }
    for (const [rank, text] of labels) {
      const [x, y] = this.place(rank);
      const half = surface.width(text, size, 600) / 2 + 4;
      const middle = Math.min(width - half, Math.max(half, x));
      if (x < 0 || y < 0 || x > width || y > height) continue;
      for (const top of [y - this.radius(rank) - 7 - size, y + this.radius(rank) + 3, y - this.radius(rank) - 24 - size]) {
        const box = [middle - half, top, middle + half, top + size + 4];
        const free = taken.every((other) => box[0] >= other[2] || other[0] >= box[2] || box[1] >= other[3] || other[1] >= box[3]);
        if (!free || box[1] < 0 || box[3] > height) continue;
        taken.push([box[0] - gapX, box[1] - gapY, box[2] + gapX, box[3] + gapY]);
        surface.text(middle, top + size / 2 + 2, text, { fill: theme.ink, size, weight: 600, halo: theme.panel });
        break;
      }
    }
  }

  nearest(x, y, reach) {
    let best = null;
    let least = reach;
    for (let rank = 0; rank < this.data.numKept; rank += 1) {
      const [left, top] = this.place(rank);
      const distance = Math.hypot(left - x, top - y) - this.radius(rank);
      if (distance < least) [best, least] = [rank, distance];
    }
    return best;
  }

  // The nearest state whose direction is within 45 degrees.
  beside(rank, [right, down]) {
    const [x, y] = this.place(rank);
    let best = rank;
    let least = Infinity;
    for (let other = 0; other < this.data.numKept; other += 1) {
      const [dx, dy] = this.place(other).map((value, axis) => value - [x, y][axis]);
      const along = dx * right + dy * down;
      const across = Math.abs(dx * down) + Math.abs(dy * right);
      if (along > 0.5 && across <= along && along + across < least) [best, least] = [other, along + across];
    }
    return best;
  }

  listen() {
    const { canvas } = this;
    let held = null;
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.offsetX, y: event.offsetY, view: { ...this.view }, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (held === null) return this.hover(event.offsetX, event.offsetY);
      const [dx, dy] = [event.offsetX - held.x, event.offsetY - held.y];
      held.moved ||= Math.hypot(dx, dy) > 4;
      if (!held.moved) return undefined;
      const { width, height } = this.size;
      this.view.x = held.view.x - dx / ((width / 2 - MAP_MARGIN) * this.view.scale);
      this.view.y = held.view.y + dy / ((height / 2 - MAP_MARGIN) * this.view.scale);
      return this.draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      const rank = held && !held.moved ? this.nearest(event.offsetX, event.offsetY, 12) : null;
      held = null;
      if (rank !== null) this.onselect(rank);
    });
    canvas.addEventListener("pointerleave", () => this.hover(-1e9, -1e9));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const directions = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      const direction = directions[event.key];
      if (direction) this.onselect(this.selected === null ? 0 : this.beside(this.selected, direction));
      else if (event.key === "+" || event.key === "=") this.zoom(1.5);
      else if (event.key === "-") this.zoom(1 / 1.5);
      else if (event.key === "0") this.showAll();
      else return;
      event.preventDefault();
    });
  }

  hover(x, y) {
    const rank = this.nearest(x, y, 8);
    if (rank === this.hovered) return;
    this.hovered = rank;
    this.tip.hidden = rank === null;
    if (rank !== null) {
      const [left, top] = this.place(rank);
      this.tip.replaceChildren(
        element("strong", {}, this.data.label(rank, 4)),
        element("span", {}, `state ${this.data.number(rank)}${this.data.hasBlocks ? ` · block ${this.data.block(rank)}` : ""} · ${amount(this.data.use(rank))} tokens`),
      );
      const onRight = left > this.size.width - 240;
      this.tip.style.left = `${onRight ? left - 12 : left + 12}px`;
      this.tip.style.top = `${Math.min(top + 12, this.size.height - 56)}px`;
      this.tip.style.transform = onRight ? "translateX(-100%)" : "none";
    }
    this.draw();
  }

  zoom(factor, x = this.size.width / 2, y = this.size.height / 2) {
    const { width, height } = this.size;
    const before = this.view.scale;
    const scale = Math.min(60, Math.max(0.8, before * factor));
    const shift = 1 / before - 1 / scale;
    this.view.x += ((x - width / 2) / (width / 2 - MAP_MARGIN)) * shift;
    this.view.y -= ((y - height / 2) / (height / 2 - MAP_MARGIN)) * shift;
    this.view.scale = scale;
    this.draw();
  }

  showAll() {
    this.view = { scale: 1, x: 0, y: 0 };
    this.draw();
  }

  select(rank) {
    this.selected = rank;
    if (rank !== null) {
      const [x, y] = this.place(rank);
      const { width, height } = this.size;
      const positions = this.data.states.position.values;
      if (x < 0 || y < 0 || x > width || y > height) {
        [this.view.x, this.view.y] = [positions[2 * rank], positions[2 * rank + 1]];
      }
    }
    this.draw();
  }

  highlight(found) {
    this.found = new Map(found);
    this.draw();
  }
}
