// Ask: what is on these photos? And: yes, right, or: no, it is …

import { takesPictures } from "./camera.js";
import { keep, kept } from "./kept.js";
import { $, action, changed, count, finished, isReadOnly, isServed, keptPhoto, make, named, percent, post, save, say, table, takesFiles, takesPasted,
  thumbnail, waits } from "./page.js";

const AT_A_TIME = 16;
const FEW = 12; // more are shown as a table
const ASKED_ANEW = 200; // photos that are asked again after each change; of more the page says so
let asked = []; // {file, path, answer, card, taught: {name, version}}

const nameOf = ({ file, path }) => path || file.name || "photo";

function answerLine({ name, probability }) {
  const meter = make("meter", { min: 0, max: 1, value: probability, "aria-label": `${name}: ${percent(probability)}` });
  return make("p", { class: "answer" }, named(name), make("span", { textContent: percent(probability) }), meter);
}

/** What is said beside the most probable class: unreadable, unlike all classes, or several classes. */
function remark(answer) {
  if (answer.unreadable) return make("p", { class: "none", textContent: `Cannot be read: ${answer.unreadable}` });
  if (answer.known === false) return make("p", { class: "none", textContent: "This looks unlike what I learned." });
  if (!answer.answers || answer.answers.length === 1) return null;
  const text = answer.answers.length ? `One of: ${answer.answers.join(", ")}` : "Unsure: no class is likely enough.";
  return make("p", { class: "hint clamp", textContent: text, title: text });
}

/** The numbers behind an answer that is none. */
function details({ p_value: share, classes }) {
  const lines = classes.slice(0, 3).map(answerLine);
  const rare = share === null ? null : make("p", { class: "hint", textContent: `${percent(share)} of the photos of known classes look as unlike.` });
  return make("details", {}, make("summary", { textContent: "Details" }), rare, ...lines);
}

function said(entry) {
  const { answer } = entry;
  const place = make("div", { class: "said" }, make("p", { class: "file" }, named(nameOf(entry))));
  if (answer.unreadable) {
    place.append(remark(answer));
    return place;
  }
  if (answer.known === false) {
    const names = answer.classes.slice(0, 3).map(({ name }) => name).join(", ");
    place.append(remark(answer), make("p", {}, named(`It could be: ${names}`)), details(answer));
    return place;
  }
  place.append(...answer.classes.slice(0, 3).map(answerLine), remark(answer) ?? "");
  if (answer.nearest) {
    const { name } = answer.classes[0];
    const shown = make("figure", { class: "nearest" }, make("figcaption", { class: "hint" }, named(`Most similar “${name}” that is kept:`)));
    keptPhoto(answer.nearest, `Most similar kept photo of ${name}`).then((image) => shown.append(image)).catch(() => shown.remove());
    place.append(shown);
  }
  return place;
}

/** Teach photos as one class, and say what came of it; gives the name and the version. */
async function teachAs(entries, given) {
  let name = given;
  const begin = ({ anyway, instead }) => {
    name = instead ?? name;
    const form = new FormData();
    for (const { file } of entries) form.append("files", file, file.name || "photo");
    form.append("class_name", name);
    return post(`/extend?wait=false${anyway ? "&anyway=true" : ""}`, form);
  };
  const { lesson } = await finished(begin, (now) => say(now.place ? waits(now) : "Learning…", true));
  for (const entry of entries) entry.taught = { name, version: lesson.version };
  const learned = Object.values(lesson.learned).reduce((sum, one) => sum + one, 0);
  await changed(`Learned ${count(learned, "photo")} as “${name}”. Undo takes it back.`);
}

/** One click when the answer is right; behind another one the other classes: a photo is taught, and all are asked again. */
function correction(entry) {
  const { answer } = entry;
  const foreign = answer.known === false;
  const best = answer.classes[0]?.name;
  const name = make("input", { list: "class-names", placeholder: "another name", maxLength: 1000, required: true, autocomplete: "off",
    "aria-label": `Right class of ${nameOf(entry)}` });
  const form = make("form", {}, name, make("button", { type: "submit", textContent: "Teach" }));
  const chips = make("div", { class: "chips", role: "group", "aria-label": `Correct the answer for ${nameOf(entry)}` });
  const other = make("details", { class: "other", open: foreign }, make("summary", { textContent: foreign ? "What is it?" : "No, it is …" }), chips, form);
  const place = make("div", { class: "right" });
  const teach = async (right) => {
    place.inert = true;
    entry.focused = true;
    try {
      await teachAs([entry], right);
    } finally {
      place.inert = false;
    }
  };
  const button = (text, label, work, kind = "") => {
    const made = make("button", { type: "button", class: kind, "aria-label": label }, text);
    action(made, "click", work);
    return made;
  };
  if (isServed(entry.taught?.version)) {
    place.append(make("p", { class: "good clamp", textContent: `Taught as “${entry.taught.name}”.` }));
  } else if (!foreign && best) place.append(button("Yes, right", `Yes, ${nameOf(entry)} is ${best}: learn it`, () => teach(best), "yes"));
  for (const one of answer.classes.slice(foreign ? 0 : 1, 3)) chips.append(button(named(one.name), `${nameOf(entry)} is: ${one.name}`, () => teach(one.name), "chip"));
  action(form, "submit", () => teach(name.value.trim()));
  place.append(other);
  return place;
}

const corrected = (entry) => (entry.answer.unreadable || isReadOnly() ? null : correction(entry));
const picture = (entry) => (entry.answer.unreadable ? null : thumbnail(entry.file, nameOf(entry)));

/** Put what shows an entry in the place of what showed it before; the focus stays at the entry. */
function place(entry, made, list) {
  const focused = entry.focused || entry.card?.contains(document.activeElement);
  if (entry.card?.isConnected && entry.card.tagName === made.tagName) entry.card.replaceWith(made);
  else list.append(made);
  entry.card = made;
  entry.focused = false;
  if (focused) made.querySelector(".right button, .right summary")?.focus();
}

const COLUMNS = [{ title: "Photo", bare: true }, { title: "File", bare: true, kind: "name" }, { title: "Answer", bare: true, kind: "name" },
  { title: "How sure", number: true }, { title: "Right?", bare: true }];

function row(entry) {
  const { answer } = entry;
  const best = answer.classes[0];
  const known = best && answer.known !== false;
  const answered = make("div", {}, known ? named(best.name) : "", remark(answer) ?? "");
  if (best && !known) answered.append(make("span", { class: "hint" }, named(`It could be: ${best.name}`)));
  const made = make("table");
  table(made, COLUMNS, [{ cells: [picture(entry), named(nameOf(entry)), answered, known ? percent(best.probability) : "", corrected(entry)] }]);
  return made.rows[1];
}

const card = (entry) => make("li", { class: "card" }, make("div", { class: "top" }, picture(entry), said(entry)), corrected(entry));

/** Show answers as cards, or where there are many as a table. */
function show(entries) {
  const answered = asked.filter(({ answer }) => answer);
  if (asked.length <= FEW) entries.forEach((entry) => place(entry, card(entry), $("answers")));
  else {
    const begun = !$("answer-rows");
    if (begun) {
      $("answers").replaceChildren();
      const made = make("table", { id: "answer-rows", class: "stack" });
      table(made, COLUMNS, []);
      $("answer-table").replaceChildren(made);
    }
    for (const entry of begun ? answered : entries) place(entry, row(entry), $("answer-rows"));
  }
  const number = (test) => answered.filter(({ answer }) => test(answer)).length;
  const bad = number(({ unreadable }) => unreadable);
  const foreign = number(({ known }) => known === false);
  const parts = [count(answered.length, "photo"), `${answered.length - bad - foreign} of known classes`, foreign ? `${foreign} unlike what I learned` : "",
    bad ? `${bad} unreadable` : ""];
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
    $("ask-again").hidden = true;
  }
}

/** After a change: what is shown are the answers of the version that is served now. */
export async function again() {
  const shown = asked.filter(({ answer }) => answer);
  if (shown.length > ASKED_ANEW) $("ask-again").hidden = false;
  else if (shown.length) await ask(shown);
}

async function take(files) {
  if (!files.length) return;
  asked.push(...files);
  await ask(files);
  await keep(asked);
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
    return [cell(nameOf(entry)), cell(answer.known === false ? "" : best?.name), cell(best?.name), best ? best.probability.toFixed(6) : "", cell(answer.known),
      answer.novelty ?? "", answer.p_value ?? "", cell(answer.answers?.join("; ")), cell(answer.unreadable)].join(",");
  });
  const columns = "file,class,closest,probability,known,novelty,p_value,answers,unreadable";
  save("answers.csv", new Blob([[columns, ...rows].join("\n") + "\n"], { type: "text/csv" }));
}

function groupCard(group, entries) {
  const thumbs = make("ul", { class: "thumbs" }, ...entries.slice(0, 12).map(({ file }) => make("li", {}, thumbnail(file, file.name))));
  const foreign = entries.every(({ answer }) => answer.known === false); // the closest class is not what they are
  const name = make("input", { list: "class-names", placeholder: "these are …", value: foreign ? "" : group.suggestion ?? "", maxLength: 1000, required: true,
    autocomplete: "off", "aria-label": `Class of ${count(entries.length, "photo")}` });
  const form = make("form", {}, name, make("button", { type: "submit", textContent: `Teach ${entries.length}` }));
  const alike = entries.length === 1 ? "1 photo like no other" : `${entries.length} photos look alike`;
  const made = make("li", { class: "card" }, make("p", { class: "file", textContent: alike }), thumbs, form);
  action(form, "submit", async () => {
    await teachAs(entries, name.value.trim());
    made.remove();
    ($("groups").querySelector("input") ?? $("ask-group")).focus();
  });
  return made;
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

async function clear() {
  asked = [];
  for (const id of ["answers", "answer-table", "groups"]) $(id).replaceChildren();
  $("ask-actions").hidden = $("ask-summary").hidden = $("ask-again").hidden = true;
  await keep(asked);
}

export function start() {
  takesFiles($("ask-drop"), [$("ask-files"), $("ask-camera")], take);
  takesPasted($("ask"), take);
  takesPictures(take);
  action($("ask-csv"), "click", csv);
  action($("ask-group"), "click", group);
  action($("ask-clear"), "click", clear);
  action($("ask-again-now"), "click", () => ask(asked));
}

/** Ask again what was asked before the page was loaded anew. */
export async function restore() {
  asked = await kept();
  if (asked.length) await ask([...asked]);
}
