// Change: rename, forget, undo, redo, and the versions.

import { $, action, changed, ENOUGH, finished, get, isReadOnly, make, named, post, request, save, say, sure, table, waits } from "./page.js";

/** Ask for a change; `done` is called before the page shows it, when what was typed for it is no longer needed. */
async function change(path, content, done = () => {}) {
  const begin = ({ anyway, instead }) => (instead ? post("/join?wait=false", { ...content, new: instead })
    : post(`${path}?wait=false${anyway ? "&anyway=true" : ""}`, content));
  const job = await finished(begin, (now) => {
    if (now.place) say(waits(now), true);
  });
  done();
  const text = job.changed.says;
  await changed(`${text[0].toUpperCase()}${text.slice(1)}. Version ${job.changed.version} is served.`);
}

function button(text, label, work) {
  const element = make("button", { type: "button", class: "plain", textContent: text, "aria-label": label });
  action(element, "click", work);
  return element;
}

async function download(number, kind) {
  say(kind === "onnx" ? "Writing and checking the ONNX graph takes some seconds…" : "", true);
  const answer = await request(`/versions/${number}/${kind}`);
  const name = /filename="([^"]+)"/.exec(answer.headers.get("content-disposition") ?? "")?.[1] ?? `${kind}-${number}`;
  save(name, await answer.blob());
  say("");
}

const COLUMNS = [{ title: "Version", number: true }, { title: "Change", bare: true }, { title: "Classes", number: true }, { title: "Photos", number: true },
  { title: "New photos right", number: true }, { title: "When", kind: "date" }, { title: "", bare: true, kind: "actions" }];

function row(version, current) {
  const { held_back: right, held_back_photos: of } = version.scores;
  const scores = right === undefined ? "" : of < ENOUGH ? "too few to say" : `${right.toFixed(1)} % of ${of}`;
  const actions = make("div", { class: "row" });
  if (version.stored) {
    if (version.number !== current && !isReadOnly()) actions.append(button("Go to", `Go to version ${version.number}`, () => change(`/versions/${version.number}/serve`)));
    actions.append(button("Bundle", `Download version ${version.number} as a bundle`, () => download(version.number, "bundle")));
    actions.append(button("ONNX", `Download version ${version.number} as ONNX`, () => download(version.number, "onnx")));
  } else actions.append("removed");
  const number = version.number + (version.number === current ? " ●" : "");
  const when = new Date(version.when).toLocaleString(undefined, { dateStyle: "short", timeStyle: "short" });
  return { current: version.number === current, cells: [number, named(version.says), version.classes, version.photos, scores, when, actions] };
}

export async function show() {
  const { versions, current } = await get("/versions");
  table($("versions"), COLUMNS, versions.map((version) => row(version, current)));
  const stored = versions.filter((version) => version.stored);
  for (const [id, chosen] of [["compare-before", stored[1] ?? stored[0]], ["compare-after", stored[0]]]) {
    $(id).replaceChildren(...stored.map(({ number }) => make("option", { value: number, textContent: number, selected: number === chosen.number })));
  }
  $("compare-form").hidden = stored.length < 2;
  $("comparison").replaceChildren();
}

async function compare() {
  const found = await get(`/versions/${$("compare-before").value}/compare/${$("compare-after").value}`);
  if (!found.length) {
    $("comparison").replaceChildren(make("p", { textContent: "No class has another number of photos." }));
    return;
  }
  const place = make("table");
  const columns = [{ title: "Class" }, { title: "Photos before", number: true }, { title: "Photos after", number: true }];
  table(place, columns, found.map(({ name, before, after }) => ({ cells: [named(name), before ?? "not known", after ?? "not known"] })));
  $("comparison").replaceChildren(place);
}

export function start() {
  action($("undo"), "click", () => change("/undo"));
  action($("redo"), "click", () => change("/redo"));
  action($("change-form"), "submit", async () => {
    const name = $("change-new").value.trim();
    if (!name) throw new Error("Give the new name.");
    await change("/rename", { old: $("change-old").value, new: name }, () => { $("change-new").value = ""; });
  });
  action($("forget"), "click", async () => {
    const name = $("change-old").value;
    const text = `Forget the class “${name}”? Its photos and the version before stay until you delete them for good, so you can take it back.`;
    if (await sure(text, "Forget") === "yes") await change("/forget", { name });
  });
  action($("compare-form"), "submit", compare);
  for (const [photos, text] of [["forgotten", "photos of forgotten classes"], ["all", "all kept photos"]]) {
    action($(`purge-${photos}`), "click", async () => {
      if (await sure(`Delete ${text} and all other versions for good?`, "Delete") === "yes") await change("/purge", { photos });
    });
  }
}
