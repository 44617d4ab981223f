// The camera of this device: a photo of what it shows.

import { $, action, say } from "./page.js";

let stream = null;

function close() {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  $("camera-video").srcObject = null;
  if ($("camera").open) $("camera").close();
}

async function open() {
  const phone = matchMedia("(pointer: coarse)").matches; // its own camera program does better than a video
  if (phone || !navigator.mediaDevices?.getUserMedia) {
    $("ask-camera").click();
    return;
  }
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1280 } } });
  } catch (error) {
    const reasons = { NotAllowedError: "the browser was told not to let this page use it", NotFoundError: "there is none" };
    throw new Error(`The camera cannot be used: ${reasons[error.name] ?? error.message}. Choose a photo instead.`);
  }
  $("camera-video").srcObject = stream;
  $("camera").showModal();
}

async function photo() {
  const video = $("camera-video");
  if (!video.videoWidth) throw new Error("The camera shows nothing yet: wait a moment.");
  const canvas = document.createElement("canvas");
  canvas.width = video.videoWidth;
  canvas.height = video.videoHeight;
  canvas.getContext("2d").drawImage(video, 0, 0);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  const name = `camera-${new Date().toISOString().slice(11, 19).replaceAll(":", "-")}.jpg`;
  return { file: new File([blob], name, { type: "image/jpeg" }), path: name };
}

/** Call `take` with each photo that is taken. */
export function takesPictures(take) {
  action($("ask-camera-open"), "click", open);
  action($("camera-take"), "click", async () => {
    try {
      const taken = await photo();
      close();
      await take([taken]);
    } catch (error) {
      close();
      say(error.message);
    }
  });
  $("camera-close").addEventListener("click", close);
  $("camera").addEventListener("close", close);
}
