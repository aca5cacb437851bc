// The table of test samples: sorted, filtered, a page at a time.

const PAGE = 25;

function samplesFigure() {
  const home = document.getElementById("sample-table");
  if (!home) return;
  const sets = Object.keys(data.samples.sets);
  if (!sets.length) {
    home.append(create("p", {}, "Nothing is certified, so there is nothing to list."));
    return;
  }
  const clients = data.samples.sets[sets[0]].columns.findIndex((one) => one.level === "client");
  const state = {
    set: sets[0], column: Math.max(0, clients), label: "", prediction: "", only: "", least: "", sort: "sample", down: false, page: 0,
  };
  const parts = {
    columns: create("div"), count: create("p", { role: "status", "aria-live": "polite" }), body: create("tbody"),
    head: create("tr"), pages: create("div", { class: "controls" }), note: create("p", { class: "note" }),
  };
  const draw = () => showSamples(state, parts, draw);
  const set = (key) => (value) => { state[key] = value; state.page = 0; draw(); };
  const classes = [["", "any"], ...data.classes.map((name, number) => [number, name])];
  const least = create("input", {
    type: "number", min: "0", step: "any", on: { input: () => set("least")(least.value) },
  });
  const offerColumns = () => parts.columns.replaceChildren(choice("certificate and level",
    data.samples.sets[state.set].columns.map((one, number) => [number, `${one.certificate}, ${one.level}`]),
    (value) => set("column")(Number(value)), state.column));
  home.append(
    create("div", { class: "controls" },
      choice("test set", sets.map((name) => [name, name]), (value) => {
        state.column = Math.min(state.column, data.samples.sets[value].columns.length - 1);
        state.set = value;
        offerColumns();
        set("set")(value);
      }),
      parts.columns,
      choice("label", classes, set("label")),
      choice("prediction", [...classes, [-1, "abstained"]], set("prediction")),
      choice("show", [["", "all"], ["wrong", "wrong"], ["right", "right"], ["certified", "certified"],
        ["uncertified", "not certified"]], set("only")),
      labelled("radius at least", least)),
    parts.count,
    create("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Test samples" },
      create("table", { class: "samples" }, create("caption", { class: "hidden" }, "Test samples"),
        create("thead", {}, parts.head), parts.body)),
    parts.pages, parts.note);
  offerColumns();
  draw();
}

function rowsOf(state) {
  const chosen = data.samples.sets[state.set];
  const column = chosen.columns[state.column];
  return chosen.labels.map((label, sample) => ({
    sample, label, prediction: column.prediction[sample], radius: asNumber(column.radius[sample]),
  }));
}

function isShown(row, state) {
  if (state.label !== "" && row.label !== Number(state.label)) return false;
  if (state.prediction !== "" && row.prediction !== Number(state.prediction)) return false;
  if (state.only === "wrong" && row.prediction === row.label) return false;
  if (state.only === "right" && row.prediction !== row.label) return false;
  if (state.only === "certified" && row.radius === null) return false;
  if (state.only === "uncertified" && row.radius !== null) return false;
  return state.least === "" || (row.radius !== null && row.radius >= Number(state.least));
}

function sorted(rows, state) {
  const value = (row) => (row[state.sort] === null ? -1 : row[state.sort]);
  return rows.sort((one, other) => {
    const [left, right] = state.down ? [value(other), value(one)] : [value(one), value(other)];
    return left === right ? one.sample - other.sample : left < right ? -1 : 1;
  });
}

function showSamples(state, parts, draw) {
  const chosen = data.samples.sets[state.set];
  const rows = sorted(rowsOf(state).filter((row) => isShown(row, state)), state);
  const last = Math.max(0, Math.ceil(rows.length / PAGE) - 1);
  state.page = Math.min(state.page, last);
  const level = chosen.columns[state.column].level;
  parts.count.textContent = `${rows.length} of ${chosen.labels.length} samples`
    + (chosen.total > chosen.labels.length ? ` (the first of ${chosen.total}; the run's tables have all)` : "");
  heads(state, parts, level, Boolean(chosen.pictures), draw);
  parts.body.replaceChildren(...rows.slice(state.page * PAGE, (state.page + 1) * PAGE).map((row) => line(row, chosen)));
  const move = (by, text) => create("button", {
    type: "button", disabled: state.page + by < 0 || state.page + by > last,
    on: { click: () => { state.page += by; draw(); } },
  }, text);
  parts.pages.replaceChildren(move(-1, "Previous"), `page ${state.page + 1} of ${last + 1}`, move(1, "Next"));
  const few = chosen.pictures && chosen.pictures.count < chosen.labels.length;
  parts.note.textContent = data.samples.without ? `No pictures: ${data.samples.without}.`
    : few ? `Pictures of the first ${chosen.pictures.count} samples.` : "";
}

function heads(state, parts, level, pictured, draw) {
  const titles = [["sample", "sample"], ["label", "label"], ["prediction", "prediction"], ["radius", `certified: ${words.units[level]}`]];
  const focused = document.activeElement?.dataset?.sort;
  const cells = titles.map(([key, title]) => {
    const mine = state.sort === key;
    const button = create("button", { type: "button", "data-sort": key, on: { click: () => {
      state.down = mine ? !state.down : key === "radius";
      state.sort = key;
      draw();
    } } }, title, create("span", { "aria-hidden": "true" }, mine ? (state.down ? " ▼" : " ▲") : ""));
    return create("th", { scope: "col", "aria-sort": mine ? (state.down ? "descending" : "ascending") : "none" }, button);
  });
  parts.head.replaceChildren(...(pictured ? [create("th", { scope: "col" }, "input")] : []), ...cells);
  if (focused) parts.head.querySelector(`[data-sort="${focused}"]`)?.focus();
}

function line(row, chosen) {
  const wrong = row.prediction !== row.label;
  const predicted = row.prediction < 0 ? "abstained" : data.classes[row.prediction];
  return create("tr", { class: wrong ? "wrong" : null },
    chosen.pictures ? create("td", {}, picture(row.sample, chosen.pictures)) : null,
    create("td", {}, String(row.sample)),
    create("td", {}, data.classes[row.label] ?? String(row.label)),
    create("td", {}, predicted, wrong && row.prediction >= 0 ? create("span", { class: "mark" }, " wrong") : null),
    create("td", {}, row.radius === null ? "not certified" : short(row.radius)));
}

function picture(sample, pictures) {
  if (sample >= pictures.count) return "";
  const size = 40;
  const factor = size / Math.max(pictures.width, pictures.height);
  const [width, height] = [pictures.width * factor, pictures.height * factor];
  const shown = create("div", { class: "picture", role: "img", "aria-label": `input ${sample}` });
  Object.assign(shown.style, {
    width: `${width}px`, height: `${height}px`, backgroundImage: `url(${pictures.sheet})`,
    backgroundSize: `${pictures.across * width}px auto`,
    backgroundPosition: `-${(sample % pictures.across) * width}px -${Math.floor(sample / pictures.across) * height}px`,
  });
  return shown;
}
