(() => {
  const all = (query, inside = document) => [...inside.querySelectorAll(query)];
  const make = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };

  // ---- the data: as records/page_data.py wrote it -------------------------------------------------------------
  let documents = null;
  const data = () => (documents ??= read(JSON.parse(document.getElementById("modelscope-data").textContent)));

  // For whoever asks the page something by hand: await modelscope.data()
  globalThis.modelscope = { data };

  async function read(held) {
    if (Array.isArray(held)) return held;
    const bytes = Uint8Array.from(atob(held.gzip), (mark) => mark.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  // ---- tables: filter, open; sort.js sorts them ------------------------------------------------------------------------------
  function filter(name) {
    const table = document.getElementById(name);
    const box = document.querySelector(`.filter[data-for="${name}"]`);
    const only = document.querySelector(`.only[data-for="${name}"]`);
    let wanted = null;
    try {
      wanted = new RegExp(box.value, "i");
      box.removeAttribute("aria-invalid");
    } catch {
      box.setAttribute("aria-invalid", "true");
    }
    let shown = 0;
    const rows = rowsOf(table);
    for (const row of rows) {
      const fits = (!wanted || wanted.test(row.cells[0].textContent) || wanted.test(row.textContent)) && (!only?.checked || row.classList.contains("bad"));
      row.hidden = !fits;
      if (row.nextElementSibling?.classList.contains("open")) row.nextElementSibling.hidden = !fits;
      shown += fits;
    }
    const left = wanted ? `${shown} of ${rows.length} rows` : "not a regular expression";
    document.querySelector(`.count[data-for="${name}"]`).textContent = left;
  }

  async function open(row, button) {
    const isOpen = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!isOpen));
    if (isOpen) return row.nextElementSibling.remove();
    const cell = make("td", { className: "detail l", colSpan: row.cells.length });
    const opened = make("tr", { className: "open" }, cell);
    row.after(opened);
    const [result] = await data();
    if (opened.isConnected) cell.append(...detail(result, result.layers[row.dataset.series]));
  }

  for (const table of all("table.rows")) {
    sortable(table);
    for (const row of all("tr[data-series]", table)) {
      const button = make("button", { type: "button", textContent: row.cells[0].textContent });
      button.setAttribute("aria-expanded", "false");
      button.addEventListener("click", () => open(row, button));
      row.cells[0].replaceChildren(button);
    }
  }
  all(".tools[hidden]").forEach((tools) => (tools.hidden = false));
  all("form.tools").forEach((form) => form.addEventListener("submit", (event) => event.preventDefault()));
  for (const input of all(".filter, .only")) {
    input.addEventListener("input", () => filter(input.dataset.for));
  }

  // A link to a row that is filtered away shows it again.
  addEventListener("hashchange", () => {
    const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (row?.hidden) row.hidden = false;
  });

  // ---- many grids of maps: small ones, each of which opens to where its channels can be read ------------------------
  for (const grids of all(".grids")) {
    grids.classList.add("folds");
    for (const figure of all("figure", grids)) {
      const caption = figure.querySelector("figcaption");
      const ariaLabel = `full size: ${caption.textContent}`;
      const button = make("button", { type: "button", textContent: "full size", ariaLabel, ariaExpanded: "false" });
      button.addEventListener("click", () => (button.ariaExpanded = String(figure.classList.toggle("whole"))));
      caption.append(button);
    }
  }

  // ---- a layer, step by step -----------------------------------------------------------------------------------
  const SVG = "http://www.w3.org/2000/svg";
  const draw = (name, attributes, ...children) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const short = (value) => {
    if (value === null || value === undefined) return "–";
    const isPlain = value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5);
    return isPlain ? String(Number(value.toPrecision(4))) : value.toExponential(2);
  };

  function detail(found, layer) {
    const s = layer.series;
    const last = Math.max(...found.loss.flatMap((one) => one.step), ...s.step, 1);
    const figures = make("div", { className: "charts" });
    const add = (title, lines) => {
      figures.append(chart(title, s.step, lines.filter((line) => line.value), last));
    };
    if (s.histogram) figures.append(strip(s, last));
    add("mean and standard deviation", [{ name: "mean", value: s.mean }, { name: "standard deviation", value: s.std }]);
    add("share of values", [
      { name: "zero", value: s.zero_fraction },
      { name: "near zero", value: s.near_zero_fraction },
      { name: "dead channels", value: s.dead_fraction },
      { name: "saturated", value: s.saturated_fraction },
    ]);
    add("norm of the gradient at its output", [{ name: "gradient", value: s.grad_norm }]);
    for (const one of found.parameters.filter((one) => one.model === layer.model && owner(one.name) === layer.name)) {
      const p = one.series;
      if (!p.step.length) continue;
      const name = one.name.slice(layer.name.length).replace(/^\./, "");
      figures.append(chart(`${name}: update / weight`, p.step, [{ name: "update / weight", value: p.update_ratio }], last));
      figures.append(chart(`${name}: gradient and weight`, p.step, [{ name: "gradient norm", value: p.grad_norm }, { name: "weight norm", value: p.weight_norm }], last));
    }
    const dead = s.dead_channels?.length ? `, channels dead at the end: ${s.dead_channels.join(", ")}` : "";
    return [make("p", { className: "quiet", textContent: `${layer.type}, call ${layer.call + 1}, position ${layer.order + 1} in the pass${dead}` }), figures];
  }
  const owner = (parameter) => parameter.split(".parametrizations.")[0].split(".").slice(0, parameter.includes(".parametrizations.") ? undefined : -1).join(".");

  function chart(title, step, lines, last) {
    const height = 110;
    lines = lines.filter((line) => line.value.some((value) => value !== null));
    if (!lines.length) return "";
    const values = lines.flatMap((line) => line.value.filter((value) => value !== null));
    const positive = values.filter((value) => value > 0);
    const isLog = positive.length && Math.min(...values) >= 0 && Math.max(...positive) > 1000 * Math.min(...positive);
    const along = (value) => (isLog ? Math.log10(value) : value);
    const places = (isLog ? positive : values).map(along);
    let [low, high] = [Math.min(...places), Math.max(...places)];
    if (high === low) [low, high] = [low - (Math.abs(low) / 2 || 0.5), high + (Math.abs(high) / 2 || 0.5)];
    const y = (value) => height * (1 - (along(value) - low) / (high - low));
    const isDrawn = (value) => value !== null && (!isLog || value > 0);
    const frame = draw("svg", { viewBox: `0 0 1000 ${height}`, preserveAspectRatio: "none", width: "100%", height });
    lines.forEach((line, tone) => {
      let data = "";
      line.value.forEach((value, n) => {
        if (isDrawn(value)) data += `${n && isDrawn(line.value[n - 1]) ? "L" : "M"}${(1000 * step[n]) / last} ${y(value).toFixed(1)}`;
      });
      if (data) frame.append(draw("path", { class: `line t${tone % 4}`, d: data + "l0 0" }));
    });
    const end = (value, at) => draw("text", { class: "halo", x: 4, y: at }, short(isLog ? 10 ** value : value));
    const words = lines.map((line) => `${line.name}: ${short(line.value.find((v) => v !== null))} at first, ${short(line.value.findLast((v) => v !== null))} at the end`);
    const cross = draw("line", { class: "cross", y1: 0, y2: height, visibility: "hidden" });
    const picture = draw("svg", { class: "chart", role: "img", "aria-label": `${title}. ${words.join("; ")}`, width: "100%", height: height + 18 },
      draw("line", { class: "grid", x1: "0", x2: "100%", y1: 0, y2: 0 }), draw("line", { class: "grid", x1: "0", x2: "100%", y1: height, y2: height }),
      frame, end(high, 11), end(low, height - 4), draw("text", { x: 0, y: height + 14 }, "0"), draw("text", { x: "100%", y: height + 14, "text-anchor": "end" }, `step ${last}`), cross);
    const readout = make("div", { className: "readout", textContent: words.join("; ") });
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const wanted = ((event.clientX - box.left) / box.width) * last;
      const n = step.reduce((best, one, place) => (Math.abs(one - wanted) < Math.abs(step[best] - wanted) ? place : best), 0);
      for (const end of ["x1", "x2"]) cross.setAttribute(end, `${(100 * step[n]) / last}%`);
      cross.setAttribute("visibility", "visible");
      readout.textContent = `step ${step[n]}: ` + lines.map((line) => `${line.name} ${short(line.value[n])}`).join(", ");
    });
    picture.addEventListener("pointerleave", () => {
      cross.setAttribute("visibility", "hidden");
      readout.textContent = words.join("; ");
    });
    const keys = lines.length > 1 ? [make("span", { className: "keys" }, ...lines.map((line, tone) => make("span", { className: `key t${tone % 4}`, textContent: line.name })))] : [];
    return make("figure", {}, make("figcaption", {}, title + (isLog ? ", logarithmic" : ""), ...keys), picture, readout);
  }

  function strip(s, last) {
    const { edges, counts } = s.histogram;
    const used = edges.map((_, bin) => bin + 1).filter((bin) => counts.some((row) => row[bin]));
    const [from, to] = used.length ? [used[0], used[used.length - 1]] : [1, 1];
    const canvas = make("canvas", { width: Math.min(last + 1, 1000), height: to - from + 3 });
    const pen = canvas.getContext("2d");
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--strip");
    counts.forEach((row, n) => {
      const total = row.reduce((sum, one) => sum + one, 0) || 1;
      const left = Math.floor((s.step[n] / (last + 1)) * canvas.width);
      const right = Math.floor(((s.step[n + 1] ?? last + 1) / (last + 1)) * canvas.width);
      const put = (count, top) => {
        pen.fillStyle = `rgba(${ink}, ${Math.min(1, Math.log1p((200 * count) / total) / Math.log(201) * 1.25)})`;
        if (count) pen.fillRect(left, top, Math.max(right - left, 1), 1);
      };
      for (let bin = from; bin <= to; bin++) put(row[bin], to - bin);
      put(row[0], canvas.height - 1);
    });
    const span = `${short(edges[from - 1])} to ${short(edges[to] ?? edges[edges.length - 1])}`;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Histogram of the magnitude of its values over steps, from ${span}; the lowest row counts smaller values, including zeros.`);
    return make("figure", {}, make("figcaption", {}, "histogram of |x| over steps, logarithmic"), canvas,
      make("div", { className: "readout", textContent: `|x| from ${span}, upwards, from step 0 to ${last}; below the gap: zeros and smaller values` }));
  }
})();
