// A box for each class: photos that are dropped on it, chosen or taken for it get its name.

import { open } from "./camera.js";
import { $, action, button, make, named, takesFiles } from "./page.js";
import { boxes, inbox, model } from "./state.js";

function box({ name, learned, waiting }, take) {
  const files = make("input", { type: "file", accept: "image/*,.heic,.heif,.zip", multiple: true, "aria-label": `Photos of ${name}` });
  const camera = button("Camera", `Camera for ${name}`, () => open(name));
  const row = make("div", { class: "row" }, make("label", { class: "button plain" }, "Photos", files), camera);
  const made = make("li", { class: "card drop", "aria-label": name }, named(name), make("p", { class: "hint", textContent: `${learned} learned, ${waiting} waiting` }), row);
  takesFiles(made, [files], (photos) => take(photos, name), made);
  return made;
}

/** Show the boxes of all classes that are known or named; `take` gets the photos of a box and its name. */
export function showBoxes(take) {
  const given = Object.values(inbox.view.names);
  const learned = Object.fromEntries(model.classes.map(({ name, images }) => [name, images]));
  const names = [...new Set([...Object.keys(learned), ...given, ...boxes.added])];
  const rows = names.map((name) => ({ name, learned: learned[name] ?? 0, waiting: given.filter((one) => one === name).length }));
  const looks = JSON.stringify(rows);
  if (!$("boxes").open || $("box-list").dataset.looks === looks) return;
  $("box-list").dataset.looks = looks;
  $("box-list").replaceChildren(...rows.map((row) => box(row, take)));
}

export function startBoxes(take) {
  action($("boxes"), "toggle", () => showBoxes(take));
  action($("box-form"), "submit", () => {
    boxes.added.push($("box-name").value.trim());
    $("box-name").value = "";
    showBoxes(take);
  });
}
