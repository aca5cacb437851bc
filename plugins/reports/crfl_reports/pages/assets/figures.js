// The figures of one run: certified shares, rounds and weights; and those that runs of any number share.

const LEVEL_ORDER = ["client", "sample", "feature", "backdoor"];
const MEASURES = [["accuracy", "certified accuracy: right and certified"], ["rate", "certified rate: certified, right or not"]];

function place(name) {
  return document.getElementById(`figure-${name}`);
}

function lineColour(index) {
  return `line-${(index % 6) + 1}`;
}

function curvesFigure() {
  const home = place("curves");
  if (!home) return;
  if (!data.curves.length) {
    home.append(create("p", {}, "Nothing is certified: the audit says why."));
    return;
  }
  const levels = LEVEL_ORDER.filter((level) => data.curves.some((curve) => curve.level === level));
  const sets = unique(data.curves.map((curve) => curve.set));
  const state = { level: levels[0], set: sets[0], measure: "accuracy" };
  const area = create("div");
  const notes = create("div", { class: "note" });
  const draw = () => drawCurves(area, notes, state);
  const set = (key) => (value) => { state[key] = value; draw(); };
  home.append(
    create("div", { class: "controls" },
      choice("against", levels.map((level) => [level, words.levels[level]]), set("level"), state.level),
      choice("test set", sets.map((name) => [name, name]), set("set"), state.set),
      choice("share", MEASURES, set("measure"), state.measure)),
    area, notes);
  draw();
}

function drawCurves(area, notes, state) {
  const shown = data.curves.filter((curve) => curve.level === state.level && curve.set === state.set);
  const radii = unique(shown.flatMap((curve) => curve.radii.map(asNumber))).sort((a, b) => a - b);
  const { x, text } = positions(radii);
  const spread = (curve, values) => radii.map((radius) => {
    const at = curve.radii.map(asNumber).indexOf(radius);
    return at < 0 || !values.length ? null : values[at];
  });
  const series = [];
  shown.forEach((curve, index) => {
    const name = `${curve.certificate}${curve.label ? ` (${curve.label})` : ""}`;
    const stated = curve[state.measure];
    const anyRound = curve.any_round[state.measure];
    const same = anyRound.length && stated.every((value, at) => value === anyRound[at]);
    const when = same ? curve.any_round.name : curve.rounds;
    series.push({ name: [name, when].filter(Boolean).join(", "), values: spread(curve, stated), colour: lineColour(index) });
    if (anyRound.length && !same) {
      series.push({
        name: `${name}, ${curve.any_round.name}`, values: spread(curve, anyRound), colour: lineColour(index), dash: true,
      });
    }
  });
  chart(area, {
    title: `Certified ${state.measure} on the ${state.set} test set`, xLabel: words.levels[state.level],
    yLabel: "share of test samples", x, xText: text, share: true, steps: state.level === "client", series,
  });
  notes.replaceChildren(basisList(shown));
}

function roundsFigure() {
  const home = place("rounds");
  if (!home || !data.rounds) return;
  const rounds = data.rounds;
  const series = [{ name: "accuracy, clean", values: rounds.accuracy, colour: "line-1", points: false }];
  if (rounds.success_rate.some((value) => value !== null)) {
    series.push({ name: "backdoor success", values: rounds.success_rate, colour: "line-2", points: false });
  }
  const whose = rounds.models > 1 ? `the models of ${rounds.models} groups, their mean` : "the global model";
  chart(home, {
    title: `Accuracy of ${whose}, after every round`, xLabel: "round", yLabel: "share of test samples",
    x: rounds.round, share: true, series,
    marked: rounds.attacked.length ? { name: "attacked rounds", places: rounds.attacked } : null,
  });
  if (rounds.rejected.length) {
    home.append(create("p", { class: "note" }, `Rejected rounds: ${rounds.rejected.join(", ")}.`));
  }
}

function weightsFigure() {
  const home = place("weights");
  if (!home) return;
  const weights = data.weights;
  const series = [{
    name: "honest clients: median, and from the least to the largest", values: weights.middle, colour: "line-1",
    band: [weights.low, weights.high], points: false,
  }];
  weights.attackers.forEach((attacker, index) => {
    const shade = lineColour(index + 1);
    series.push({ name: `${attacker.name}, an attacker`, values: attacker.weight, colour: shade, points: false, dash: true });
    const marked = weights.round.map((round, at) => (attacker.attacked.includes(round) ? attacker.weight[at] : null));
    series.push({ name: `${attacker.name} attacks`, values: marked, colour: shade, line: false });
  });
  chart(home, {
    title: "Weights p of the clients' updates in the global model", xLabel: "round", yLabel: "weight",
    x: weights.round, series,
  });
  if (weights.more) home.append(create("p", { class: "note" }, `${weights.more} further attackers are not drawn.`));
}

// Figures that came as panels of lines, or as tables of numbers.
function shownFigures() {
  for (const [name, found] of Object.entries(data.shown)) {
    const home = place(name);
    if (found.measures) grid(home, found);
    else for (const panel of found.panels) panelFigure(home, panel, found);
  }
}

function panelFigure(home, panel, { title, marked }) {
  const area = create("div");
  home.append(area);
  chart(area, {
    title: [panel.yLabel, title].filter(Boolean).join("; "), xLabel: panel.xLabel, yLabel: panel.yLabel,
    x: panel.x, share: panel.share, log: panel.log, steps: panel.steps,
    marked: panel.marked.length ? { name: marked, places: panel.marked } : null,
    series: panel.lines.map((line) => ({ ...line, colour: lineColour(line.number), dash: line.number >= 6, points: false })),
  });
}
