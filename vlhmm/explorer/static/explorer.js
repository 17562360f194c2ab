// The page: a heading, four views, and one of them shown. Also a widget of anywidget, which calls `render`.

class Explorer {
  constructor(root, data, analyse) {
    this.root = root;
    this.theme = new Theme(root);
    const getTheme = () => this.theme;
    const toMap = (rank) => {
      this.open(0);
      this.views[0].select(rank);
      this.views[0].map.canvas.focus({ preventScroll: true });
    };
    // Made when they are first opened.
    this.make = [
      () => new MapView(data, getTheme),
      () => new ReadingView(data, getTheme, analyse, toMap),
      () => new TrainingView(data, getTheme),
      () => new BlocksView(data, getTheme, toMap),
    ];
    this.views = [];
    this.tabs = ["Map", "Reading", "Training", "Blocks"].map((name, place) =>
      button(name, () => this.open(place), { role: "tab", id: `vx-tab-${place}`, "aria-controls": `vx-panel-${place}` }));
    this.panels = this.tabs.map((_, place) =>
      element("div", { role: "tabpanel", id: `vx-panel-${place}`, "aria-labelledby": `vx-tab-${place}` }));
    const tablist = element("nav", { role: "tablist", "aria-label": "Views", onkeydown: (event) => this.key(event) }, this.tabs);
    root.replaceChildren(this.heading(data, tablist), element("main", {}, this.panels));
    this.open(0);
    this.dark = window.matchMedia("(prefers-color-scheme: dark)");
    this.recolour = () => {
      this.theme = new Theme(root);
      this.views.forEach((view) => view.redraw());
    };
    this.dark.addEventListener("change", this.recolour);
  }

  heading(data, tablist) {
    const facts = [
      `${count(data.num_states)} states`,
      data.hasBlocks ? `${count(data.num_blocks)} block${data.num_blocks === 1 ? "" : "s"}` : "no blocks",
      `${count(data.num_words)} words`,
      `${shortCount(data.num_parameters)} parameters`,
    ];
    return element("header", { class: "heading" }, element("div", {}, element("h1", {}, data.name), element("p", {}, facts.join(" · "))), tablist);
  }

  open(chosen) {
    this.chosen = chosen;
    this.tabs.forEach((tab, place) => {
      tab.setAttribute("aria-selected", String(place === chosen));
      tab.setAttribute("tabindex", place === chosen ? 0 : -1);
      this.panels[place].hidden = place !== chosen;
    });
    if (!this.views[chosen]) {
      this.views[chosen] = this.make[chosen]();
      this.panels[chosen].append(this.views[chosen].element);
    }
    // It may have been resized, or have got another theme, unseen.
    if (chosen === 0) this.views[0].map.draw();
  }

  key(event) {
    const next = arrowKeys(event, this.tabs.length, this.chosen, { ArrowLeft: -1, ArrowRight: 1 });
    if (next === null) return;
    event.preventDefault();
    this.open(next);
    this.tabs[next].focus();
  }

  close() {
    this.dark.removeEventListener("change", this.recolour);
  }
}

// Asks a server of the page's own origin; it may ask for a key, which is kept no longer than the page.
function askServer(path) {
  let key = null;
  return async function ask(text, constraint) {
    const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
    const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify({ text, ...(constraint && { constraint }) }) });
    const body = await answer.json().catch(() => ({}));
    if (answer.status === 401) {
      key = window.prompt("The server asks for an API key:");
      if (key) return ask(text, constraint);
    }
    if (!answer.ok) throw new Error(body.error?.message ?? `The server answered ${answer.status}.`);
    return body;
  };
}

// Asks the notebook's kernel: one message there, one back with the same number.
function askKernel(model) {
  const waiting = new Map();
  model.on("msg:custom", (message) => {
    const settle = waiting.get(message.number);
    waiting.delete(message.number);
    if (settle && message.error) settle.reject(new Error(message.error));
    else settle?.resolve(message.analysis);
  });
  return (text, constraint) =>
    new Promise((resolve, reject) => {
      const number = waiting.size + Math.random();
      waiting.set(number, { resolve, reject });
      model.send({ number, text, constraint });
    });
}

function render({ model, el }) {
  const root = element("div", { class: "vx" });
  el.append(root);
  const explorer = new Explorer(root, new ModelData(JSON.parse(model.get("data"))), askKernel(model));
  return () => explorer.close();
}

function openPage() {
  const values = JSON.parse(document.getElementById("data").textContent);
  const explorer = new Explorer(document.getElementById("explorer"), new ModelData(values), values.live ? askServer(values.live) : null);
  document.documentElement.dataset.ready = explorer.tabs.length;
}

export default { render };
