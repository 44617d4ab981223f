// Versions: every change, to go back to, compare and download.

import { $, action, change, count, ENOUGH, get, isReadOnly, make, named, request, save, say, sure, table } from "./page.js";

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

async function compare(number, current) {
  const found = await get(`/versions/${number}/compare/${current}`);
  const place = make("table");
  const columns = [{ title: "Class" }, { title: `Photos in version ${number}`, number: true }, { title: `in version ${current}`, number: true }];
  table(place, columns, found.map(({ name, before, after }) => ({ cells: [named(name), before ?? "not known", after ?? "not known"] })));
  $("comparison").replaceChildren(make("h2", { textContent: `${count(found.length, "class differs", "classes differ")} from version ${number}` }), ...(found.length ? [place] : []));
}

const COLUMNS = [{ title: "Version", number: true }, { title: "Change", bare: true, kind: "name" }, { title: "Classes", number: true }, { title: "Photos", number: true },
  { title: "New photos right (these days)", number: true }, { title: "When", kind: "date" }, { title: "", bare: true }];

function row(version, current) {
  const { held_back: right, held_back_photos: of } = version.scores;
  const scores = right === undefined ? "" : of < ENOUGH ? "too few to say" : `${right.toFixed(0)} % of ${of}`;
  const actions = make("div", { class: "row" });
  const other = version.number !== current;
  if (version.stored) {
    if (other && !isReadOnly()) actions.append(button("Go to", `Go to version ${version.number}`, () => change(`/versions/${version.number}/serve`)));
    if (other) actions.append(button("Compare", `Compare version ${version.number} with the one that is served`, () => compare(version.number, current)));
    if (version.classes) {
      actions.append(button("Bundle", `Download version ${version.number} as a bundle`, () => download(version.number, "bundle")));
      actions.append(button("ONNX", `Download version ${version.number} as ONNX`, () => download(version.number, "onnx")));
    }
  } else actions.append("removed");
  const number = version.number + (other ? "" : " ●");
  const when = new Date(version.when).toLocaleString(undefined, { dateStyle: "short", timeStyle: "short" });
  return { current: !other, cells: [number, named(version.says), version.classes, version.photos, scores, when, actions] };
}

export async function show() {
  const { versions, current } = await get("/versions");
  table($("version-table"), COLUMNS, versions.map((version) => row(version, current)));
  $("comparison").replaceChildren();
}

export function start() {
  for (const [photos, text] of [["forgotten", "photos of forgotten classes"], ["all", "all kept photos"]]) {
    action($(`purge-${photos}`), "click", async () => {
      if (await sure(`Delete ${text} and all other versions for good?`, "Delete") === "yes") await change("/purge", { photos });
    });
  }
}
