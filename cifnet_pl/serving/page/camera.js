// The camera of this device: what it shows is answered while it runs; photos of it, one after the other.

import { $, action, attempt, bars, count, onClick, pause, SILENT, verdict } from "./page.js";
import { classified, cutOut, waitingOf } from "./photos.js";
import { camera } from "./state.js";

const PAUSE = 300; // milliseconds between an answer and the next question
const STALE = 2000; // milliseconds after which an answer says nothing of what the camera shows now
const SECOND = 1000; // milliseconds whose answers are one
const TEN = 10; // photos that are taken at most while the button is held
const BETWEEN = 300; // milliseconds between two of them
const SIDE = 640; // pixels of the longer side of a picture that is asked about

/** Show what the camera sees in a video; an error where the browser has no camera for this page. */
export async function openCamera(video) {
  const wanted = { facingMode: "environment", width: { ideal: 1280 } };
  camera.stream = await navigator.mediaDevices.getUserMedia({ video: wanted });
  video.srcObject = camera.stream;
}

/** What a video shows now, in its own pixels or small enough to be asked about at once. */
export function shot(video, name, small = false) {
  const { videoWidth: width, videoHeight: height } = video;
  const scale = small ? Math.min(1, SIDE / Math.max(width, height)) : 1;
  return cutOut(video, width, height, name, scale);
}

/** An answer together with those of the last second: the mean of the scores, and the classes of most of the sets. */
export function steady(answer) {
  const recent = camera.frames.filter(({ at, classes }) => Date.now() - at < SECOND && classes.length === answer.classes.length);
  camera.frames = [...recent, { at: Date.now(), ...answer }];
  const half = camera.frames.length / 2;
  const inMost = (test) => camera.frames.filter(test).length > half;
  const scores = new Map();
  for (const { classes } of camera.frames) {
    for (const { name, probability } of classes) scores.set(name, (scores.get(name) ?? 0) + Math.log(Math.max(probability, 1e-12)) / (2 * half));
  }
  const all = [...scores.values()].reduce((sum, score) => sum + Math.exp(score), 0);
  const means = [...scores].map(([name, score]) => ({ name, probability: Math.exp(score) / all })).sort((a, b) => b.probability - a.probability);
  const names = means.map(({ name }) => name).filter((name) => inMost((one) => one.prediction_set?.includes(name)));
  return { ...answer, classes: means, known: answer.known === null ? null : !inMost((one) => one.known === false),
    prediction_set: answer.prediction_set && names };
}

/** Ask about what a video shows, again and again while `on`. `show` gets an answer; or null and a reason, where none came
 * or the last one is old. */
export async function watch(video, on, show) {
  let old = 0;
  camera.frames = [];
  const tell = (answer, reason = "") => {
    clearTimeout(old);
    if (on()) show(answer, reason);
  };
  while (on()) {
    if (video.videoWidth && !document.hidden) {
      await shot(video, "camera.jpg", true).then(classified).then((answer) => tell(steady(answer)), (error) => tell(null, error.message));
      old = setTimeout(() => tell(null, SILENT), STALE);
    }
    await pause(PAUSE);
  }
}

function close() {
  camera.stream?.getTracks().forEach((track) => track.stop());
  camera.stream = null;
  $("camera-video").srcObject = null;
  $("camera").close();
}

function show(answer, reason) {
  const [text, remark] = answer ? verdict(answer) : ["No answer", reason];
  $("camera-answer").textContent = text;
  $("camera-remark").textContent = remark;
  $("camera-bars").replaceChildren(answer ? bars(answer) : "");
}

/** Open the camera for photos of a class, or of anything. */
export async function open(name = "") {
  if (!navigator.mediaDevices?.getUserMedia) { // browsers allow it on this machine and over HTTPS only
    $("camera-file").click();
    return;
  }
  try {
    await openCamera($("camera-video"));
  } catch (error) {
    throw new Error(`The camera cannot be used: ${error.message}. Choose a photo instead.`);
  }
  camera.stored = camera.left = 0;
  $("camera-name").value = name;
  $("camera-taken").textContent = $("camera-answer").textContent = $("camera-remark").textContent = "";
  $("camera").showModal();
  const own = camera.stream;
  watch($("camera-video"), () => camera.stream === own, show);
}

function showStored() {
  $("camera-taken").textContent = `${count(camera.stored, "photo")} stored${camera.left ? `, ${camera.left} not yet` : ""}.`;
}

/** A photo of what the camera shows. */
async function picture() {
  const video = $("camera-video");
  if (!video.videoWidth) throw new Error("The camera shows nothing yet: wait a moment.");
  const photo = await shot(video, `camera-${new Date().toISOString().slice(11, 23).replaceAll(":", "-")}.jpg`);
  camera.left += 1;
  showStored();
  return photo;
}

/** Call `take` with each photo that is taken and the name that was given; the camera stays open for the next one. */
export function takesPictures(take) {
  const store = (photos) => take(photos, $("camera-name").value.trim(), (part) => {
    camera.stored += waitingOf(part).length;
    camera.left -= part.images.length + part.known.length + part.unreadable.length;
    showStored();
  });
  onClick("camera-open", () => open());
  action($("camera-form"), "submit", async () => store([await picture()]));
  let held = false;
  for (const end of ["pointerup", "pointercancel", "lostpointercapture", "keyup"]) $("camera-ten").addEventListener(end, () => { held = false; });
  const hold = async () => { // turn the product meanwhile
    if (held) return;
    held = true;
    const photos = [];
    try {
      while (held && photos.length < TEN) {
        photos.push(await picture());
        await pause(BETWEEN);
      }
    } finally { // what was taken stays, also where the camera goes away meanwhile
      held = false;
      if (photos.length) await store(photos);
    }
  };
  action($("camera-ten"), "pointerdown", (event) => {
    $("camera-ten").setPointerCapture(event.pointerId); // what moves below the finger does not end it
    return hold();
  });
  $("camera-ten").addEventListener("keydown", (event) => { if (event.key === " " && !event.repeat) attempt(hold); });
  $("camera-close").addEventListener("click", close);
  $("camera").addEventListener("close", close);
}
