// Tables whose cells are coloured by their numbers. One cell at a time is read out: the one under the pointer, or the
// one that arrow keys go to.

const grids = new Set();
const CROWDED = 16;  // with more columns than these, cells have a colour and no number
const LETTERS = 4;  // longer names of more columns than these stand upright
const WIDEST = 16;  // letters of the names of rows that a crowded grid has room for
const FAINTEST = 0.08;

// Draw a grid in a container.
// `spec`: title, rows, columns, rowLabel, columnLabel, empty (what a cell without a number means), totals (of columns),
// measures [{name, unit, ends, values[row][column], low, high, counts}].
function grid(container, spec) {
  const drawn = { spec, chosen: 0, at: [0, 0], figure: create("figure") };
  if (spec.measures.length > 1) {
    const options = spec.measures.map((measure, number) => [number, measure.name]);
    const changed = (value) => { drawn.chosen = Number(value); renderGrid(drawn); };
    container.append(create("div", { class: "controls" }, choice("shown in the cells", options, changed)));
  }
  container.append(drawn.figure);
  grids.add(drawn);
  renderGrid(drawn);
}

function renderGrid(drawn) {
  const { figure, spec } = drawn;
  const open = figure.querySelector("details")?.open || false;
  const shown = onPaper ? spec.measures : [spec.measures[drawn.chosen]];
  const numbers = create("details", { class: "numbers" }, create("summary", {}, "The numbers"), gridNumbers(spec));
  numbers.open = open;
  figure.replaceChildren(...shown.flatMap((measure) => measureParts(drawn, measure)), numbers);
}

// A caption, the cells, the meaning of their colours, and a line that reads the cell that is looked at.
function measureParts(drawn, measure) {
  const { spec } = drawn;
  const title = [measureTitle(measure), spec.title].filter(Boolean).join(": ");
  const reading = create("p", { class: "reading" });
  const body = create("tbody", {}, ...spec.rows.map((name, row) => create("tr", {},
    create("th", { scope: "row" }, name),
    ...spec.columns.map((_, column) => gridCell(drawn, measure, row, column)))));
  const crowded = spec.columns.length > CROWDED;
  const upright = !crowded && spec.columns.length > LETTERS && spec.columns.some((name) => name.length > LETTERS);
  const kind = ["grid", crowded ? "crowded" : "", upright ? "upright" : ""].filter(Boolean).join(" ");
  const made = create("table", { class: kind, role: "grid" },
    create("caption", { class: "hidden" }, `${title}. ${spec.rowLabel} by ${spec.columnLabel}. Arrow keys read the cells.`),
    create("thead", {},
      create("tr", {},
        create("th", { scope: "col", rowspan: 2, class: "corner" }, `${spec.rowLabel} ↓`),
        create("th", { scope: "colgroup", colspan: spec.columns.length, class: "across" }, `${spec.columnLabel} →`)),
      create("tr", {}, ...spec.columns.map((name) => create("th", { scope: "col" }, create("span", {}, name))))),
    body);
  const longest = Math.max(...[spec.rowLabel, ...spec.rows].map((name) => name.length));
  made.style.setProperty("--names", `${Math.min(longest + 3, WIDEST)}ch`);
  for (const event of ["mouseover", "focusin"]) {
    made.addEventListener(event, ({ target }) => {
      const cell = target.closest("td");
      if (cell) reading.textContent = cell.getAttribute("aria-label");
    });
  }
  made.addEventListener("focusin", ({ target }) => visit(drawn, made, target.closest("td")));
  made.addEventListener("keydown", (event) => move(event, drawn, made));
  return [
    create("figcaption", {}, title),
    create("div", { class: "scroll" }, made), scale(measure), reading,
  ];
}

function measureTitle(measure) {
  return measure.name === measure.unit ? "" : `${measure.name}, ${measure.unit}`;
}

function gridCell(drawn, measure, row, column) {
  const value = measure.values[row][column];
  const mine = drawn.at[0] === row && drawn.at[1] === column;
  const cell = create("td", {
    tabindex: mine ? "0" : "-1", "data-row": row, "data-column": column,
    "aria-label": sentenceOf(drawn.spec, measure, row, column),
  }, drawn.spec.columns.length > CROWDED ? "" : bare(measure, value));
  if (value !== null) {
    const [low, high] = measure.ends;
    const share = (value - low) / (high - low || 1);
    const shade = mixed(value === 0 ? 0 : FAINTEST + (1 - FAINTEST) * share);
    cell.style.backgroundColor = `rgb(${shade.join(", ")})`;
    cell.style.color = brightness(shade) > 0.179 ? "#000000" : "#ffffff";  // whichever contrasts more
  }
  return cell;
}

// A number in a cell, whose unit stands above.
function bare(measure, value) {
  if (value === null) return "";
  return measure.unit === "percent" ? value.toFixed(1).replace(/\.0$/, "") : short(value);
}

function full(measure, value) {
  return measure.unit === "percent" ? `${bare(measure, value)}%` : bare(measure, value);
}

function sentenceOf(spec, measure, row, column) {
  const where = `${spec.rowLabel} ${spec.rows[row]}, ${spec.columnLabel} ${spec.columns[column]}`;
  const value = measure.values[row][column];
  if (value === null) return `${where}: ${spec.empty}`;
  if (!measure.counts) return `${where}: ${full(measure, value)} ${measure.unit}`;
  const count = measure.counts[row][column];
  const range = `mean of ${count} runs, from ${full(measure, measure.low[row][column])} to `
    + full(measure, measure.high[row][column]);
  return `${where}: ${measure.name} ${full(measure, value)} (${count > 1 ? range : "one run"})`;
}

// The cell that the tabulator key comes back to.
function visit(drawn, made, cell) {
  if (!cell) return;
  made.querySelector('td[tabindex="0"]')?.setAttribute("tabindex", "-1");
  cell.setAttribute("tabindex", "0");
  drawn.at = [Number(cell.dataset.row), Number(cell.dataset.column)];
}

function move(event, drawn, made) {
  const [row, column] = drawn.at;
  const [bottom, right] = [drawn.spec.rows.length - 1, drawn.spec.columns.length - 1];
  const places = {
    ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
    Home: [event.ctrlKey ? 0 : row, 0], End: [event.ctrlKey ? bottom : row, right],
  };
  if (!(event.key in places)) return;
  event.preventDefault();
  const [down, across] = places[event.key];
  const to = [Math.min(bottom, Math.max(0, down)), Math.min(right, Math.max(0, across))];
  made.querySelector(`td[data-row="${to[0]}"][data-column="${to[1]}"]`).focus();
}

function scale(measure) {
  const ramp = create("span", { class: "ramp" });
  const stops = [0, 0.25, 0.5, 0.75, 1].map((share) => `rgb(${mixed(share).join(", ")})`);
  ramp.style.backgroundImage = `linear-gradient(to right, ${stops.join(", ")})`;
  const [low, high] = measure.ends.map((end) => full(measure, end));
  return create("div", { class: "scale", "aria-hidden": "true" }, create("span", {}, low), ramp, create("span", {}, high));
}

// The colour of a share, from that of panels to that of accents, as red, green and blue.
function mixed(share) {
  const [from, to] = ["panel", "accent"].map((name) => colour(name).match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16)));
  return from.map((start, at) => Math.round(start + (to[at] - start) * share));
}

// Relative luminance, as WCAG 2.2 defines it; 0.179 is as far from black as from white.
function brightness(shade) {
  const [red, green, blue] = shade.map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

// All cells with their spread, or one row for every column of the grid.
function gridNumbers(spec) {
  if (!spec.measures[0].counts) {
    const [{ values }] = spec.measures;
    const rows = spec.columns.map((name, column) => [
      name, ...(spec.totals ? [short(spec.totals[column])] : []),
      ...spec.rows.map((_, row) => (values[row][column] === null ? "" : short(values[row][column]))),
    ]);
    return table(spec.title, [spec.columnLabel, ...(spec.totals ? ["together"] : []), ...spec.rows], rows);
  }
  const rows = spec.measures.flatMap((measure) => measure.values.flatMap((line, row) => line.map((value, column) => {
    const told = value === null ? [spec.empty, "", "", "0"]
      : [value, measure.low[row][column], measure.high[row][column]].map((one) => full(measure, one))
        .concat(String(measure.counts[row][column]));
    return [spec.rows[row], spec.columns[column], measure.name, ...told];
  })));
  return table(spec.title, [spec.rowLabel, spec.columnLabel, "measure", "mean", "smallest", "largest", "runs"], rows);
}
