"use strict";
// Draws what /events says. Text from outside only ever becomes text (textContent), never markup.

const STAGES = {
  queue: "its turn had not come",
  read: "storage, checks, parsing",
  ready: "waits for a thread that makes",
  make: "decode, crop, resize, flip",
  send: "until network or trainer has it",
};
const MOODS = { trainer: "good", nobody: "" };
const HISTORY = 180;
const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "rect", "line", "image", "title"]);

const $ = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const count = (value) => whole.format(value);
// As feeder/figures.py: nothing at all is 0 %, all of it 100 %.
const percent = (share) => (share > 0 && share < 0.01 ? "under 1 %" : share > 0.99 && share < 1 ? "over 99 %" : `${Math.round(share * 100)} %`);
const plural = (value, one, many = one + "s") => `${count(value)} ${value === 1 ? one : many}`;

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return [value >= 100 || unit === 0 ? count(value) : String(Number(value.toPrecision(3))), units[unit]];
}
const size = (value) => bytes(value).join(" ");

function seconds(value) {
  if (value < 0.001) return `${count(value * 1e6)} µs`;
  if (value < 1) return `${Number((value * 1e3).toPrecision(3))} ms`;
  return `${Number(value.toPrecision(3))} s`;
}

function since(value) {
  if (value < 120) return `${count(value)} s`;
  if (value < 7200) return `${Math.floor(value / 60)} min`;
  return value < 172800 ? `${Math.floor(value / 3600)} h` : `${Math.floor(value / 86400)} days`;
}

// --- Charts: the last three minutes, a point a second.

function above(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 1.5, 2, 3, 5, 7.5, 10].map((step) => step * power).find((step) => step >= value) || 1;
}

function chart(host, values, top, say) {
  const span = Math.min(HISTORY, Math.max(60, values.length));
  const x = (index) => 100 * (1 - (values.length - 1 - index) / (span - 1));
  const y = (value) => 40 - (40 * value) / top;
  const points = values.map((value, index) => `${x(index).toFixed(2)},${y(value).toFixed(2)}`);
  const low = Math.min(...values), high = Math.max(...values), now = values[values.length - 1];
  const text = `Over the last ${since(Math.max(values.length, 1))}: now ${say(now)}, lowest ${say(low)}, highest ${say(high)}.`;
  const svg = make("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img", "aria-label": text });
  for (const level of [0.5, 1]) svg.append(make("line", { class: "grid", x1: 0, x2: 100, y1: y(level * top), y2: y(level * top) }));
  svg.append(make("line", { class: "grid", x1: 0, x2: 100, y1: 40, y2: 40 }));
  if (points.length) {
    svg.append(make("path", { class: "area", d: `M${x(0)},40L${points.join("L")}L100,40Z` }));
    svg.append(make("path", { class: "line", d: `M${points.join("L")}` }));
  }
  const scale = make("div", { class: "scale", "aria-hidden": "true" }, say(top));
  const ends = make("div", { class: "ends", "aria-hidden": "true" }, make("span", {}, `${since(span)} ago`), make("span", {}, "now"));
  host.replaceChildren(scale, svg, ends);
}

function big(id, value, unit) {
  $(id).replaceChildren(value, make("small", {}, unit));
}

const moments = [];

function drawCharts(sample) {
  const [, images, sent] = moments[moments.length - 1];
  big("images-now", count(images), "images/s");
  const rate = bytes(sent);
  big("bytes-now", rate[0], `${rate[1]}/s to trainers`);
  big("busy-now", sample.busy === null ? "–" : percent(sample.busy), "of their time");
  const column = (index) => moments.map((moment) => moment[index]);
  chart($("images-chart"), column(1), above(Math.max(...column(1), 10)), (value) => `${count(value)}/s`);
  chart($("bytes-chart"), column(2), above(Math.max(...column(2), 1e6)), (value) => `${size(value)}/s`);
  chart($("busy-chart"), column(3), 1, percent);
}

// --- Where time goes, who waits.

function drawStages(stages) {
  const total = stages.reduce((sum, stage) => sum + (stage.mean_s || 0), 0);
  const bar = $("stages-bar");
  $("stages-total").textContent = total ? `${seconds(total)} in all` : "";
  if (bar.children.length !== stages.length) {
    bar.replaceChildren(...stages.map((stage) => make("span", { class: stage.name in STAGES ? stage.name : "queue" })));
  }
  stages.forEach((stage, index) => { bar.children[index].style.flexGrow = total ? (stage.mean_s || 0) / total : 0; });
  $("stages").replaceChildren(...stages.map((stage) => make("tr", {},
    make("th", { scope: "row" },
      make("span", { class: `dot ${stage.name in STAGES ? stage.name : "queue"}`, "aria-hidden": "true" }),
      make("b", {}, stage.name), make("small", {}, STAGES[stage.name] || "")),
    make("td", { class: "number" }, stage.mean_s === null ? "–" : seconds(stage.mean_s)),
    make("td", { class: "number" }, stage.chunks === 0 ? "–" : stage.tail_s === null ? "longer" : seconds(stage.tail_s)))));
}

function meter(name, share, value, text, kind = "") {
  const fill = make("span", {});
  fill.style.width = `${100 * Math.min(1, Math.max(0, share || 0))}%`;
  return make("div", {}, make("dt", {}, name, make("b", {}, value)),
    make("dd", {}, make("span", { class: `meter ${kind}`, "aria-hidden": "true" }, fill), text));
}

function drawWaits(sample) {
  const owed = sample.consumers.reduce((sum, consumer) => sum + consumer.owed, 0);
  $("waits").replaceChildren(
    meter("This worker’s threads", sample.busy, sample.busy === null ? "–" : `${percent(sample.busy)} at work`,
      sample.busy === null ? "Nothing was made yet." : `Idle ${percent(1 - sample.busy)} of the time, waiting for requests or for storage.`),
    meter("Trainers", sample.waiting, sample.waiting === null ? "unknown" : `${percent(sample.waiting)} waiting`,
      sample.waiting === null ? (sample.streams ? "No client says how long it waits." : "None is connected.") : `At work with their batches ${percent(1 - sample.waiting)} of the time.`, "waiting"),
    meter("Streams", sample.streams / sample.max_streams, `${count(sample.streams)} of at most ${count(sample.max_streams)}`,
      `${plural(owed, "request")} open; ${size(sample.read_s)}/s read from shards.`));
  $("caches").replaceChildren(...(sample.caches.length ? sample.caches.map((cache) => meter(
    `Of ${cache.what}`, cache.bytes / (cache.budget || 1), `${size(cache.bytes)} of ${size(cache.budget)}`,
    `${cache.hits + cache.misses ? `${percent(cache.hits / (cache.hits + cache.misses))} hits since the start` : "Not asked yet"}`
    + `${cache.share === null ? "" : `, ${percent(cache.share)} lately`}${cache.full ? "; full" : ""}.`))
    : [make("div", {}, make("dt", {}, "None"), make("dd", {}, "Decoded images are not kept (--cache-bytes)."))]));
}

// --- Jobs.

// A table that is cards on a phone keeps what it means only where that is said (role).
function row(names, cells) {
  cells.forEach((cell, index) => {
    cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : "cell");
    cell.dataset.name = names[index];
  });
  return make("tr", { role: "row" }, ...cells);
}

const named = (consumer) => consumer.job || "a job whose name is hidden";

function lanesMap(job) {
  const svg = make("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img" });
  const said = [];
  for (const consumer of job) {
    const [first, last, lanes] = consumer.lanes;
    const x = (100 * first) / lanes, width = (100 * (last - first)) / lanes, done = consumer.done || 0;
    svg.append(make("rect", { class: "left", x, width, y: 0, height: 10 }));
    svg.append(make("rect", { class: "done", x, width, y: 10 - 10 * done, height: 10 * done }));
    if (first) svg.append(make("line", { class: "edge", x1: x, x2: x, y1: 0, y2: 10 }));
    said.push(`consumer ${consumer.index}: lanes ${first} to ${last - 1} of ${lanes}`
      + (consumer.done === null ? "" : `, ${percent(consumer.done)} of epoch ${consumer.epoch}`));
  }
  svg.setAttribute("aria-label", `Lanes served here. ${said.join("; ")}.`);
  const one = job[0], lanes = one.lanes[2];
  const covered = job.reduce((sum, consumer) => sum + consumer.lanes[1] - consumer.lanes[0], 0);
  const place = one.steps ? `step ${count(one.step % one.steps)} of ${count(one.steps)}` : `step ${count(one.step)}`;
  return make("figure", { class: "lanes" }, svg, make("figcaption", {},
    `Epoch ${count(one.epoch)}, ${place}. Left to right: ${covered === lanes ? `all ${count(lanes)} lanes` : `${count(covered)} of ${count(lanes)} lanes`}, `
    + `${plural(job.length, "consumer")}; filled as far as the epoch is.`));
}

function consumerRow(consumer) {
  const report = consumer.report;
  const cell = (text) => make("td", { class: "number" }, text);
  const of = (value) => cell(report ? count(value(report)) : "–");
  return row(["Consumer", ...HEADINGS], [
    make("th", { scope: "row" }, `${consumer.index} of ${consumer.count}`,
      make("small", {}, consumer.arena ? "memory shared on this host" : consumer.peer || "over the network")),
    cell(count(consumer.images_s)),
    cell(consumer.waiting === null ? "–" : percent(consumer.waiting)),
    cell(report ? `${count(report.ready)} of ${count(report.prefetch)}` : "–"),
    cell(count(consumer.owed)),
    of((all) => all.steps), of((all) => all.images), of((all) => all.substituted), of((all) => all.masked),
    of((all) => all.hedges), of((all) => all.retries), of((all) => all.workers),
  ]);
}

const HEADINGS = ["Images/s here", "Waits", "Ready", "Requests", "Steps", "Images", "Replaced", "Masked", "Hedged", "Retried", "Workers"];

function drawJobs(sample) {
  const jobs = new Map();
  for (const consumer of sample.consumers) {
    const key = JSON.stringify([consumer.job || consumer.number, consumer.dataset]);
    jobs.set(key, [...(jobs.get(key) || []), consumer]);
  }
  $("hidden").hidden = sample.names;
  // Each job keeps its scrolling region, and with it place and focus.
  const host = $("jobs"), old = new Map([...host.children].map((child) => [child.dataset.key, child]));
  const blocks = [...jobs].map(([key, job], number) => {
    const block = old.get(key) || make("div", { class: "job" });
    block.dataset.key = key;
    if (!block.children.length) {
      block.append(make("h3", {}), make("div", {}), make("div", { class: "wide", tabindex: 0, role: "region" },
        make("table", { class: "cards consumers", role: "table" },
          make("thead", { role: "rowgroup" }, make("tr", { role: "row" },
            make("th", { scope: "col", role: "columnheader" }, "Consumer"),
            ...HEADINGS.map((text) => make("th", { scope: "col", role: "columnheader", class: "number" }, text)))),
          make("tbody", { role: "rowgroup" }))));
    }
    const [title, map, wide] = block.children;
    const text = `${named(job[0])}, on ${job[0].dataset}`;
    if (title.textContent !== text) title.textContent = text;
    wide.setAttribute("aria-label", `Consumers of job ${number + 1}`);
    map.replaceChildren(lanesMap(job));
    wide.querySelector("tbody").replaceChildren(...job.map(consumerRow));
    return block;
  });
  if (!blocks.length) blocks.push(make("p", { class: "quiet" }, "No consumer is connected."));
  if (sample.unnamed) blocks.push(make("p", { class: "quiet" }, `And ${plural(sample.unnamed, "more consumer")}.`));
  if (blocks.length !== host.children.length || blocks.some((block, index) => host.children[index] !== block)) host.replaceChildren(...blocks);
}

function drawBad(sample) {
  $("bad-said").textContent = sample.bad_times === 0 ? "None since the start."
    : `${plural(sample.bad_times, "time")} since the start${sample.bad.length ? "; the newest first." : "."}`;
  $("bad-wide").hidden = !sample.bad.length;
  $("bad").replaceChildren(...sample.bad.map((bad) => row(["Data set", "Shard", "Record", "Reason"], [
    make("td", {}, bad.dataset), make("td", {}, bad.shard), make("td", { class: "number" }, count(bad.index)), make("td", {}, bad.reason),
  ])));
}

// --- Pictures.

function offerStreams(sample) {
  const options = sample.consumers.filter((consumer) => consumer.id)
    .map((consumer) => [consumer.id, `${named(consumer)}, consumer ${consumer.index}`]);
  const select = $("stream"), chosen = select.value;
  if (JSON.stringify(options) !== select.dataset.options) {
    select.dataset.options = JSON.stringify(options);
    const none = sample.names ? "no consumer is connected" : "names are hidden";
    select.replaceChildren(...(options.length ? options : [["", none]]).map(([id, text]) => make("option", { value: id }, text)));
    if (options.some(([id]) => id === chosen)) select.value = chosen;
  }
  if (!asking) $("show").disabled = select.disabled = !options.length;
}

function sourceOf(picture) {
  if (!picture.width) return make("div", { class: "none" }, "source not shown");
  const { width, height } = picture, [x, y, w, h] = picture.window;
  const svg = make("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Source of ${width} by ${height} pixels; the crop is ${w} by ${h} at ${x}, ${y}.`,
  });
  if (picture.source) svg.append(make("image", { href: picture.source, width, height, preserveAspectRatio: "none" }));
  svg.append(
    make("path", { class: "shade", "fill-rule": "evenodd", d: `M0,0H${width}V${height}H0ZM${x},${y}V${y + h}H${x + w}V${y}Z` }),
    make("rect", { class: "ring", x, y, width: w, height: h }), make("rect", { class: "crop", x, y, width: w, height: h }));
  return svg;
}

function figure(picture) {
  const label = picture.label === undefined ? picture.status : `label ${picture.label}`;
  const crop = picture.crop
    ? make("img", { src: picture.crop, alt: `Crop as delivered${picture.flip ? ", mirrored" : ""}` })
    : make("div", { class: "none" }, picture.status === "padding" ? "padding" : "masked: black");
  const words = [];
  if (picture.shard) words.push(`${picture.shard}, record ${picture.index}`);
  if (picture.window) words.push(`${picture.window[2]} × ${picture.window[3]} of ${picture.width} × ${picture.height}`);
  if (picture.flip) words.push("mirrored");
  if (picture.status === "substitute") words.push("stands in for a bad record");
  if (picture.reason) words.push(picture.reason);
  return make("figure", { class: "picture" }, sourceOf(picture), crop,
    make("figcaption", {}, make("b", {}, label), words.length ? ` · ${words.join(" · ")}` : ""));
}

let asking = false;

async function showPictures(event) {
  event.preventDefault();
  asking = true;
  $("show").disabled = true;
  $("batch-said").textContent = "Reading …";
  try {
    const answer = await fetch(`/pictures?stream=${encodeURIComponent($("stream").value)}`);
    const made = await answer.json();
    if (!answer.ok) throw new Error(made.error);
    $("pictures").replaceChildren(...made.pictures.map(figure));
    $("batch-said").textContent = `Epoch ${count(made.epoch)}, step ${count(made.step)}: ${plural(made.pictures.length, "picture")}, `
      + `each source with its crop, and the crop of ${made.size} × ${made.size} pixels as delivered.`;
  } catch (error) {
    $("batch-said").textContent = `${error.message}.`;
  } finally {
    asking = false;
    $("show").disabled = false;
  }
}

// --- Events.

let limits = null;

function drawVerdicts(verdicts) {
  const several = verdicts.length > 1;
  const texts = verdicts.map(({ jobs, sentence }) => (several && jobs.length ? `${jobs.join(", ")}: ${sentence}` : sentence));
  $("sentence").replaceChildren(...texts.map((text) => make("span", {}, text)));
  const now = verdicts.map((verdict) => verdict.limit).join();
  if (now === limits) return;
  limits = now;
  $("limit").className = `live limit ${several ? "warn" : MOODS[now] ?? "warn"}`;
  $("said").textContent = texts.join(" ");  // screen readers hear changes, not each second's figures
}

function draw(sample) {
  if (!moments.length || moments[moments.length - 1][0] !== sample.moment[0]) moments.push(sample.moment);
  if (moments.length > HISTORY) moments.shift();
  setState(sample.draining ? "draining" : "serving", sample.draining ? "draining" : "serving");
  $("uptime").textContent = `for ${since(sample.uptime_s)}, ${plural(sample.images, "image")} so far`;
  drawVerdicts(sample.verdicts);
  drawCharts(sample);
  drawStages(sample.stages);
  drawWaits(sample);
  drawJobs(sample);
  drawBad(sample);
  offerStreams(sample);
}

function setState(kind, text) {
  document.documentElement.classList.toggle("stale", kind === "lost");
  $("state").className = `pill ${kind}`;
  $("state").textContent = text;
}

// What was drawn stays, faded: it is the last that is known.
function lose(text) {
  if (!document.documentElement.classList.contains("stale")) {
    $("uptime").textContent = `since ${new Date().toLocaleTimeString()}; the figures are its last`;
    $("said").textContent = `The worker: ${text}.`;
  }
  setState("lost", text);
}

function watch() {
  const events = new EventSource("/events");
  events.addEventListener("history", (event) => { moments.splice(0, moments.length, ...JSON.parse(event.data)); });
  events.addEventListener("sample", (event) => draw(JSON.parse(event.data)));
  events.addEventListener("end", () => lose("ended"));
  events.addEventListener("error", () => {
    lose("no answer");
    if (events.readyState === EventSource.CLOSED) setTimeout(watch, 5000);  // refused: the browser does not try again
  });
}

document.documentElement.classList.add("js");
$("pick").addEventListener("submit", showPictures);
watch();
