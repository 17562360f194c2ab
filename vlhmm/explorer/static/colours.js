// Colours as hexadecimal sRGB, which exported pictures need; made in OKLCH, where equal steps look equal.

function oklch(lightness, chroma, degrees) {
  const angle = (degrees * Math.PI) / 180;
  const [a, b] = [chroma * Math.cos(angle), chroma * Math.sin(angle)];
  const long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
    -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
    -0.0041960863 * long - 0.7034186147 * middle + 1.707614701 * short,
  ];
  const hex = linear.map((value) => {
    const encoded = value <= 0.0031308 ? 12.92 * value : 1.055 * value ** (1 / 2.4) - 0.055;
    return Math.round(255 * Math.min(1, Math.max(0, encoded))).toString(16).padStart(2, "0");
  });
  return `#${hex.join("")}`;
}

const FULL_SURPRISAL = 12;

// The colours of one theme, read from the style sheet.
class Theme {
  constructor(root) {
    const style = getComputedStyle(root);
    const named = (name) => style.getPropertyValue(`--${name}`).trim();
    this.dark = named("theme") === "dark";
    for (const name of ["ink", "muted", "faint", "line", "panel", "page", "accent", "accent-soft"]) this[name] = named(name);
    this.font = style.fontFamily;
  }

  // Neighbouring numbers get distant hues; they stand beside the numbers, never alone.
  block(number) {
    const hue = (number * 137.508 + 40) % 360;
    const step = number % 3;
    return this.dark ? oklch(0.66 + 0.07 * step, 0.13, hue) : oklch(0.5 + 0.07 * step, 0.14, hue);
  }

  // From the panel's own colour to a strong one, at FULL_SURPRISAL nats.
  surprisal(value) {
    const share = Math.sqrt(Math.min(1, Math.max(0, value) / FULL_SURPRISAL));
    const hue = 85 - 50 * share;
    return this.dark ? oklch(0.27 + 0.25 * share, 0.015 + 0.125 * share, hue) : oklch(0.975 - 0.28 * share, 0.008 + 0.13 * share, hue);
  }
}
