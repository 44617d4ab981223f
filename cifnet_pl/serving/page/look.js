// Look: classes, accuracy over time, confusions, size.

import { $, action, count, ENOUGH, get, keptPhoto, make, named, percent, promised, table } from "./page.js";

const SVG = "http://www.w3.org/2000/svg";

function drawn(tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

function figures(look) {
  const energies = look.history.map((moment) => moment.energy_kwh).filter((value) => value !== null);
  const energy = energies.reduce((sum, value) => sum + value, 0);
  const source = look.history.find((moment) => moment.energy_source)?.energy_source?.includes("estimated") ? "estimated" : "";
  const show = (place, found) => $(place).replaceChildren(...Object.entries(found).map(([name, value]) =>
    make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value }))));
  show("figures", {
    Classes: look.classes, Photos: look.photos, ...promised(look.right),
  });
  const help = look.right.known === "found" ? ["what helps most on another day: photos of that day or place, five of each class"] : [];
  $("about-days").textContent = [...look.right.says, ...help].map((one) => `${one[0].toUpperCase()}${one.slice(1)}.`).join(" ");
  show("laboratory", {
    Head: look.head, Network: look.backbone, "Size of the state": `${look.state_mb.toFixed(2)} MB`,
    "Energy to learn": energies.length ? `${(1000 * energy).toPrecision(3)} Wh${source ? ` (${source})` : ""}` : "not measured",
  });
}

/** Points {accuracy, label, about}, the labels below them, and a line through them unless they are of different photos. */
function plotted(points, title, below, joined = true) {
  const [width, height, left, bottom, top] = [440, 220, 40, 40, 15];
  const x = (i) => left + (points.length === 1 ? 0.5 : i / (points.length - 1)) * (width - left - 20);
  const y = (value) => top + (1 - value / 100) * (height - top - bottom);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.append(drawn("title", {}, `${title}: ${points.map((p) => p.accuracy.toFixed(1)).join(", ")} %`));
  for (const value of [0, 25, 50, 75, 100]) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - 20, y1: y(value), y2: y(value) }));
    svg.append(drawn("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, `${value}`));
  }
  if (joined) svg.append(drawn("polyline", { class: "line", points: points.map((p, i) => `${x(i)},${y(p.accuracy)}`).join(" ") }));
  points.forEach((p, i) => {
    const dot = drawn("circle", { class: "point", cx: x(i), cy: y(p.accuracy), r: 4 });
    dot.append(drawn("title", {}, `${p.about}, ${p.accuracy.toFixed(1)} %`));
    svg.append(dot);
    if (points.length <= 12 || i % Math.ceil(points.length / 12) === 0) {
      svg.append(drawn("text", { x: x(i), y: height - 20, "text-anchor": "middle" }, `${p.label}`));
    }
  });
  svg.append(drawn("text", { x: width - 20, y: height - 3, "text-anchor": "end" }, below));
  return svg;
}

/** Accuracy of each step that was measured; a lesson of few photos says too little, as a fifth of them is scored. */
function curve(history) {
  const measured = history.filter(({ accuracy }) => accuracy !== null);
  const points = measured.filter(({ photos }) => photos === null || photos >= 5 * ENOUGH)
    .map((moment) => ({ ...moment, label: moment.classes, about: `${moment.what}: ${count(moment.classes, "class", "classes")}` }));
  const few = measured.length - points.length;
  const notes = [];
  if (points.length) notes.push("Percent of photos of these days: of all test photos after a task of the first run, of a fifth of the new photos after a lesson here. They are different photos, so they are not joined.");
  else notes.push("Nothing was measured on enough photos yet.");
  if (few) notes.push(`Not shown: ${count(few, "lesson")} of fewer than ${5 * ENOUGH} photos, which say too little.`);
  const shown = points.length ? [plotted(points, `Right answers after each of ${count(points.length, "step")}`, "classes known", false)] : [];
  $("curve").replaceChildren(...shown, ...notes.map((textContent) => make("p", { class: "hint", textContent })));
}

function confusion(look) {
  const place = $("confusion");
  if (!look.confusion) {
    const reason = look.classes > 40 ? "Too many classes for a table." : "This model stores no photos that could be left out.";
    place.replaceChildren(make("p", { class: "hint", textContent: reason }));
    return;
  }
  const names = look.confusion_classes;
  const head = make("tr", {}, make("th", { textContent: "is ↓ answered →", scope: "col" }), ...names.map((name) => make("th", { textContent: name, title: name, scope: "col" })));
  const rows = look.confusion.map((shares, i) => make("tr", {}, make("th", { textContent: names[i], title: names[i], dir: "auto", scope: "row" }), ...shares.map((share, j) => {
    const cell = make("td", { class: "cell", textContent: share >= 0.5 ? Math.round(share) : "" });
    if (share >= 0.5) cell.style.backgroundColor = `color-mix(in srgb, var(${i === j ? "--bar" : "--danger"}) ${Math.min(100, Math.round(i === j ? share : 15 + share * 0.45))}%, transparent)`;
    return cell;
  })));
  place.replaceChildren(make("table", {}, head, ...rows), make("p", { class: "hint", textContent: "Percent of the stored photos of each class, photos of these days: each answered as if neither it nor its near-copies had been learned." }));
}

async function classes() {
  const found = await get("/classes");
  table($("classes"), [{ title: "Class" }, { title: "Photos", number: true }, { title: "Examples" }], found.map(({ name, photos, kept }) => {
    const examples = make("ul", { class: "thumbs" });
    for (const file of kept.slice(0, 4)) keptPhoto(file, name).then((image) => examples.append(make("li", {}, image))).catch(() => {});
    if (!kept.length) examples.append(make("li", { class: "hint", textContent: "none kept" }));
    return { cells: [named(name), photos, examples] };
  }));
}

function doubtfulPhoto({ file, label, looks_like: other, own }) {
  const text = make("p", {}, `Taught as “${label}” (${percent(own)}), looks like “${other}”.`);
  const card = make("li", { class: "card" });
  const top = make("div", { class: "top" });
  keptPhoto(file, `Taught as ${label}`).then((image) => top.prepend(image)).catch(() => {});
  top.append(make("div", { class: "said" }, text));
  card.append(top);
  return card;
}

async function audit() {
  const place = $("audited");
  place.replaceChildren(make("p", { role: "status", textContent: "Judging every photo by all others…" }));
  let found;
  try {
    found = await get("/audit");
  } catch (error) {
    place.replaceChildren();
    throw error;
  }
  const parts = [];
  if (found.doubtful.length) {
    parts.push(make("p", { textContent: `Of ${count(found.photos, "kept photo")} these look more like another class:` }));
    parts.push(make("ul", { class: "cards" }, ...found.doubtful.map(doubtfulPhoto)));
  } else if (found.photos) parts.push(make("p", { textContent: `None of ${count(found.photos, "kept photo")} is doubtful.` }));
  else if (!found.not_judged.length) parts.push(make("p", { textContent: "No photos of two classes are kept here, so none can be doubted." }));
  if (found.not_judged.length) {
    parts.push(make("p", { class: "hint", textContent: `Not judged, as one photo or near-copies of one alone are kept: ${found.not_judged.join(", ")}.` }));
  }
  if (found.curve.length) {
    const points = found.curve.map(({ photos, accuracy }) => ({ accuracy, label: photos, about: `${photos} photos of each class` }));
    const more = found.with_twice_as_many === null ? "" : ` With twice as many about ${found.with_twice_as_many.toFixed(1)} % of those would be right.`;
    parts.push(make("h4", { textContent: "Photos against accuracy" }), plotted(points, "Accuracy by number of photos of each class", "photos of each class"));
    parts.push(make("p", { class: "hint", textContent: `Percent of photos of these days, each answered as if it had never been learned.${more} Photos of another day are harder: what helps most there is photos of that day.` }));
    if (found.short.length) {
      parts.push(make("p", { class: "hint", textContent: `These classes have less than half as many photos as the others: ${found.short.join(", ")}.` }));
    }
  }
  place.replaceChildren(...parts);
}

export function start() {
  action($("audit"), "click", audit);
}

export async function show() {
  const look = await get("/look");
  figures(look);
  curve(look.history);
  confusion(look);
  await classes();
}
