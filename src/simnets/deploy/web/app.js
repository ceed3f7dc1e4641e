"use strict";
// One picture at a time: file → pixels of the network's size → scores → bars, and the first layer's maps.

const LARGEST_FILE = 50e6; // bytes
const MOST_PIXELS = 80e6; // as in simnets.data.read_image
const FINE_PIXELS = 4e6; // larger pictures are first scaled down by the browser, to save memory
const SHOWN_CLASSES = 10;
const SHOWN_TEMPLATES = 6;
const TIMING_RUNS = 30;
const TIMING_MS = 100;

/** Something that the person at the page can understand, and perhaps mend. */
class Problem extends Error {}

const at = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;

let ort, page, network, layer, tiles;
let failure = ""; // why they could not be loaded
let turn = 0; // the newest picture's number; what belongs to an older one is dropped
const ready = start();
let queue = ready; // sessions compute one thing at a time

// ── loading ─────────────────────────────────────────────────────────────────────────────────────────────

async function start() {
  try {
    page = await (await get("page.json")).json();
    describe();
    ort = await import(`./runtime/${page.runtime.script}`);
    ort.env.wasm.numThreads = 1; // more would need headers that a plain static server does not send
    ort.env.wasm.wasmBinary = await (await get(`runtime/${page.runtime.wasm}`, "default")).arrayBuffer();
    network = await session("model.onnx");
    if (page.templates) {
      layer = await session("templates.onnx");
      tiles = await createImageBitmap(await (await get("templates.png")).blob());
    }
    const [channels, height, width] = page.input;
    await compute(network, new Uint8Array(channels * height * width)); // the first run is slow
    if (!turn) say("Ready.");
  } catch (error) {
    const hint =
      location.protocol === "file:"
        ? "Opened from the disk, a page may not load its parts. Serve the folder: python -m http.server, then open http://localhost:8000"
        : error.message;
    failure = `The network cannot be loaded. ${hint}`;
    say(failure, true);
    throw error;
  }
}

async function get(address, cache = "no-cache") {
  const response = await fetch(address, { cache });
  if (!response.ok) throw new Problem(`${address}: the server answered ${response.status}.`);
  return response;
}

async function session(address) {
  const content = new Uint8Array(await (await get(address)).arrayBuffer());
  return ort.InferenceSession.create(content, { executionProviders: ["wasm"] });
}

function describe() {
  const [, height, width] = page.input;
  const { classes, cost, examples } = page;
  at("network").textContent =
    `A network of ${cost.params.toLocaleString("en")} parameters knows ${classes.length} classes. ` +
    "It is computed in your browser; the picture does not leave your device.";
  at("seen-size").textContent = `what the network sees: ${width}×${height} pixels`;
  at("about").textContent =
    `${page.network} of simnets ${page.simnets}, ${(cost.flops / 1e6).toFixed(1)} M FLOPs a picture, ` +
    `ONNX Runtime Web ${page.runtime.version}. ` +
    (classes.length <= 20 ? `Classes: ${classes.join(", ")}.` : "");
  const group = at("examples").querySelector(".examples");
  examples.forEach((example, index) => {
    const name = `Example ${index + 1}` + (example.label === null ? "" : ` (labelled ${example.label})`);
    const image = element("img", { src: example.file, alt: name, title: name });
    const button = element("button", { type: "button" }, image);
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", async () => {
      const asked = classify(get(example.file).then((response) => response.blob()), name);
      button.setAttribute("aria-pressed", "true");
      await asked;
    });
    group.append(button);
  });
  at("examples").hidden = !examples.length;
}

// ── pictures ────────────────────────────────────────────────────────────────────────────────────────────

/** The picture in a file as uint8 (C, H, W): upright, scaled to cover (H, W), centre cropped, on white. */
async function toPixels(blob, [channels, height, width]) {
  if (blob.size > LARGEST_FILE)
    throw new Problem(`it has ${Math.round(blob.size / 1e6)} MB, and ${LARGEST_FILE / 1e6} MB is the most.`);
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  } catch {
    throw new Problem("this is not a picture that the browser can read (PNG, JPEG, WebP, GIF or BMP).");
  }
  if (bitmap.width * bitmap.height > MOST_PIXELS)
    throw new Problem(`${bitmap.width}×${bitmap.height} pixels are too many; scale it down.`);
  const shrink = Math.min(1, Math.sqrt(FINE_PIXELS / (bitmap.width * bitmap.height)));
  const size = [bitmap.width, bitmap.height].map((n) => Math.max(1, Math.round(shrink * n)));
  const context = canvas(...size).getContext("2d", { willReadFrequently: true });
  context.imageSmoothingEnabled = shrink < 1;
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, ...size);
  bitmap.close();
  const planes = flatten(context.getImageData(0, 0, ...size).data, channels);
  const result = new Uint8Array(channels * height * width);
  planes.forEach((plane, c) => result.set(fit(plane, ...size, width, height), c * height * width));
  return result;
}

/** RGBA on white, as planes: three colours, or one of grey. */
function flatten(rgba, channels) {
  const planes = Array.from({ length: channels }, () => new Uint8Array(rgba.length / 4));
  const color = [0, 0, 0];
  for (let i = 0; i < rgba.length; i += 4) {
    const alpha = rgba[i + 3];
    for (let c = 0; c < 3; c++)
      color[c] = alpha === 255 ? rgba[i + c] : Math.round((rgba[i + c] * alpha + 255 * (255 - alpha)) / 255);
    if (channels === 3) for (let c = 0; c < 3; c++) planes[c][i / 4] = color[c];
    // luma of ITU-R 601, in the integers that Pillow takes
    else planes[0][i / 4] = (19595 * color[0] + 38470 * color[1] + 7471 * color[2] + 32768) >> 16;
  }
  return planes;
}

/** A plane scaled to cover width×height, centre cropped; bicubic, as `simnets predict` does it. */
function fit(plane, fromWidth, fromHeight, width, height) {
  const scale = Math.min(fromWidth / width, fromHeight / height);
  const across = taps(fromWidth, scale, width);
  const down = taps(fromHeight, scale, height);
  const narrow = new Uint8ClampedArray(width * fromHeight);
  for (let y = 0; y < fromHeight; y++)
    across.forEach(({ first, weights }, x) => {
      let sum = 0;
      for (let k = 0; k < weights.length; k++) sum += weights[k] * plane[y * fromWidth + first + k];
      narrow[y * width + x] = sum;
    });
  const result = new Uint8ClampedArray(width * height);
  down.forEach(({ first, weights }, y) => {
    for (let x = 0; x < width; x++) {
      let sum = 0;
      for (let k = 0; k < weights.length; k++) sum += weights[k] * narrow[(first + k) * width + x];
      result[y * width + x] = sum;
    }
  });
  return result;
}

/** For each of `size` places, `scale` pixels apart about the middle: the first pixel and the weights of all. */
function taps(available, scale, size) {
  const start = (available - scale * size) / 2;
  const widening = Math.max(1, scale);
  return Array.from({ length: size }, (_, index) => {
    const center = start + (index + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - 2 * widening + 0.5));
    const end = Math.min(available, Math.trunc(center + 2 * widening + 0.5));
    const weights = Array.from({ length: end - first }, (_, k) => cubic((first + k + 0.5 - center) / widening));
    const sum = weights.reduce((a, b) => a + b);
    return { first, weights: weights.map((weight) => weight / sum) };
  });
}

/** Keys' cubic with a = −1/2: 1 at 0, 0 at every other whole number. */
function cubic(x) {
  x = Math.abs(x);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

// ── computing ───────────────────────────────────────────────────────────────────────────────────────────

async function compute(model, pixels) {
  const images = new ort.Tensor("uint8", pixels, [1, ...page.input]);
  const output = (await model.run({ images }))[model.outputNames[0]];
  return { data: output.data, dims: output.dims };
}

/** Show what the network says about a picture; `source` is a blob or a promise of one. */
function classify(source, name) {
  const mine = ++turn;
  const current = () => mine === turn;
  forget();
  say(`Looking at ${name} …`);
  busy(true);
  queue = queue
    .catch(() => {}) // said when it happened
    .then(async () => {
      await ready;
      if (!current()) return;
      const pixels = await toPixels(await source, page.input);
      const scores = (await compute(network, pixels)).data;
      const milliseconds = await latency(pixels);
      const maps = layer && (await compute(layer, pixels));
      if (!current()) return;
      show(pixels, scores, milliseconds, name);
      if (maps) showResponses(pixels, maps);
    })
    .catch((error) => {
      if (current()) say(failure || `${name} cannot be classified: ${error.message}`, true);
    })
    .finally(() => current() && busy(false));
  return queue;
}

/** Milliseconds of one run, the mean of a few; a browser's clock is too coarse for one. */
async function latency(pixels) {
  const begin = performance.now();
  let runs = 0;
  let now = begin;
  while (runs < TIMING_RUNS && now - begin < TIMING_MS) {
    await compute(network, pixels);
    runs += 1;
    now = performance.now();
  }
  return { mean: (now - begin) / runs, runs };
}

// ── showing ─────────────────────────────────────────────────────────────────────────────────────────────

function say(text, problem = false) {
  at("status").textContent = text;
  at("status").classList.toggle("problem", problem);
}

function busy(state) {
  document.querySelector("main").setAttribute("aria-busy", String(state));
}

function forget() {
  busy(false);
  at("result").hidden = at("responses").hidden = true;
  for (const pressed of document.querySelectorAll("[aria-pressed=true]")) pressed.setAttribute("aria-pressed", "false");
}

function show(pixels, scores, { mean, runs }, name) {
  const largest = Math.max(...scores);
  const exponentials = Array.from(scores, (score) => Math.exp(score - largest));
  const sum = exponentials.reduce((a, b) => a + b);
  const ranked = exponentials.map((value, index) => ({ share: value / sum, index })).sort((a, b) => b.share - a.share);
  const rows = ranked.slice(0, SHOWN_CLASSES).map(({ share, index }) => row(page.classes[index], share));
  const rest = ranked.slice(SHOWN_CLASSES);
  if (rest.length) rows.push(row(`${rest.length} other classes`, rest.reduce((total, { share }) => total + share, 0)));
  at("classes").replaceChildren(...rows);
  at("classes").dataset.scores = JSON.stringify(Array.from(scores));
  paint(at("seen"), pixels);
  at("latency").textContent = `${mean.toFixed(mean < 10 ? 2 : 0)} ms a picture, the mean of ${runs} runs on one thread.`;
  at("result").hidden = false;
  const best = ranked[0];
  say(`${name}: most likely ${page.classes[best.index]}, ${percent(best.share)}.`);
}

function row(name, share) {
  const fill = element("i");
  fill.style.width = `${100 * share}%`;
  const bar = element("span", { className: "bar" }, fill);
  return element("li", {}, element("span", { textContent: name }), element("span", { textContent: percent(share) }), bar);
}

/** The templates that are nearest at most positions, and where. */
function showResponses(pixels, { data, dims }) {
  const [, count, height, width] = dims;
  const positions = height * width;
  const best = new Float32Array(positions).fill(-Infinity);
  let gaps = 0;
  for (let i = 0; i < positions; i++) {
    let mean = 0;
    for (let l = 0; l < count; l++) {
      const similarity = data[l * positions + i];
      best[i] = Math.max(best[i], similarity);
      mean += similarity / count;
    }
    gaps += (best[i] - mean) / positions;
  }
  const found = Array.from({ length: count }, (_, l) => {
    // 1 where no other is more similar, and falling with the distance to the one that is
    const heat = Float32Array.from(best, (most, i) => Math.exp((-8 * (most - data[l * positions + i])) / (gaps || 1)));
    const wins = heat.reduce((total, value) => total + (value === 1), 0);
    return { l, heat, share: wins / positions, mean: heat.reduce((a, b) => a + b) / positions };
  });
  found.sort((a, b) => b.share - a.share || b.mean - a.mean);
  const shown = found.slice(0, SHOWN_TEMPLATES).map((response, rank) => {
    const where =
      positions === 1
        ? `similarity ${Number(data[response.l].toPrecision(3))}` + (rank ? "" : ", the most similar")
        : `the most similar at ${percent(response.share)} of the positions`;
    const caption = `Template ${response.l + 1}: ${where}.`;
    const pictures = [tile(response.l)];
    if (positions > 1) pictures.push(heatMap(pixels, response.heat, height, width, caption));
    return element("li", {}, element("div", { className: "pair" }, ...pictures), element("p", { textContent: caption }));
  });
  const size = page.templates.tile.toReversed().join("×");
  at("responses-note").textContent =
    positions === 1
      ? `The picture is compared with ${count} templates. These are the most similar ones.`
      : `Every patch of ${size} pixels is compared with ${count} templates. The small picture is a template` +
        (page.templates.patches ? " (the mean of the patches that are most like it). " : ". ") +
        "Orange is where it is the most similar of all, or nearly so.";
  at("templates").replaceChildren(...shown);
  at("responses").hidden = false;
}

function tile(l) {
  const [height, width] = page.templates.tile;
  const drawn = canvas(width, height);
  drawn.className = "tile";
  drawn.setAttribute("aria-hidden", "true");
  drawn.getContext("2d").drawImage(tiles, l * width, 0, width, height, 0, 0, width, height);
  return drawn;
}

/** The picture in grey, and over it the heat, each value at the middle of its patch. */
function heatMap(pixels, heat, height, width, caption) {
  const { tile: [side], stride, padding } = page.templates;
  const small = canvas(width, height);
  const colors = new ImageData(width, height);
  heat.forEach((value, i) => colors.data.set([240, 120, 20, Math.round(215 * value)], 4 * i));
  small.getContext("2d").putImageData(colors, 0, 0);
  const zoom = 6;
  const drawn = canvas(page.input[2] * zoom, page.input[1] * zoom);
  drawn.className = "heat";
  drawn.setAttribute("role", "img");
  drawn.setAttribute("aria-label", caption);
  const context = drawn.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(paint(canvas(1, 1), pixels, true), 0, 0, drawn.width, drawn.height);
  const border = zoom * ((side - stride) / 2 - padding);
  context.drawImage(small, border, border, zoom * stride * width, zoom * stride * height);
  return drawn;
}

function paint(target, pixels, grey = false) {
  const [channels, height, width] = page.input;
  const size = height * width;
  const colors = new ImageData(width, height);
  for (let i = 0; i < size; i++) {
    let [red, green, blue] = [0, 1, 2].map((c) => pixels[(channels === 1 ? 0 : c) * size + i]);
    if (grey) red = green = blue = (red + green + blue) / 3;
    colors.data.set([red, green, blue, 255], 4 * i);
  }
  target.width = width;
  target.height = height;
  target.getContext("2d").putImageData(colors, 0, 0);
  return target;
}

function canvas(width, height) {
  return element("canvas", { width, height });
}

function element(kind, properties = {}, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

// ── what a person does ──────────────────────────────────────────────────────────────────────────────────

function take(files, otherwise) {
  if (files.length) return classify(files[0], files[0].name);
  turn += 1;
  forget();
  say(otherwise, true);
}

at("file").addEventListener("change", (event) => {
  const files = Array.from(event.target.files);
  event.target.value = ""; // so that the same file can be chosen again
  if (files.length) take(files);
});
document.addEventListener("paste", (event) => take(event.clipboardData.files, "What was pasted is not a picture."));
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  at("drop").classList.add("over");
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) at("drop").classList.remove("over");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  at("drop").classList.remove("over");
  take(event.dataTransfer.files, "What was dropped is not a picture file.");
});
