// Ask: what is on these photos? And: this one is a …

import { takesPictures } from "./camera.js";
import { $, action, changed, finished, isReadOnly, keptPhoto, make, named, percent, post, save, say, table, takesFiles, takesPasted, thumbnail } from "./page.js";

const AT_A_TIME = 16;
const FEW = 12; // more are shown as a table
let asked = []; // {file, path, answer, card}

function answerLine({ name, probability }) {
  const meter = make("meter", { min: 0, max: 1, value: probability, "aria-label": `${name}: ${percent(probability)}` });
  return make("p", { class: "answer" }, named(name), make("span", { textContent: percent(probability) }), meter);
}

const nameOf = ({ file, path }) => path || file.name || "photo";
const rarity = ({ p_value: share }) => (share === null ? "" : `Only ${percent(share)} of the photos of known classes are as foreign.`);

/** What is said beside the most probable class: unreadable, none of these, or several classes. */
function remark(answer) {
  if (answer.unreadable) return make("p", { class: "none", textContent: `Cannot be read: ${answer.unreadable}` });
  if (answer.known === false) return make("p", { class: "none", textContent: "None of these." });
  if (!answer.answers || answer.answers.length === 1) return null;
  const text = answer.answers.length ? `One of: ${answer.answers.join(", ")}` : "Unsure: no class is likely enough.";
  return make("p", { class: "hint clamp", textContent: text, title: text });
}

function said(entry) {
  const { answer } = entry;
  const file = make("p", { class: "file" }, named(nameOf(entry)));
  if (answer.unreadable) return make("div", { class: "said" }, file, remark(answer));
  const lines = answer.classes.slice(0, 3).map(answerLine);
  const place = make("div", { class: "said" }, file);
  if (answer.known === false) place.append(remark(answer), make("p", { class: "hint", textContent: `${rarity(answer)} Closest:` }), ...lines);
  else place.append(...lines, remark(answer) ?? "");
  if (answer.nearest) {
    const name = answer.classes[0].name;
    const shown = make("figure", { class: "nearest" }, make("figcaption", { class: "hint" }, named(`Most similar “${name}” that is kept:`)));
    keptPhoto(answer.nearest, `Most similar kept photo of ${name}`).then((image) => shown.append(image)).catch(() => shown.remove());
    place.append(shown);
  }
  return place;
}

/** Teach photos as one class, and say what came of it. */
export async function teachAs(files, name) {
  const form = new FormData();
  for (const file of files) form.append("files", file, file.name || "photo");
  form.append("class_name", name);
  const job = await finished(await post("/extend?wait=false", form), (now) => say(now.place ? `Waiting: ${now.place} changes come first.` : "Learning…", true));
  const count = Object.values(job.lesson.learned).reduce((sum, one) => sum + one, 0);
  await changed(`Learned ${count} ${count === 1 ? "photo" : "photos"} as “${name}”. Undo takes it back.`);
}

/** One click on a class, or another name: the photo is taught as that, and asked again. */
function correction(entry) {
  const { answer } = entry;
  const others = answer.known === false ? answer.classes.slice(0, 3) : answer.classes.slice(1, 3);
  const name = make("input", { list: "class-names", placeholder: "another name", maxLength: 1000, required: true, autocomplete: "off",
    "aria-label": `Right class of ${nameOf(entry)}` });
  const form = make("form", {}, name, make("button", { type: "submit", textContent: "Teach" }));
  const chips = make("div", { class: "chips", role: "group", "aria-label": `Correct the answer for ${nameOf(entry)}` }, make("span", { class: "hint", textContent: "This is a" }));
  const place = make("div", {}, chips, form);
  const teach = async (right) => {
    const controls = place.querySelectorAll("button, input");
    controls.forEach((control) => { control.disabled = true; });
    try {
      await teachAs([entry.file], right);
      await ask([entry]);
    } finally {
      controls.forEach((control) => { control.disabled = false; });
    }
  };
  for (const { name: other } of others) {
    const chip = make("button", { type: "button", class: "chip", "aria-label": `${nameOf(entry)} is a ${other}` }, named(other));
    action(chip, "click", () => teach(other));
    chips.append(chip);
  }
  action(form, "submit", () => teach(name.value.trim()));
  return place;
}

const corrected = (entry) => (entry.answer.unreadable || isReadOnly() ? null : correction(entry));
const picture = (entry) => (entry.answer.unreadable ? null : thumbnail(entry.file, nameOf(entry)));

function showCard(entry) {
  const card = make("li", { class: "card" }, make("div", { class: "top" }, picture(entry), said(entry)), corrected(entry));
  if (entry.card?.isConnected && entry.card.tagName === "LI") entry.card.replaceWith(card);
  else $("answers").append(card);
  entry.card = card;
}

const COLUMNS = [{ title: "Photo", bare: true }, { title: "File", bare: true }, { title: "Answer", bare: true }, { title: "Probability", number: true },
  { title: "Known photos as foreign", number: true }, { title: "Correct it", bare: true }];

function cellsOf(entry) {
  const { answer } = entry;
  const best = answer.classes[0];
  const answered = make("div", {}, best && answer.known !== false ? named(best.name) : "", remark(answer) ?? "");
  if (best && answer.known === false) answered.append(make("span", { class: "hint" }, named(`closest: ${best.name}`)));
  const rare = answer.p_value === null ? "" : percent(answer.p_value);
  return [picture(entry), named(nameOf(entry)), answered, best ? percent(best.probability) : "", rare, corrected(entry)];
}

/** Show answers as cards, or where there are many as a table. */
function show(entries) {
  const answered = asked.filter(({ answer }) => answer);
  const many = asked.length > FEW;
  if (!many) entries.forEach(showCard);
  else if ($("answer-rows")) {
    for (const entry of entries) {
      const made = make("table");
      table(made, COLUMNS, [{ cells: cellsOf(entry) }]);
      const row = made.rows[1];
      if (entry.card?.isConnected) entry.card.replaceWith(row);
      else $("answer-rows").append(row);
      entry.card = row;
    }
  } else {
    $("answers").replaceChildren();
    const made = make("table", { id: "answer-rows", class: "stack" });
    table(made, COLUMNS, answered.map((entry) => ({ cells: cellsOf(entry) })));
    answered.forEach((entry, i) => { entry.card = made.rows[i + 1]; });
    $("answer-table").replaceChildren(made);
  }
  const count = (test) => answered.filter(({ answer }) => test(answer)).length;
  const bad = count(({ unreadable }) => unreadable);
  const foreign = count(({ known }) => known === false);
  const parts = [`${answered.length} photos`, `${answered.length - bad - foreign} of known classes`, `${foreign} none of these`, bad ? `${bad} unreadable` : ""];
  $("ask-summary").textContent = `${parts.filter(Boolean).join(", ")}.`;
  $("ask-summary").hidden = answered.length < 2;
}

async function ask(entries) {
  const bar = $("ask-progress");
  bar.hidden = false;
  bar.value = 0;
  try {
    for (let start = 0; start < entries.length; start += AT_A_TIME) {
      const part = entries.slice(start, start + AT_A_TIME);
      const form = new FormData();
      for (const entry of part) form.append("files", entry.file, nameOf(entry));
      const { photos } = await post("/classify", form);
      photos.forEach((answer, i) => { part[i].answer = answer; });
      show(part);
      bar.value = (start + part.length) / entries.length;
    }
  } finally {
    asked = asked.filter((entry) => entry.answer || !entries.includes(entry));
    bar.hidden = true;
    $("ask-actions").hidden = !asked.length;
    $("ask-group").hidden = asked.length < 2 || isReadOnly();
  }
}

async function take(files) {
  if (!files.length) return;
  asked.push(...files);
  await ask(files);
}

const cell = (value) => {
  const text = String(value ?? "");
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text; // a spreadsheet must not run a file's name
  return `"${safe.replaceAll('"', '""')}"`;
};

function csv() {
  const rows = asked.map((entry) => {
    const { answer } = entry;
    const best = answer.classes[0];
    return [cell(nameOf(entry)), cell(best?.name), best ? best.probability.toFixed(6) : "", cell(answer.known),
      answer.novelty ?? "", answer.p_value ?? "", cell(answer.answers?.join("; ")), cell(answer.unreadable)].join(",");
  });
  save("answers.csv", new Blob([["file,class,probability,known,novelty,p_value,answers,unreadable", ...rows].join("\n") + "\n"], { type: "text/csv" }));
}

function groupCard(group, entries) {
  const thumbs = make("ul", { class: "thumbs" }, ...entries.slice(0, 12).map(({ file }) => make("li", {}, thumbnail(file, file.name))));
  const foreign = entries.every(({ answer }) => answer.known === false); // the closest class is not what they are
  const name = make("input", { list: "class-names", placeholder: "these are …", value: foreign ? "" : group.suggestion ?? "", maxLength: 1000, required: true,
    autocomplete: "off", "aria-label": `Class of ${entries.length} photos` });
  const form = make("form", {}, name, make("button", { type: "submit", textContent: `Teach ${entries.length}` }));
  action(form, "submit", async () => {
    await teachAs(entries.map(({ file }) => file), name.value.trim());
    card.remove();
    await ask(entries);
  });
  const card = make("li", { class: "card" }, make("p", { class: "file", textContent: `${entries.length} photos look alike` }), thumbs, form);
  return card;
}

async function group() {
  const foreign = asked.filter(({ answer }) => answer && !answer.unreadable && answer.known === false);
  const entries = foreign.length > 1 ? foreign : asked.filter(({ answer }) => answer && !answer.unreadable);
  if (entries.length < 2) throw new Error("Ask about two photos or more first.");
  const form = new FormData();
  for (const { file } of entries) form.append("files", file, file.name || "photo");
  const { groups } = await post("/group", form);
  const list = make("ul", { class: "cards" }, ...groups.map((one) => groupCard(one, one.positions.map((i) => entries[i]))));
  $("groups").replaceChildren(make("h3", { textContent: "Groups: name each once" }), list);
}

function clear() {
  asked = [];
  for (const id of ["answers", "answer-table", "groups"]) $(id).replaceChildren();
  $("ask-actions").hidden = $("ask-summary").hidden = true;
}

export function start() {
  takesFiles($("ask-drop"), [$("ask-files"), $("ask-camera")], take);
  takesPasted($("ask"), take);
  takesPictures(take);
  action($("ask-csv"), "click", csv);
  action($("ask-group"), "click", group);
  action($("ask-clear"), "click", clear);
}
