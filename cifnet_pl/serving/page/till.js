// The view for the till: the camera large, the answer large, and tiles to tap.

import { openCamera, shot } from "./camera.js";
import { $, action, classified, count, get, known, likely, make, named, post, say, send } from "./page.js";
import { camera, isReadOnly, model, refresh, till } from "./state.js";

const PAUSE = 400; // milliseconds between two looks of the camera
const DAYS = 30;

/** The classes that are likely enough, where it is not one. */
const possible = ({ prediction_set: set }) => (set && set.length > 1 ? set : []);

/** Show the class with its probability, and the others that it could be, or that it is not known. */
function showAnswer(answer) {
  const [best] = answer.classes;
  const isKnown = known(answer);
  $("till-answer").className = isKnown ? "" : "unknown";
  const text = answer.unreadable ? "Cannot be read" : !best ? "Nothing is known yet" : isKnown ? best.name : "Not known";
  const several = isKnown && possible(answer).length ? make("small", { textContent: `One of: ${possible(answer).join(", ")}` }) : null;
  const share = isKnown ? make("small", { textContent: likely(best.probability) }) : "";
  $("till-answer").replaceChildren(make("span", {}, named(text), several), share);
}

/** Look at what the camera shows until a photo is asked about. */
async function look() {
  const video = $("till-video");
  while (camera.stream && !till.asked) {
    if (video.videoWidth && !document.hidden) {
      try {
        const answer = await classified(await shot(video, "till.jpg", true));
        if (!till.asked) showAnswer(answer);
      } catch (error) {
        say(error.message);
      }
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
}

const counted = async (counts) => (isReadOnly() ? undefined : showDays(await post("/days", counts)));

function showTiles(answer) {
  const tiles = answer.classes.slice(0, 3).map(({ name }) => {
    const tile = make("button", { type: "button", "aria-label": `It is ${name}` }, named(name));
    action(tile, "click", () => decide(name));
    return tile;
  });
  $("till-tiles").replaceChildren(...tiles);
  $("till-tiles").hidden = $("till-form").hidden = false;
}

/** Ask about one photo, and wait for a tap. */
async function ask(photo) {
  const own = { photo, answer: null };
  till.asked = own;
  $("till-photo").src = URL.createObjectURL(photo.file);
  $("till-photo").hidden = false;
  $("till-video").hidden = true;
  const answer = await classified(photo);
  own.answer = answer;
  showAnswer(answer);
  $("till-take").hidden = true;
  $("till-next").hidden = false;
  if (!isReadOnly()) showTiles(answer);
}

/** Keep a photo for the next lesson under a name. */
async function keep(photo, name) {
  const form = new FormData();
  form.append("files", photo.file, photo.path);
  const { images } = await send("/inbox", form, () => {});
  if (images.length) await post("/inbox/names", { names: Object.fromEntries(images.map((image) => [image, name])) });
}

/** A tap says what it is: a wrong answer is corrected, and its photo kept. */
async function decide(name) {
  const { photo, answer } = till.asked;
  const right = known(answer) && answer.classes[0]?.name === name;
  const unsure = !known(answer) || possible(answer).length > 0;
  await counted({ asked: 1, unsure: unsure ? 1 : 0, corrected: right ? 0 : 1 });
  if (!right) {
    await keep(photo, name);
    say(`Kept as “${name}”; it is learned with the next lesson.`, true);
  } else if ($("till-keep").checked) await keep(photo, name);
  next();
}

/** Go on. Where nobody tapped, nobody said whether it was right, so it is not counted. */
function next() {
  till.asked = null;
  URL.revokeObjectURL($("till-photo").src);
  $("till-photo").hidden = $("till-tiles").hidden = $("till-form").hidden = $("till-next").hidden = true;
  $("till-take").hidden = $("till-video").hidden = !camera.stream;
  $("till-name").value = "";
  if (camera.stream) look();
  else $("till-answer").replaceChildren("Take a photo");
}

function showDays(days) {
  const right = ({ asked: all, corrected }) => (all ? Math.max(0, 1 - corrected / all) : 0);
  const today = days.at(-1);
  $("today").textContent = today ? `${today.date}: ${count(today.asked, "photo")} asked, ${today.unsure} unsure, ${today.corrected} corrected: ${Math.round(100 * right(today))} % right` : "";
  $("till-days").replaceChildren(...days.slice(-DAYS).map((day) => {
    const bar = make("span", { class: "bar" });
    bar.style.height = `${100 * right(day)}%`;
    const label = `${day.date}: ${Math.round(100 * right(day))} % of ${day.asked} right, ${day.unsure} unsure`;
    return make("span", { class: "day", title: label, role: "img", "aria-label": label }, bar);
  }));
}

async function take() {
  const video = $("till-video");
  if (till.asked || !video.videoWidth) return;
  await ask(await shot(video, `till-${Date.now()}.jpg`));
}

async function start() {
  await refresh();
  const { summary, classes } = model;
  $("model-name").textContent = summary.name;
  document.title = `Till · ${summary.name} · cifnet`;
  $("class-names").replaceChildren(...classes.map(({ name }) => make("option", { value: name })));
  showDays(await get("/days"));
  try {
    await openCamera($("till-video"));
  } catch {
    $("till-choose").hidden = false; // browsers allow the camera on this machine and over HTTPS only
  }
  next();
}

action($("till-take"), "click", take);
action($("till-video"), "click", take);
action($("till-next"), "click", next);
action($("till-form"), "submit", () => {
  const name = $("till-name").value.trim();
  if (!name) throw new Error("Type a name first.");
  return decide(name);
});
action($("till-file"), "change", async () => {
  const [file] = $("till-file").files;
  if (file) await ask({ file, path: file.name });
  $("till-file").value = "";
});
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, button, summary")) return;
  if (event.key === " ") Promise.resolve(till.asked ? next() : take()).catch((error) => say(error.message));
  const tile = $("till-tiles").children["123".indexOf(event.key)];
  if (till.asked && !$("till-tiles").hidden && tile) tile.click();
});
start().catch((error) => say(error.message));
