// Classes: how many photos each has, how often it is right; to rename, join, split and forget.

import {
  $, accuracy, button, change, count, get, hint, keptPhoto, make, named, onClick, onName, percent, post, promised, sure, table,
  takesBack,
} from "./page.js";
import { inbox, latestOnly, model, opened } from "./state.js";

const MOST = 200; // photos of a class that are shown, the newest

const { selected } = opened;

function figures(look, answers) {
  const found = { Classes: look.classes, Photos: look.images, ...promised(look.accuracy) };
  $("figures").replaceChildren(...Object.entries(found).map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  const help = ["found", "given"].includes(look.accuracy.kind) ? ["what helps most on another day: photos of that day or place, five of each class"] : [];
  const seldom = (answers?.classes ?? []).filter((one) => one.rarely_predicted).map(({ name }) => name);
  const never = seldom.length ? [`hardly ever answered: ${seldom.join(", ")}`] : [];
  $("about-days").textContent = [...never, look.accuracy.message.replace(/\.$/, ""), ...help].map((one) => `${one[0].toUpperCase()}${one.slice(1)}.`).join(" ");
}

const COLUMNS = [
  { title: "Class", kind: "name", bare: true },
  { title: "Examples", bare: true },
  { title: "Photos", kind: "number" },
  { title: "Right on another day", kind: "number" },
  { title: "Taken for", kind: "name" },
  { title: "Actions", bare: true },
];

/** How often a class is right on another day, as a bar: its middle, and between what as many new photos may show. */
function estimate({ accuracy: right, interval, rarely_predicted: seldom }, estimated) {
  if (right === undefined) return "…";
  if (right === null && !estimated) return hint("not estimated", "span");
  if (right === null) return make("span", { className: "warn" }, "needs photos");
  const [low, high] = interval ?? [right, right];
  const label = accuracy(right, interval, "");
  const range = make("span", { className: "range" });
  Object.assign(range.style, { left: `${low}%`, width: `${Math.max(1, high - low)}%` });
  const middle = make("span", { className: "middle" });
  middle.style.left = `${right}%`;
  const bar = make("span", { className: `interval ${seldom ? "bad" : ""}`, role: "img", title: label, ariaLabel: label }, range, middle);
  return make("span", { className: seldom ? "warn" : "" }, bar, `${right.toFixed(0)} %`, seldom ? " hardly ever answered" : "");
}

/** What a class is taken for: its newest photo beside that of the other one. */
function confusions(own, others, newest) {
  return others.map((other) => {
    const pair = [own, other].map((name) => (newest.get(name) ? keptPhoto(newest.get(name), name) : ""));
    return make("div", { className: "pair" }, ...pair, named(other));
  });
}

function row({ name, images: photos, kept_images: kept }, answers, newest, estimated) {
  const examples = make("ul", { className: "thumbs" }, ...kept.slice(-3).map((file) => make("li", {}, keptPhoto(file, name))));
  const actions = make("div", { className: "row" }, kept.length ? button("Photos", `Photos of ${name}`, () => {
    showPhotos(name, [kept.slice(-MOST)]);
    $("class-photos").scrollIntoView();
    $("class-group").focus();
  }) : "", button("Change", `Change ${name}`, () => {
    $("class-title").textContent = $("class-new").value = name;
    $("class").showModal();
  }, "plain changes"));
  const others = make("div", {}, ...confusions(name, answers.confused_with, newest));
  const stored = kept.length < photos ? hint(` (${kept.length} kept here)`, "span") : "";
  return { cells: [named(name), examples, make("span", {}, photos, stored), estimate(answers, estimated), others, actions] };
}

/** Show the photos of a class: in groups, if there are several. */
function showPhotos(name, groups) {
  opened.name = name;
  selected.clear();
  const all = groups.flat();
  $("class-photos").hidden = false;
  $("class-photos-title").textContent = `${name}: ${count(all.length, "photo")}`;
  $("class-groups").replaceChildren(...groups.map((photos, i) => {
    const text = `Select group ${i + 1} (${photos.length})`;
    const every = make("button", { type: "button", className: "changes", textContent: text, hidden: groups.length < 2 });
    every.addEventListener("click", () => select(photos, true));
    return make("div", {}, every, make("ul", { className: "cards" }, ...photos.map((photo) => {
      const label = `Select photo ${all.indexOf(photo) + 1} of ${name}`;
      const about = { type: "button", className: "picture", ariaLabel: label, ariaPressed: false };
      const picture = make("button", about, keptPhoto(photo, ""));
      picture.addEventListener("click", () => select([photo], !selected.has(photo)));
      const made = make("li", { className: "card" }, picture);
      made.dataset.photo = photo;
      return made;
    })));
  }));
  select([], true);
}

function select(photos, on) {
  for (const photo of photos) selected[on ? "add" : "delete"](photo);
  for (const card of $("class-groups").querySelectorAll(".card")) {
    const chosen = selected.has(card.dataset.photo);
    card.classList.toggle("selected", chosen);
    card.querySelector(".picture").ariaPressed = chosen;
  }
  $("move-form").hidden = !selected.size;
  $("move-count").textContent = `${selected.size} selected`;
}

async function group() {
  const photos = [...$("class-groups").querySelectorAll(".card")].map((card) => card.dataset.photo);
  const groups = (await post("/group", { images: photos })).map((one) => one.images);
  const single = groups.filter((one) => one.length === 1).flat();
  showPhotos(opened.name, [...groups.filter((one) => one.length > 1), single].filter((one) => one.length));
}

function doubtful({ file, label, predicted: other, label_probability: own }) {
  const text = make("p", {}, `Taught as “${label}” (${percent(own)}), looks like “${other}”.`);
  const made = make("li", { className: "card" }, keptPhoto(file, `Taught as ${label}`), text);
  const move = () => change("/move", { name: label, into: other, images: [file] }, takesBack, () => made.remove());
  made.append(button(named(`It is ${other}`), `It is ${other}`, move, "plain changes"));
  return made;
}

async function audit() {
  const place = $("audited");
  place.replaceChildren(make("p", { role: "status" }, "Judging every photo by all others…"));
  const { images, label_errors: errors, not_judged: rest } = await get("/audit").finally(() => place.replaceChildren());
  const photos = count(images, "kept photo");
  if (errors.length) {
    const cards = make("ul", { className: "cards" }, ...errors.map(doubtful));
    place.append(make("p", {}, `Of ${photos} these look more like another class:`), cards);
  } else if (images) place.append(make("p", {}, `None of ${photos} is doubtful.`));
  if (rest.length) place.append(hint(`Not judged, as one photo or near-copies of one alone are kept: ${rest.join(", ")}.`));
}

export function start() {
  const close = () => $("class").close();
  onClick("audit", audit);
  onClick("class-group", group);
  onClick("class-photos-close", () => { $("class-photos").hidden = true; });
  onName($("move-form"), (into) => {
    const asked = { name: opened.name, into, images: [...selected] };
    return change("/move", asked, takesBack, () => { $("move-name").value = ""; });
  });
  onClick("class-close", close);
  onName($("class-form"), (name) => {
    close();
    return change("/rename", { old: $("class-title").textContent, new: name }, takesBack);
  });
  onClick("forget", async () => {
    const name = $("class-title").textContent;
    close();
    const waiting = Object.values(inbox.view.names).filter((one) => one === name).length;
    const lost = waiting ? ` ${count(waiting, "photo that waits", "photos that wait")} under this name will have none.` : "";
    const asks = `Forget the class “${name}”? You can take it back as long as its photos and the versions before stay here.${lost}`;
    if (await sure(asks, [{ value: "yes", text: "Forget", kind: "danger" }]) === "yes") await change("/forget", { name }, takesBack);
  });
}

/** Show the classes, and ask how often each is right. */
export const show = latestOnly(async (still) => {
  const { summary: look, classes: found } = model;
  const draw = (answers) => {
    figures(look, answers);
    const of = new Map((answers?.classes ?? []).map((one) => [one.name, one]));
    const right = ({ name }) => of.get(name)?.accuracy ?? -1; // those that need photos first, then the worst
    const newest = new Map(found.map(({ name, kept_images: kept }) => [name, kept.at(-1)]));
    const unknown = { confused_with: [] };
    table($("class-table"), COLUMNS, [...found].sort((a, b) => right(a) - right(b)).map((one) => row(one, of.get(one.name) ?? unknown, newest, look.accuracy.kind !== "unknown")));
  };
  const open = $("class-photos").hidden ? null : found.find(({ name }) => name === opened.name);
  if (open?.kept_images.length) showPhotos(opened.name, [open.kept_images.slice(-MOST)]);
  else $("class-photos").hidden = true;
  draw(null);
  const answers = found.length ? await still(get("/classes/predictions")) : { classes: [] };
  const focused = document.activeElement.closest("#class-table button")?.ariaLabel;
  draw(answers);
  if (focused) [...$("class-table").querySelectorAll("button")].find((one) => one.ariaLabel === focused)?.focus();
});
