// Versions: every change, to go back to and download.

import { $, button, change, count, ENOUGH, get, make, named, onClick, request, save, say, sure, table } from "./page.js";
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
  { title: "New photos right (these days)", kind: "number" },
  { title: "When", kind: "date" },
  { title: "Actions", bare: true },
];

function row(version, current) {
  const { new_accuracy: right, new_images: of } = version.scores;
  const scores = right === undefined ? "" : of < ENOUGH ? "too few to say" : `${right.toFixed(0)} % of ${of}`;
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
  return { current: !other, cells: [number, named(version.message), version.classes, version.images, scores, when, actions] };
}

export function show() {
  const { versions, current } = model.versions;
  const removed = versions.filter(({ stored }) => !stored).length;
  const gone = removed ? ` ${count(removed, "version was", "versions were")} deleted for good.` : "";
  $("versions-hint").textContent = `Every change makes a version: go back to any that is stored here.${gone}`;
  table($("version-table"), COLUMNS, versions.map((version) => row(version, current)));
}

/** Delete photos and other versions for good, once someone has seen how many. */
async function purge(images) {
  const { learned, taken_away: away, versions } = await get(`/purge?images=${images}`);
  const parts = [count(learned, "photo"), away ? `${count(away, "photo")} that you took away` : "", count(versions, "other version")];
  const what = `Delete ${parts.filter(Boolean).join(" and ")} for good? There is no Undo then.`;
  if (await sure(what, [{ value: "yes", text: "Delete for good", kind: "danger" }]) === "yes") await change("/purge", { images });
}

export function start() {
  for (const images of ["forgotten", "all"]) onClick(`purge-${images}`, () => purge(images));
}
