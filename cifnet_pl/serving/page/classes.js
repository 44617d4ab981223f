// Classes: how many photos each has, how often it is right, what it is taken for; to rename, join and forget.

import { $, action, change, count, get, isReadOnly, keptPhoto, make, named, percent, promised, sure, table, takesBack } from "./page.js";

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
  show("figures", { Classes: look.classes, Photos: look.photos, ...promised(look.right) });
  const help = look.right.known === "found" ? ["what helps most on another day: photos of that day or place, five of each class"] : [];
  $("about-days").textContent = [...look.right.says, ...help].map((one) => `${one[0].toUpperCase()}${one.slice(1)}.`).join(" ");
  show("laboratory", {
    Head: look.head, Network: look.backbone, "Size of the state": `${look.state_mb.toFixed(2)} MB`,
    "Energy to learn": energies.length ? `${(1000 * energy).toPrecision(3)} Wh${source ? ` (${source})` : ""}` : "not measured",
  });
}

const COLUMNS = [{ title: "Class", kind: "name", bare: true }, { title: "Examples", bare: true }, { title: "Photos", number: true }, { title: "Right on another day", number: true },
  { title: "Taken for", kind: "name" }, { title: "", bare: true }];

function row({ name, photos, kept }, { right, taken_for: others, seldom } = { right: null, taken_for: [] }) {
  const examples = make("ul", { class: "thumbs" }, ...kept.slice(-3).map((file) => make("li", {}, keptPhoto(file, name))));
  const shown = right === null ? make("span", { class: "hint", textContent: "too few to say" }) : make("span", { class: seldom ? "warn" : "", textContent: `${right.toFixed(0)} %` });
  if (seldom) shown.append(" hardly ever answered");
  const open = make("button", { type: "button", class: "plain", textContent: "Change", "aria-label": `Change ${name}` });
  action(open, "click", () => {
    $("class-title").textContent = $("class-new").value = name;
    $("class").showModal();
  });
  return { cells: [named(name), examples, photos, shown, others.length ? named(others.join(", ")) : "", isReadOnly() ? "" : open] };
}

/** Points {accuracy, label}, the labels below them, and a line through them. */
function plotted(points, title, below) {
  const [width, height, left, bottom, top] = [440, 220, 40, 40, 15];
  const x = (i) => left + (points.length === 1 ? 0.5 : i / (points.length - 1)) * (width - left - 20);
  const y = (value) => top + (1 - value / 100) * (height - top - bottom);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.append(drawn("title", {}, `${title}: ${points.map((p) => p.accuracy.toFixed(1)).join(", ")} %`));
  for (const value of [0, 25, 50, 75, 100]) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - 20, y1: y(value), y2: y(value) }));
    svg.append(drawn("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, `${value}`));
  }
  svg.append(drawn("polyline", { class: "line", points: points.map((p, i) => `${x(i)},${y(p.accuracy)}`).join(" ") }));
  points.forEach((p, i) => {
    svg.append(drawn("circle", { class: "point", cx: x(i), cy: y(p.accuracy), r: 4 }));
    svg.append(drawn("text", { x: x(i), y: height - 20, "text-anchor": "middle" }, `${p.label}`));
  });
  svg.append(drawn("text", { x: width - 20, y: height - 3, "text-anchor": "end" }, below));
  return svg;
}

const doubtful = ({ file, label, looks_like: other, own }) => make("li", { class: "card" }, keptPhoto(file, `Taught as ${label}`),
  make("p", { textContent: `Taught as “${label}” (${percent(own)}), looks like “${other}”.` }));

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
    parts.push(make("ul", { class: "cards" }, ...found.doubtful.map(doubtful)));
  } else if (found.photos) parts.push(make("p", { textContent: `None of ${count(found.photos, "kept photo")} is doubtful.` }));
  else if (!found.not_judged.length) parts.push(make("p", { textContent: "No photos of two classes are kept here, so none can be doubted." }));
  if (found.not_judged.length) {
    parts.push(make("p", { class: "hint", textContent: `Not judged, as one photo or near-copies of one alone are kept: ${found.not_judged.join(", ")}.` }));
  }
  if (found.curve.length) {
    const points = found.curve.map(({ photos, accuracy }) => ({ accuracy, label: photos }));
    const more = found.with_twice_as_many === null ? "" : ` With twice as many about ${found.with_twice_as_many.toFixed(1)} % of those would be right.`;
    parts.push(make("h2", { textContent: "Photos against accuracy" }), plotted(points, "Accuracy by number of photos of each class", "photos of each class"));
    parts.push(make("p", { class: "hint", textContent: `Percent of photos of these days, each answered as if it had never been learned.${more} Photos of another day are harder: what helps most there is photos of that day.` }));
    if (found.short.length) {
      parts.push(make("p", { class: "hint", textContent: `These classes have less than half as many photos as the others: ${found.short.join(", ")}.` }));
    }
  }
  place.replaceChildren(...parts);
}

export function start() {
  const close = () => $("class").close();
  action($("audit"), "click", audit);
  action($("class-close"), "click", close);
  action($("class-form"), "submit", () => {
    close();
    return change("/rename", { old: $("class-title").textContent, new: $("class-new").value.trim() }, takesBack);
  });
  action($("forget"), "click", async () => {
    const name = $("class-title").textContent;
    close();
    const text = `Forget the class “${name}”? Its photos and the versions before stay here until you delete them for good, so you can take it back.`;
    const choice = await sure(text, "Forget", "Forget, and delete for good");
    if (choice === "no") return;
    await change("/forget", { name }, choice === "yes" ? takesBack : null);
    if (choice === "instead") await change("/purge", { photos: "forgotten" });
  });
}

export async function show() {
  const [look, found] = await Promise.all([get("/look"), get("/classes")]);
  figures(look);
  const answers = found.length ? await get("/classes/answers") : [];
  const of = new Map(answers.map((one) => [one.name, one]));
  table($("class-table"), COLUMNS, found.map((one) => row(one, of.get(one.name))));
}
