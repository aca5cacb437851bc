// Line charts: uPlot on a canvas, and beside it the same numbers as a table, for keyboards and screen readers.

const charts = new Map();
const HEIGHT = 300;
const NARROW = 520;
const TICK = 64;  // pixels for a number below the axis
const LONGEST = 30;  // letters of a name beside the vertical axis; longer ones stand above only
const PAPER = 640;
const WHOLE = [1, 2, 5].flatMap((factor) => [1, 10, 100, 1e3, 1e4, 1e5].map((ten) => factor * ten)).sort((a, b) => a - b);
let onPaper = false;

// Draw, or draw again, a chart in a container.
// `spec`: title, xLabel, yLabel, x (numbers), xText (number to text), share (y is a share of samples), log (of y),
// steps (between two x the value of the larger one holds), marker (an x), marked {name, places} (whole numbers of x), series [{name, values, colour, dash, points, line,
// band: [low, high]}].
function chart(container, spec) {
  let drawn = charts.get(container);
  if (!drawn) {
    drawn = { figure: create("figure"), plot: null };
    container.append(drawn.figure);
    charts.set(container, drawn);
    new ResizeObserver(() => fit(drawn)).observe(container);
  }
  drawn.spec = spec;
  render(drawn);
}

function fit(drawn) {
  const width = drawn.figure.clientWidth;
  if (drawn.plot && width && width !== drawn.width && !onPaper) render(drawn);
}

function render(drawn) {
  const { figure, spec } = drawn;
  const open = figure.querySelector("details")?.open || false;
  drawn.plot?.destroy();
  figure.replaceChildren();
  const area = create("div", {
    class: "plot", tabindex: "0", role: "img",
    "aria-label": `${spec.title}. ${spec.series.length === 1 ? "One line" : `${spec.series.length} lines`} over ${spec.xLabel}. Arrow keys read points; the numbers `
      + "are in the table below.",
  });
  const reading = create("p", { class: "reading", "aria-live": "polite" });
  const legend = create("ul", { class: "legend" }, ...spec.series.map((one) => legendItem(one)),
    spec.marked ? create("li", {}, create("span", { class: "sign stripe", "aria-hidden": "true" }), spec.marked.name) : null);
  const numbers = create("details", { class: "numbers" }, create("summary", {}, "The numbers"), numbersOf(spec));
  numbers.open = open;
  figure.append(create("figcaption", {}, spec.title), legend, area, reading, numbers);
  drawn.width = figure.clientWidth;
  const width = onPaper ? PAPER : Math.max(240, drawn.width);
  drawn.plot = new uPlot(options(spec, width, reading), aligned(spec), area);
  area.addEventListener("keydown", (event) => step(event, drawn.plot, spec, reading));
}

function legendItem(one) {
  const sign = create("span", { class: "sign", "aria-hidden": "true" });
  sign.style.borderTopColor = colour(one.colour);
  sign.style.borderTopStyle = one.dash ? "dashed" : "solid";
  if (one.line === false) {
    sign.style.borderTopStyle = "none";
    sign.style.backgroundColor = colour(one.colour);
    sign.classList.add("dot");
  }
  return create("li", {}, sign, one.name);
}

function aligned(spec) {
  const rows = [spec.x];
  for (const one of spec.series) {
    rows.push(one.values);
    if (one.band) rows.push(one.band[1], one.band[0]);
  }
  return rows;
}

function options(spec, width, reading) {
  const series = [{}];
  const bands = [];
  for (const one of spec.series) {
    const stroke = colour(one.colour);
    series.push({
      label: one.name, stroke, width: one.line === false ? 0 : 2, dash: one.dash ? [6, 4] : [], spanGaps: true,
      paths: one.line === false ? () => null : spec.steps ? uPlot.paths.stepped({ align: -1 }) : undefined,
      points: { show: one.points !== false || known(one.values) < 3, size: one.line === false ? 8 : 5, stroke, fill: stroke },
    });
    if (one.band) {
      bands.push({ series: [series.length, series.length + 1], fill: `${stroke}33` });
      for (const edge of ["largest", "smallest"]) {
        series.push({
          label: `${one.name}, ${edge}`, stroke: `${stroke}66`, width: 1, points: { show: false },
          paths: spec.steps ? uPlot.paths.stepped({ align: -1 }) : undefined,
        });
      }
    }
  }
  return {
    width, height: width < NARROW ? 240 : HEIGHT, series, bands, legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { size: 8 } },
    scales: { x: { time: false, range: (u, low, high) => padded(low, high) }, y: yScale(spec) },
    axes: [xAxis(spec, width), yAxis(spec, width)],
    hooks: {
      drawClear: [(u) => drawStripes(u, spec)],
      draw: [(u) => drawMarker(u, spec)],
      setCursor: [(u) => { if (u.cursor.idx !== null && u.cursor.idx !== undefined) read(spec, u.cursor.idx, reading); }],
    },
  };
}

function known(values) {
  return values.filter((value) => value !== null && value !== undefined).length;
}

function padded(low, high) {
  const pad = (high - low || 1) * 0.02;
  return [low - pad, high + pad];
}

function yScale(spec) {
  if (spec.share) return { range: [0, 1.02] };
  if (spec.log) return { distr: 3 };
  return { range: (u, low, high) => (low === null ? [0, 1] : [Math.min(0, low), high > low ? high * 1.05 : high + 1]) };
}

function xAxis(spec, width) {
  const splits = spec.xText ? () => apart(spec.x, width / TICK) : undefined;
  const values = spec.xText ? (u, shown) => shown.map(spec.xText) : undefined;
  const incrs = spec.x.every(Number.isInteger) ? WHOLE : undefined;
  return { ...axisLook(), label: spec.xLabel, labelSize: 22, size: 34, splits, values, incrs };
}

// Those of rising numbers that can be written below an axis with room for `most` of them; the last always.
function apart(numbers, most) {
  const last = numbers[numbers.length - 1];
  const gap = (last - numbers[0]) / most;
  const shown = [];
  for (const value of numbers) {
    if ((shown.length === 0 || value - shown[shown.length - 1] >= gap) && last - value >= gap) shown.push(value);
  }
  return [...shown, last];
}

function yAxis(spec, width) {
  const values = spec.share ? (u, shown) => shown.map((value) => percent(value)) : undefined;
  const fits = width >= NARROW && spec.yLabel.length <= LONGEST;
  return { ...axisLook(), label: fits ? spec.yLabel : undefined, labelSize: 20, size: 56, values };
}

function axisLook() {
  const font = "12px system-ui, sans-serif";
  return {
    stroke: colour("text"), font, labelFont: font,
    grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 },
  };
}

// Below the lines, a stripe at every marked place.
function drawStripes(u, spec) {
  for (const at of spec.marked?.places || []) {
    const [left, right] = [at - 0.5, at + 0.5].map((edge) => u.valToPos(edge, "x", true));
    const begin = Math.max(left, u.bbox.left);
    u.ctx.fillStyle = `${colour("faint")}55`;
    u.ctx.fillRect(begin, u.bbox.top, Math.min(right, u.bbox.left + u.bbox.width) - begin, u.bbox.height);
  }
}

function drawMarker(u, spec) {
  if (spec.marker === null || spec.marker === undefined) return;
  const left = u.valToPos(spec.marker, "x", true);
  const context = u.ctx;
  context.save();
  context.strokeStyle = colour("text");
  context.setLineDash([4, 4]);
  context.lineWidth = 1.5 * devicePixelRatio;
  context.beginPath();
  context.moveTo(left, u.bbox.top);
  context.lineTo(left, u.bbox.top + u.bbox.height);
  context.stroke();
  context.restore();
}

function xName(spec, place) {
  return spec.xText ? spec.xText(spec.x[place]) : short(spec.x[place]);
}

function yText(spec, value) {
  return spec.share ? percent(value) : short(value);
}

function read(spec, place, reading) {
  const told = spec.series
    .filter((one) => one.values[place] !== null && one.values[place] !== undefined)
    .map((one) => `${one.name} ${yText(spec, one.values[place])}`);
  reading.textContent = told.length ? `${spec.xLabel} ${xName(spec, place)}: ${told.join(", ")}` : "";
}

function step(event, plot, spec, reading) {
  const moves = { ArrowLeft: -1, ArrowRight: 1 };
  const last = spec.x.length - 1;
  const now = plot.cursor.idx ?? -1;
  let next = null;
  if (event.key in moves) next = Math.min(last, Math.max(0, now + moves[event.key]));
  if (event.key === "Home") next = 0;
  if (event.key === "End") next = last;
  if (next === null) return;
  event.preventDefault();
  const first = spec.series.find((one) => one.values[next] !== null && one.values[next] !== undefined);
  plot.setCursor({
    left: plot.valToPos(spec.x[next], "x"), top: first ? plot.valToPos(first.values[next], "y") : 0,
  });
  read(spec, next, reading);
}

function numbersOf(spec) {
  const heads = [spec.xLabel, ...spec.series.flatMap((one) =>
    (one.band ? [one.name, `${one.name}, smallest`, `${one.name}, largest`] : [one.name]))];
  const digits = (value) => {
    if (value === null || value === undefined) return "";
    return spec.share ? value.toFixed(3) : short(value);
  };
  const rows = spec.x.map((value, place) => [
    xName(spec, place),
    ...spec.series.flatMap((one) =>
      [one.values[place], ...(one.band ? [one.band[0][place], one.band[1][place]] : [])].map(digits)),
  ]);
  return table(spec.title, heads, rows);
}

// Radii as positions on an axis: infinity comes behind the last number.
function positions(radii) {
  const finite = radii.filter((value) => value !== Infinity);
  const last = finite.length ? finite[finite.length - 1] : 0;
  const gap = finite.length > 1 ? finite[finite.length - 1] - finite[finite.length - 2] : 1;
  const places = new Map(radii.map((value) => [value === Infinity ? last + gap : value, value]));
  return { x: [...places.keys()], text: (place) => short(places.has(place) ? places.get(place) : place) };
}

function redrawAll() {
  for (const drawn of charts.values()) render(drawn);
  for (const drawn of grids) renderGrid(drawn);
}

