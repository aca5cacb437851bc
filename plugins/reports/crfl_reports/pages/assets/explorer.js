// The explorer: sliders look up answers that were computed beforehand. Nothing here is a formula.

function explorerFigure() {
  const home = place("explorer");
  if (!home) return;
  const explorer = data.explorer;
  if (explorer.refused) {
    home.append(create("p", { class: "refusal" }, `There is nothing to explore: ${explorer.refused}.`));
    return;
  }
  const state = { at: explorer.axes.map((axis) => axis.own), certificate: 0, level: null, set: null };
  const parts = {
    choices: create("div", { class: "controls" }),
    without: create("p", { class: "idle note" }),
    answer: create("p", { class: "answer", role: "status", "aria-live": "polite" }),
    refusal: create("p", { class: "refusal", hidden: true }),
    area: create("div"),
    rests: create("div", { class: "rests note" }),
  };
  const draw = () => {
    showSliders(explorer, state, sliders, parts);
    showAnswer(explorer, state, parts);
  };
  const sliders = explorer.axes.map((axis, number) => slider(axis, number, state, draw));
  const back = create("button", { type: "button", on: { click: () => {
    state.at = explorer.axes.map((axis) => axis.own);
    sliders.forEach((one) => one.update());
    draw();
  } } }, "As the run assumed");
  parts.threat = create("fieldset", {}, create("legend", {}, "The threat"), ...sliders.map((one) => one.field), back);
  home.append(
    parts.choices, parts.threat, parts.without, parts.answer, parts.refusal, parts.area, parts.rests);
  offerCertificates(explorer, state, parts, draw);
  draw();
}

function slider(axis, number, state, draw) {
  const shown = create("output", {});
  const input = create("input", {
    type: "range", min: "0", max: String(axis.values.length - 1), step: "1", "data-axis": axis.key,
    on: { input: () => { state.at[number] = Number(input.value); update(); draw(); } },
  });
  const update = () => {
    input.value = String(state.at[number]);
    const text = axis.texts[state.at[number]] + (state.at[number] === axis.own ? " (the run's own)" : "");
    input.setAttribute("aria-valuetext", text);
    shown.textContent = text;
  };
  const field = labelled(axis.title, input);
  field.classList.add("slider");
  shown.setAttribute("for", input.id);
  field.append(shown);
  update();
  return { field, update };
}

// Sliders that change nothing about the chosen certificate are absent, and a sentence says so.
function showSliders(explorer, state, sliders, parts) {
  const marker = MARKERS[state.level];
  const idle = explorer.axes.filter((axis, number) => {
    const active = axis.key === marker || changesAnswers(explorer, number, state);
    sliders[number].field.hidden = !active;
    if (!active) {
      state.at[number] = axis.own;
      sliders[number].update();
    }
    return !active;
  });
  parts.threat.hidden = idle.length === explorer.axes.length;
  parts.without.hidden = !idle.length;
  parts.without.textContent = `${explorer.certificates[state.certificate]} gives the same numbers here for every value of: `
    + `${idle.map((axis) => axis.title).join(", ")}.`;
}

// Whether some answer depends on a slider, all others being equal.
function changesAnswers(explorer, number, state) {
  const counts = explorer.axes.map((axis) => axis.values.length);
  const stride = counts.slice(number + 1).reduce((one, other) => one * other, 1);
  const shown = (flat) => {
    const point = explorer.points[flat];
    return point && JSON.stringify(shownPart(explorer.answers[point[state.certificate]], state));
  };
  return explorer.points.some((point, flat) => {
    const at = Math.floor(flat / stride) % counts[number];
    if (at === 0 || !point) return false;
    const before = shown(flat - stride);
    return before && before !== shown(flat);
  });
}

function shownPart(answer, state) {
  const level = answer.levels[state.level];
  return [answer.refused, level && [level.refused, level.sets && level.sets[state.set]]];
}

function offerCertificates(explorer, state, parts, draw) {
  const names = explorer.certificates.map((name, number) => [number, name]);
  const levels = LEVEL_ORDER.filter((level) => explorer.answers.some((answer) => answer.levels[level]));
  const sets = unique(explorer.answers.flatMap((answer) =>
    Object.values(answer.levels).flatMap((level) => Object.keys(level.sets || {}))));
  [state.level, state.set] = [levels[0], sets[0]];
  const best = explorer.certificates.findIndex((_, number) => {
    const answer = answerAt(explorer, state.at, number);
    const level = answer && answer.levels[state.level];
    return level && level.sets && !level.label;
  });
  state.certificate = Math.max(0, best);
  parts.choices.append(
    choice("certificate", names, (value) => { state.certificate = Number(value); draw(); }, state.certificate));
  if (!sets.length) return; // nothing is certified anywhere
  parts.choices.append(
    choice("against", levels.map((level) => [level, words.levels[level]]), (value) => { state.level = value; draw(); }),
    choice("test set", sets.map((name) => [name, name]), (value) => { state.set = value; draw(); }));
}

function answerAt(explorer, at, certificate) {
  const flat = explorer.axes.reduce((place, axis, number) => place * axis.values.length + at[number], 0);
  const point = explorer.points[flat];
  return point && explorer.answers[point[certificate]];
}

function refusalOf(explorer, state, answer) {
  const name = explorer.certificates[state.certificate];
  if (!answer) {
    return `This was not computed within ${explorer.seconds} seconds: give crfl open a larger --explore.`;
  }
  if (answer.refused) return `${name} has no answer: ${answer.refused}.`;
  const level = answer.levels[state.level];
  if (!level) return `${name} was not asked, or does not say anything, about this: choose another under “against”.`;
  if (level.refused) return `${name} has no answer at this level: ${level.refused}.`;
  return state.set in level.sets ? "" : `${name} has no answer on this test set.`;
}

function showAnswer(explorer, state, parts) {
  const answer = answerAt(explorer, state.at, state.certificate);
  const why = refusalOf(explorer, state, answer);
  parts.refusal.hidden = !why;
  parts.area.classList.toggle("greyed", Boolean(why));
  if (why) {
    parts.refusal.textContent = why;
    parts.answer.textContent = "";
    parts.rests.replaceChildren(...(answer ? [assumptions(explorer, answer)] : []));
    const last = charts.get(parts.area);
    if (last) chart(parts.area, { ...last.spec, series: last.spec.series.map((one) => ({ ...one, colour: "faint" })) });
    return;
  }
  const level = answer.levels[state.level];
  const curve = explorer.curves[level.sets[state.set]];
  const radii = curve.radii.map(asNumber);
  const { x, text } = positions(radii);
  const marker = markerOf(explorer, state);
  const share = (counts) => counts.map((count) => count / curve.samples);
  parts.answer.replaceChildren(...sentence(explorer, state, curve, radii, marker));
  chart(parts.area, {
    title: `${explorer.certificates[state.certificate]} under this threat, ${state.set} test set`,
    xLabel: words.levels[state.level], yLabel: "share of test samples", x, xText: text, share: true, marker,
    steps: state.level === "client",
    series: [
      { name: "certified accuracy", values: share(curve.right), colour: "line-1" },
      { name: "certified rate", values: share(curve.certified), colour: "line-2", dash: true },
    ],
  });
  const name = explorer.certificates[state.certificate];
  parts.rests.replaceChildren(basisList([{ certificate: name, basis: level.basis }]), assumptions(explorer, answer));
}

// Where a slider stands on the axis of the chart: the number of attackers, or the poisoned share.
const MARKERS = { client: "clients", sample: "poison_ratio" };

function markerOf(explorer, state) {
  const key = MARKERS[state.level];
  if (!key) return null;
  const number = explorer.axes.findIndex((axis) => axis.key === key);
  return explorer.axes[number].values[state.at[number]];
}

function sentence(explorer, state, curve, radii, marker) {
  const at = radii.indexOf(marker === null ? 0 : marker);
  const right = percent(curve.right[at] / curve.samples);
  const certified = percent(curve.certified[at] / curve.samples);
  const what = marker === null ? "a radius of 0 or more" : radiusText(marker, state.level);
  return [
    create("strong", { "data-value": String(curve.right[at] / curve.samples) }, right),
    ` of ${curve.samples} predictions are right and certified against ${what}; ${certified} are certified, right or not.`,
  ];
}

function assumptions(explorer, answer) {
  const rows = answer.checks.map((number) => {
    const [name, , found, only, outcome] = explorer.checks[number];
    return [only ? `${name} (${only} only)` : name, outcome, found];
  });
  return create("details", {},
    create("summary", {}, `Assumptions: ${answer.counted}`),
    table("Assumptions under this threat", ["assumption", "outcome", "found"], rows));
}
