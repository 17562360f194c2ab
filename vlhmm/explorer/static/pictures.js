// Pictures: an SVG as a file, or as a PNG of twice its size.

function svgText(svg, theme) {
  const copy = svg.cloneNode(true);
  copy.setAttribute("xmlns", SVG_NAMESPACE);
  const { width, height } = svg.viewBox.baseVal;
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.setAttribute("font-family", theme.font);
  copy.prepend(svgElement("rect", { width, height, fill: theme.panel }));
  copy.querySelectorAll("[tabindex], [data-hidden]").forEach((part) => {
    part.removeAttribute("tabindex");
    if (part.hasAttribute("data-hidden")) part.remove();
  });
  return new XMLSerializer().serializeToString(copy);
}

function saveBlob(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = element("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  // The browser reads the blob after this turn.
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function savePng(text, width, height, name) {
  const url = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  const image = new Image();
  image.onload = () => {
    const canvas = element("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
    URL.revokeObjectURL(url);
    canvas.toBlob((blob) => saveBlob(blob, name), "image/png");
  };
  image.src = url;
}

// Two buttons; `makeSvg` returns the picture as it is now.
function exportButtons(name, makeSvg, getTheme) {
  const save = (kind) => () => {
    const svg = makeSvg();
    if (!svg) return;
    const text = svgText(svg, getTheme());
    const { width, height } = svg.viewBox.baseVal;
    if (kind === "svg") saveBlob(new Blob([text], { type: "image/svg+xml" }), `${name}.svg`);
    else savePng(text, width, height, `${name}.png`);
  };
  return element(
    "span",
    { class: "export", role: "group", "aria-label": "Save the picture" },
    button("SVG", save("svg"), { title: "Save the picture as SVG" }),
    button("PNG", save("png"), { title: "Save the picture as PNG" }),
  );
}

// The same strokes on a canvas, which is fast, and in an SVG, which is exact.
class CanvasSurface {
  constructor(context, font) {
    this.context = context;
    this.font = font;
  }

  circle(x, y, radius, { fill, stroke, width = 1, alpha = 1 }) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    if (fill) {
      context.fillStyle = fill;
      context.fill();
    }
    if (stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = width;
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  text(x, y, text, { fill, size, weight = 400, halo }) {
    const { context } = this;
    context.font = `${weight} ${size}px ${this.font}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineJoin = "round";
    context.strokeStyle = halo;
    context.lineWidth = 4;
    context.strokeText(text, x, y);
    context.fillStyle = fill;
    context.fillText(text, x, y);
  }

  width(text, size, weight = 400) {
    this.context.font = `${weight} ${size}px ${this.font}`;
    return this.context.measureText(text).width;
  }
}

class SvgSurface {
  constructor(width, height, measure) {
    this.svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}` });
    this.measure = measure;
  }

  circle(x, y, radius, { fill, stroke, width = 1, alpha = 1 }) {
    const round = (value) => value.toFixed(2);
    const paint = { fill: fill ?? "none", stroke, "stroke-width": stroke && width, opacity: alpha < 1 ? alpha : null };
    this.svg.append(svgElement("circle", { cx: round(x), cy: round(y), r: round(radius), ...paint }));
  }

  text(x, y, text, { fill, size, weight = 400, halo }) {
    const paint = { fill, stroke: halo, "stroke-width": 4, "stroke-linejoin": "round", "paint-order": "stroke" };
    const place = { x, y, "text-anchor": "middle", "dominant-baseline": "central" };
    this.svg.append(svgElement("text", { ...place, ...paint, "font-size": size, "font-weight": weight }, text));
  }

  width(text, size, weight) {
    return this.measure.width(text, size, weight);
  }
}
