"use strict";
// The page is complete without this: it adds sorting to tables and values under the pointer to charts.

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const descending = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((a, b) => compare(a.cells[column], b.cells[column], descending ? -1 : 1));
      body.append(...rows);
    });
  });
}

// Numbers by value, words by name, and cells without a value last whichever way the table is sorted.
function compare(a, b, direction) {
  const [left, right] = [a.dataset.value, b.dataset.value];
  if (left !== undefined && right !== undefined) return direction * (Number(left) - Number(right));
  if (left !== undefined || right !== undefined) return left !== undefined ? -1 : 1;
  return direction * a.textContent.localeCompare(b.textContent);
}

for (const chart of document.querySelectorAll(".chart")) {
  const svg = chart.querySelector("svg");
  const series = [...svg.querySelectorAll(".series")].map((group) => ({
    name: group.dataset.name,
    color: getComputedStyle(group).getPropertyValue("--color"),
    points: group.dataset.points.split(" ").map((pair) => pair.split(",").map(Number)),
  }));
  const [left, right, from, to] = ["left", "right", "from", "to"].map((key) => Number(chart.dataset[key]));
  const readout = Object.assign(document.createElement("div"), { className: "readout", hidden: true });
  const guide = document.createElementNS("http://www.w3.org/2000/svg", "path");
  guide.setAttribute("class", "guide");
  svg.append(guide);
  chart.append(readout);

  chart.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const wanted = from + (((event.clientX - box.left) * scale - left) / (right - left)) * (to - from);
    const nearest = series.map(({ points }) =>
      points.reduce((best, point) => (Math.abs(point[0] - wanted) < Math.abs(best[0] - wanted) ? point : best)));
    const x = nearest.reduce((best, point) => (Math.abs(point[0] - wanted) < Math.abs(best - wanted) ? point[0] : best), nearest[0][0]);
    const place = left + ((x - from) / (to - from)) * (right - left);
    guide.setAttribute("d", `M${place} 28V220`);
    readout.replaceChildren(line(chart.dataset.xLabel, x));
    series.forEach(({ name, color }, index) => {
      if (nearest[index][0] === x) readout.append(line(name, Number(nearest[index][1].toPrecision(4)), color));
    });
    readout.hidden = false;
    const room = box.width - readout.offsetWidth;
    const after = place / scale + 12;
    readout.style.left = `${Math.max(0, after < room ? after : place / scale - 12 - readout.offsetWidth)}px`;
  });
  chart.addEventListener("pointerleave", () => {
    readout.hidden = true;
    guide.removeAttribute("d");
  });
}

function line(name, value, color) {
  const row = document.createElement("div");
  const number = document.createElement("b");
  number.textContent = value;
  if (color) number.style.color = color;
  row.append(`${name} `, number);
  return row;
}
