// Versions: every change, to go back to and download.

import { $, button, change, count, get, make, named, onClick, request, save, say, sure, table } from "./page.js";
import { isReadOnly, model } from "./state.js";

async function download(number, kind) {
  say(kind === "onnx" ? "Writing and checking the ONNX graph takes some seconds…" : "", true);
  const answer = await request(`/versions/${number}/${kind}`);
  const ending = kind === "onnx" ? "onnx" : "zip";
  save(`${model.summary.name}-${number}.${ending}`, await answer.blob());
  say("");
}

const COLUMNS = [
  { title: "Version", kind: "number" },
  { title: "Change", bare: true, kind: "name" },
  { title: "Classes", kind: "number" },
  { title: "Photos", kind: "number" },
  { title: "When", kind: "date" },
  { title: "Actions", bare: true },
];

function row(version, current) {
  const actions = make("div", { className: "row" });
  const other = version.number !== current;
  if (version.stored) {
    if (other && !isReadOnly()) {
      actions.append(button("Go to", `Go to version ${version.number}`, () => change(`/versions/${version.number}/serve`)));
    }
    if (version.classes) {
      actions.append(button("Bundle", `Download version ${version.number} as a bundle`, () => download(version.number, "bundle")));
      actions.append(button("ONNX", `Download version ${version.number} as ONNX`, () => download(version.number, "onnx")));
    }
  } else actions.append("removed");
  const number = version.number + (other ? "" : " ●");
  const when = new Date(version.time).toLocaleString(undefined, { dateStyle: "short", timeStyle: "short" });
  return { current: !other, cells: [number, named(version.message), version.classes, version.images, when, actions] };
}

export function show() {
  const { versions, current } = model.versions;
  table($("version-table"), COLUMNS, versions.map((version) => row(version, current)));
}

/** Delete photos and other versions for good, once someone has seen how many. */
async function purge(images) {
  const { images: photos, versions } = await get(`/purge?images=${images}`);
  const what = `Delete ${count(photos, "photo")} and ${count(versions, "other version")} for good? There is no Undo then.`;
  if (await sure(what, [{ value: "yes", text: "Delete for good", kind: "danger" }]) === "yes") await change("/purge", { images });
}

export function start() {
  for (const images of ["forgotten", "all"]) onClick(`purge-${images}`, () => purge(images));
}
