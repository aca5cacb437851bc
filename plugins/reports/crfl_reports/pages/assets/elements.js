// Elements, numbers and words that all parts of the page share. Text only ever becomes text, never markup.

const data = JSON.parse(document.getElementById("data").textContent);
const words = data.words;

function create(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    } else if (value !== null && value !== undefined && value !== false) {
      made.setAttribute(name, value === true ? "" : value);
    }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

let lastIdentity = 0;

// A control with its label; `control` is an input or a select.
function labelled(text, control) {
  control.id = control.id || `control-${++lastIdentity}`;
  return create("div", { class: "field" }, create("label", { for: control.id }, text), control);
}

// A select over [value, text] pairs; `changed` is called with the chosen value.
function choice(text, options, changed, chosen = null) {
  const control = create("select", { on: { change: () => changed(control.value) } });
  for (const [value, shown] of options) {
    control.append(create("option", { value, selected: String(value) === String(chosen) }, shown));
  }
  return labelled(text, control);
}

function unique(values) {
  return [...new Set(values)];
}

function percent(share) {
  if (share === null || share === undefined) return "";
  return `${(100 * share).toFixed(1).replace(/\.0$/, "")}%`;
}

function short(value) {
  if (value === null || value === undefined) return "none";
  if (value === Infinity || value === "inf") return "∞";
  return String(Number(Number(value).toPrecision(4)));
}

// A radius with its unit, as a person would say it.
function radiusText(value, level) {
  if (value === Infinity) return level === "feature" ? "any change of poisoned inputs" : level === "backdoor" ? "any trigger" : "any number";
  if (level === "client") return `${short(value)} malicious client${value === 1 ? "" : "s"}`;
  if (level === "backdoor") return `a trigger of norm ${short(value)}`;
  return level === "sample" ? `${percent(value)} poisoned samples` : `a change of ${short(value)}`;
}

function asNumber(value) {
  return value === "inf" ? Infinity : value;
}

// A table of text cells; the first cell of a row is its heading.
function table(caption, heads, rows) {
  const body = rows.map(([first, ...rest]) =>
    create("tr", {}, create("th", { scope: "row" }, first), ...rest.map((cell) => create("td", {}, cell))));
  const made = create("table", {},
    create("caption", { class: "hidden" }, caption),
    create("thead", {}, create("tr", {}, ...heads.map((head) => create("th", { scope: "col" }, head)))),
    create("tbody", {}, ...body));
  return create("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
}

// Text with terms in it: a term is a pair of its text and its key in the glossary.
function rich(parts) {
  return parts.map((part) => (typeof part === "string" ? part : create("a", {
    class: "term", href: `#term-${part[1].replaceAll(" ", "-")}`, "data-term": part[1],
  }, part[0])));
}

// What the numbers of some curves rest on, once for those that rest on the same.
function basisList(curves) {
  const lines = new Map(curves.map((one) => [JSON.stringify([one.certificate, one.basis]), one]));
  return create("ul", { class: "basis" }, ...[...lines.values()].map((one) =>
    create("li", {}, create("b", {}, one.certificate), ": ", ...rich(one.basis))));
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
