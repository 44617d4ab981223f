// A box for each class: photos that are dropped on it, chosen or taken for it get its name.

import { open } from "./camera.js";
import { $, action, button, hint, make, named, onName, takesFiles } from "./page.js";
import { boxes, inbox, model } from "./state.js";

function box({ name, learned, waiting }, take) {
  const files = make("input", { type: "file", accept: "image/*,.heic,.heif,.zip", multiple: true, ariaLabel: `Photos of ${name}` });
  const camera = button("Camera", `Camera for ${name}`, () => open(name));
  const row = make("div", { className: "row" }, make("label", { className: "button plain" }, "Photos", files), camera);
  const made = make("li", { className: "card drop", ariaLabel: name }, named(name), hint(`${learned} learned, ${waiting} waiting`), row);
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
  onName($("box-form"), (name) => {
    boxes.added.push(name);
    $("box-name").value = "";
    showBoxes(take);
  });
}
