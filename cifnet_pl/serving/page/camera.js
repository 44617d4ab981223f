// The camera of this device: what it shows is answered while it runs; photos of it, one after the other.

import { $, action, answerTo, count, cutOut, say } from "./page.js";
import { camera } from "./state.js";

const PAUSE = 300; // milliseconds between an answer and the next question
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
  return cutOut(video, 0, 0, width, height, name, scale);
}

function close() {
  camera.stream?.getTracks().forEach((track) => track.stop());
  camera.stream = null;
  $("camera-video").srcObject = null;
  if ($("camera").open) $("camera").close();
}

/** Answer what the camera shows, again and again, until it is closed. */
async function answerWhile(own) {
  const video = $("camera-video");
  while (camera.stream === own) {
    if (video.videoWidth) {
      const [text, remark] = await shot(video, "camera.jpg", true).then(answerTo).catch((error) => ["", error.message]);
      $("camera-answer").textContent = text;
      $("camera-remark").textContent = remark;
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
}

async function open() {
  if (!navigator.mediaDevices?.getUserMedia) { // browsers allow it on this machine and over HTTPS only
    $("camera-file").click();
    return;
  }
  try {
    await openCamera($("camera-video"));
  } catch (error) {
    const reasons = { NotAllowedError: "the browser was told not to let this page use it", NotFoundError: "there is none" };
    throw new Error(`The camera cannot be used: ${reasons[error.name] ?? error.message}. Choose a photo instead.`);
  }
  camera.taken = 0;
  $("camera-taken").textContent = $("camera-answer").textContent = $("camera-remark").textContent = $("camera-name").value = "";
  $("camera").showModal();
  answerWhile(camera.stream);
}

/** A photo of what the camera shows. */
async function picture() {
  const video = $("camera-video");
  if (!video.videoWidth) throw new Error("The camera shows nothing yet: wait a moment.");
  const name = `camera-${new Date().toISOString().slice(11, 23).replaceAll(":", "-")}.jpg`;
  const photo = await shot(video, name);
  camera.taken += 1;
  $("camera-taken").textContent = `${count(camera.taken, "photo")} taken.`;
  return photo;
}

/** Up to ten photos while a button is held: turn the product meanwhile. */
async function several(held) {
  const photos = [];
  while (held() && photos.length < TEN) {
    photos.push(await picture());
    await new Promise((resolve) => setTimeout(resolve, BETWEEN));
  }
  return photos;
}

/** Call `take` with each photo that is taken and the name that was given; the camera stays open for the next one. */
export function takesPictures(take) {
  action($("camera-open"), "click", open);
  action($("camera-form"), "submit", async () => {
    const given = $("camera-name").value.trim();
    await take([await picture()], given);
  });
  let held = false;
  for (const end of ["pointerup", "pointercancel", "lostpointercapture", "keyup"]) $("camera-ten").addEventListener(end, () => { held = false; });
  const hold = async () => {
    if (held) return;
    held = true;
    const given = $("camera-name").value.trim();
    const photos = await several(() => held);
    held = false;
    await take(photos, given);
  };
  action($("camera-ten"), "pointerdown", (event) => {
    $("camera-ten").setPointerCapture(event.pointerId); // what moves below the finger does not end it
    return hold();
  });
  $("camera-ten").addEventListener("keydown", (event) => { if (event.key === " " && !event.repeat) hold().catch((error) => say(error.message)); });
  $("camera-close").addEventListener("click", close);
  $("camera").addEventListener("close", close);
}
