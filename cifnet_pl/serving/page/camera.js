// The camera of this device: photos of what it shows, one after the other.

import { $, action, count } from "./page.js";

let stream = null;
let taken = 0;

function close() {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  $("camera-video").srcObject = null;
  if ($("camera").open) $("camera").close();
}

async function open() {
  const phone = matchMedia("(pointer: coarse)").matches; // its own camera program does better than a video
  if (phone || !navigator.mediaDevices?.getUserMedia) {
    $("camera-file").click();
    return;
  }
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1280 } } });
  } catch (error) {
    const reasons = { NotAllowedError: "the browser was told not to let this page use it", NotFoundError: "there is none" };
    throw new Error(`The camera cannot be used: ${reasons[error.name] ?? error.message}. Choose a photo instead.`);
  }
  taken = 0;
  $("camera-taken").textContent = "";
  $("camera-video").srcObject = stream;
  $("camera").showModal();
}

/** A part of what an image or video shows, in its own pixels, as a file. */
export async function cutOut(shown, x, y, width, height, name) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").drawImage(shown, x, y, width, height, 0, 0, width, height);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  return { file: new File([blob], name, { type: "image/jpeg" }), path: name };
}

/** Call `take` with each photo that is taken; the camera stays open for the next one. */
export function takesPictures(take) {
  action($("camera-open"), "click", open);
  action($("camera-take"), "click", async () => {
    const video = $("camera-video");
    if (!video.videoWidth) throw new Error("The camera shows nothing yet: wait a moment.");
    const name = `camera-${new Date().toISOString().slice(11, 23).replaceAll(":", "-")}.jpg`;
    const photo = await cutOut(video, 0, 0, video.videoWidth, video.videoHeight, name);
    taken += 1;
    $("camera-taken").textContent = `${count(taken, "photo")} taken.`;
    await take([photo]);
  });
  $("camera-close").addEventListener("click", close);
  $("camera").addEventListener("close", close);
}
