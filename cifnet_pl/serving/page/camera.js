// The camera of this device: what it shows is answered while it runs; photos of it, one after the other.

import { $, action, answerTo, count, cutOut } from "./page.js";

const PAUSE = 300; // milliseconds between an answer and the next question
const SIDE = 640; // pixels of the longer side of a picture that is asked about

let stream = null;
let taken = 0;

function close() {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  $("camera-video").srcObject = null;
  if ($("camera").open) $("camera").close();
}

/** Answer what the camera shows, again and again, until it is closed. */
async function answerWhile(own) {
  const video = $("camera-video");
  while (stream === own) {
    if (video.videoWidth) {
      const scale = Math.min(1, SIDE / Math.max(video.videoWidth, video.videoHeight));
      const shown = cutOut(video, 0, 0, video.videoWidth, video.videoHeight, "camera.jpg", scale);
      const [text, remark] = await shown.then(answerTo).catch((error) => ["", error.message]);
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
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1280 } } });
  } catch (error) {
    const reasons = { NotAllowedError: "the browser was told not to let this page use it", NotFoundError: "there is none" };
    throw new Error(`The camera cannot be used: ${reasons[error.name] ?? error.message}. Choose a photo instead.`);
  }
  taken = 0;
  $("camera-taken").textContent = $("camera-answer").textContent = $("camera-remark").textContent = $("camera-name").value = "";
  $("camera-video").srcObject = stream;
  $("camera").showModal();
  answerWhile(stream);
}

/** Call `take` with each photo that is taken and the name that was given; the camera stays open for the next one. */
export function takesPictures(take) {
  action($("camera-open"), "click", open);
  action($("camera-form"), "submit", async () => {
    const [video, given] = [$("camera-video"), $("camera-name").value.trim()];
    if (!video.videoWidth) throw new Error("The camera shows nothing yet: wait a moment.");
    const name = `camera-${new Date().toISOString().slice(11, 23).replaceAll(":", "-")}.jpg`;
    const photo = await cutOut(video, 0, 0, video.videoWidth, video.videoHeight, name);
    taken += 1;
    $("camera-taken").textContent = `${count(taken, "photo")} taken.`;
    await take([photo], given);
  });
  $("camera-close").addEventListener("click", close);
  $("camera").addEventListener("close", close);
}
