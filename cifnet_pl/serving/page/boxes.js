// A box for each class: photos that are dropped on it, chosen or taken for it get its name.

import { open } from "./camera.js";
import { $, action, button, make, named, onName, takesFiles } from "./page.js";
import { boxes, inbox, model } from "./state.js";

function box(name, take) {
  const files = make("input", { type: "file", accept: "image/*,.heic,.heif,.zip", multiple: true, ariaLabel: `Photos of ${name}` });
  const camera = button("Camera", `Camera for ${name}`, () => open(name));
  const row = make("div", { className: "row" }, make("label", { className: "button plain" }, "Photos", files), camera);
  const made = make("li", { className: "card drop", ariaLabel: name }, named(name), row);
  takesFiles(made, [files], (photos) => take(photos, name), made);
  return made;
}

/** Show the boxes of all classes that are known or named; `take` gets the photos of a box and its name. */
export function showBoxes(take) {
  const known = model.classes.map(({ name }) => name);
  const names = [...new Set([...known, ...Object.values(inbox.view.names), ...boxes.added])];
  const looks = JSON.stringify(names);
  if (!$("boxes").open || $("box-list").dataset.looks === looks) return;
  $("box-list").dataset.looks = looks;
  $("box-list").replaceChildren(...names.map((name) => box(name, take)));
}

export function startBoxes(take) {
  action($("boxes"), "toggle", () => showBoxes(take));
  onName($("box-form"), (name) => {
    boxes.added.push(name);
    $("box-name").value = "";
    showBoxes(take);
  });
}
