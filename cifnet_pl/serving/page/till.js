// The view for the till: the camera large, the answer large, and tiles to tap.

import { $, action, classified, count, cutOut, get, known, likely, make, named, post, say, send } from "./page.js";

const PAUSE = 400; // milliseconds between two looks of the camera
const SIDE = 640; // pixels of the longer side of what is looked at
const DAYS = 30;

let stream = null;
let asked = null; // the photo that is asked about: {file, path}, its answer, and whether it was right
let readOnly = false;

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
  while (stream && !asked) {
    if (video.videoWidth && !document.hidden) {
      const scale = Math.min(1, SIDE / Math.max(video.videoWidth, video.videoHeight));
      const photo = await cutOut(video, 0, 0, video.videoWidth, video.videoHeight, "till.jpg", scale);
      try {
        const answer = await classified(photo);
        if (!asked) showAnswer(answer);
      } catch (error) {
        say(error.message);
      }
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
}

const counted = async (counts) => (readOnly ? undefined : showDays(await post("/days", counts)));

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
  asked = { photo, answer: null };
  const own = asked;
  $("till-photo").src = URL.createObjectURL(photo.file);
  $("till-photo").hidden = false;
  $("till-video").hidden = true;
  const answer = await classified(photo);
  own.answer = answer;
  showAnswer(answer);
  $("till-take").hidden = true;
  $("till-next").hidden = false;
  if (!readOnly) showTiles(answer);
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
  const { photo, answer } = asked;
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
  asked = null;
  URL.revokeObjectURL($("till-photo").src);
  $("till-photo").hidden = $("till-tiles").hidden = $("till-form").hidden = $("till-next").hidden = true;
  $("till-take").hidden = !stream;
  $("till-video").hidden = !stream;
  $("till-name").value = "";
  if (stream) look();
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

async function openCamera() {
  if (!navigator.mediaDevices?.getUserMedia) throw new Error("no camera");
  stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1280 } } });
  $("till-video").srcObject = stream;
}

async function take() {
  const video = $("till-video");
  if (asked || !video.videoWidth) return;
  await ask(await cutOut(video, 0, 0, video.videoWidth, video.videoHeight, `till-${Date.now()}.jpg`));
}

async function start() {
  const [state, classes, days] = await Promise.all([get("/summary"), get("/classes"), get("/days")]);
  readOnly = state.read_only;
  $("model-name").textContent = state.name;
  document.title = `Till · ${state.name} · cifnet`;
  $("class-names").replaceChildren(...classes.map(({ name }) => make("option", { value: name })));
  showDays(days);
  try {
    await openCamera();
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
  if (event.key === " ") Promise.resolve(asked ? next() : take()).catch((error) => say(error.message));
  const tile = $("till-tiles").children["123".indexOf(event.key)];
  if (asked && !$("till-tiles").hidden && tile) tile.click();
});
start().catch((error) => say(error.message));
