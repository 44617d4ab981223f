// Ask: what is on these photos? And: this one is a …

import { $, action, changed, finished, keptPhoto, make, percent, post, save, say, takesFiles, thumbnail } from "./page.js";

const AT_A_TIME = 16;
const FEW = 12; // more are shown as the rows of a table
let asked = []; // {file, answer, card}

function answerLine({ name, probability }) {
  const meter = make("meter", { min: 0, max: 1, value: probability, "aria-label": `${name}: ${percent(probability)}` });
  return make("p", { class: "answer" }, make("span", { textContent: name }), make("span", { textContent: percent(probability) }), meter);
}

function said(answer) {
  const place = make("div", { class: "said" }, make("p", { class: "file", textContent: answer.file }));
  if (answer.unreadable) {
    place.append(make("p", { class: "none", textContent: `Cannot be read: ${answer.unreadable}` }));
    return place;
  }
  if (answer.known === false) {
    const rare = answer.p_value === null ? "" : `Only ${percent(answer.p_value)} of the photos of known classes are as foreign. `;
    place.append(make("p", { class: "none", textContent: "None of these." }), make("p", { class: "hint", textContent: `${rare}Closest:` }));
  }
  place.append(...answer.classes.slice(0, 3).map(answerLine));
  if (answer.answers && answer.answers.length !== 1 && answer.known !== false) {
    const text = answer.answers.length ? `One of: ${answer.answers.join(", ")}` : "Unsure: no class is likely enough.";
    place.append(make("p", { class: "hint", textContent: text }));
  }
  if (answer.nearest) {
    const name = answer.classes[0].name;
    const shown = make("figure", { class: "nearest" }, make("figcaption", { class: "hint", textContent: `Most similar “${name}” that is kept:` }));
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
  say(`Learned ${count} ${count === 1 ? "photo" : "photos"} as “${name}”. Undo takes it back.`, true);
  changed();
}

function correction(entry) {
  const name = make("input", { list: "class-names", placeholder: "this is a …", maxLength: 1000, required: true, autocomplete: "off",
    "aria-label": `Right class of ${entry.answer.file}` });
  const form = make("form", {}, name, make("button", { type: "submit", textContent: "Teach" }));
  action(form, "submit", async () => {
    await teachAs([entry.file], name.value.trim());
    await ask([entry]);
  });
  return form;
}

function show(entry) {
  const card = make("li", { class: "card" }, make("div", { class: "top" }, entry.answer.unreadable ? null : thumbnail(entry.file, entry.answer.file), said(entry.answer)));
  if (!entry.answer.unreadable && !document.body.classList.contains("read-only")) card.append(correction(entry));
  if (entry.card) entry.card.replaceWith(card);
  else $("answers").append(card);
  entry.card = card;
}

async function ask(entries) {
  const bar = $("ask-progress");
  bar.hidden = false;
  bar.value = 0;
  try {
    for (let start = 0; start < entries.length; start += AT_A_TIME) {
      const part = entries.slice(start, start + AT_A_TIME);
      const form = new FormData();
      for (const { file, path } of part) form.append("files", file, path || file.name || "photo");
      const { photos } = await post("/classify", form);
      photos.forEach((answer, i) => { part[i].answer = answer; show(part[i]); });
      bar.value = (start + part.length) / entries.length;
    }
  } finally {
    bar.hidden = true;
    $("answers").classList.toggle("rows", asked.length > FEW);
    $("ask-actions").hidden = !asked.length;
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
  const rows = asked.filter((entry) => entry.answer).map(({ answer }) => {
    const best = answer.classes[0];
    return [cell(answer.file), cell(best?.name), best ? best.probability.toFixed(6) : "", cell(answer.known),
      answer.novelty ?? "", cell(answer.answers?.join("; ")), cell(answer.unreadable)].join(",");
  });
  save("answers.csv", new Blob([["file,class,probability,known,novelty,answers,unreadable", ...rows].join("\n") + "\n"], { type: "text/csv" }));
}

function groupCard(group, entries) {
  const thumbs = make("ul", { class: "thumbs" }, ...entries.slice(0, 12).map(({ file }) => make("li", {}, thumbnail(file, file.name))));
  const name = make("input", { list: "class-names", placeholder: "these are …", value: group.suggestion ?? "", maxLength: 1000, required: true,
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

export function start() {
  takesFiles($("ask-drop"), [$("ask-files"), $("ask-camera")], take);
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length && !$("ask").hidden) take(files.map((file) => ({ file, path: file.name }))).catch((error) => say(error.message));
  });
  action($("ask-csv"), "click", csv);
  action($("ask-group"), "click", group);
  action($("ask-clear"), "click", () => {
    asked = [];
    $("answers").replaceChildren();
    $("answers").classList.remove("rows");
    $("groups").replaceChildren();
    $("ask-actions").hidden = true;
  });
}
