// What was found in a picture, marked over it, beside a list that says it in words.

import { el, number } from "./dom.js";

const COLOURS = 8; // that page.css has for marks
const SEEN = 128; // pixels of a side of a mask that are looked at

/** Boxes, or masks, over their picture; each has a number, and choosing it in the list shows it alone. */
export async function drawn(items, { url, width, height }) {
  const image = el("img", { src: url, label: "found", places: { count: number(items.length) } });
  const frame = el("div", { class: "frame" }, image);
  const list = el("ol", { class: "found" });
  const best = items.toSorted((one, other) => (other.score ?? 0) - (one.score ?? 0));
  for (const [place, item] of best.entries()) {
    const tag = () => el("span", { class: "tag" }, number(place + 1));
    const { mark, share } = item.box ? { mark: box(item.box, width, height, tag()) } : await tint(item.mask, tag());
    image.after(mark); // below those of larger scores
    const told = [el("bdi", { class: "name" }, item.label ?? item.answer)];
    if (share !== undefined) told.push(el("span", { class: "quiet", word: "share", places: { share: number(share * 100, 1) } }));
    if (item.score != null) told.push(el("span", { class: "score" }, number(item.score, 3)));
    const button = el("button", { type: "button", "aria-pressed": "false" }, tag(), ...told);
    button.addEventListener("click", () => (button.ariaPressed = mark.classList.toggle("alone")));
    for (const each of [mark, button]) each.style.setProperty("--mark", `var(--mark-${place % COLOURS})`);
    list.append(el("li", {}, button));
  }
  return el("div", { class: "drawn" }, frame, list);
}

/** A box, the part of it that is within the picture. */
function box({ xmin, ymin, xmax, ymax }, width, height, tag) {
  const within = (value, most) => `${(Math.min(Math.max(value / most, 0), 1) * 100).toFixed(2)}%`;
  const mark = el("div", { class: ymin / height > 0.1 ? "mark box" : "mark box high", "aria-hidden": "true" }, tag);
  const sides = { left: within(xmin, width), top: within(ymin, height), right: within(width - xmax, width), bottom: within(height - ymax, height) };
  Object.assign(mark.style, sides);
  return mark;
}

/** A mask in its colour, with its tag about its middle; and the share of the picture that it covers. */
async function tint(url, tag) {
  const { share, x, y } = await extent(url);
  Object.assign(tag.style, { left: `${x * 100}%`, top: `${y * 100}%` });
  const area = el("div", { class: "tint" });
  area.style.maskImage = `url("${url}")`;
  return { mark: el("div", { class: "mark mask", "aria-hidden": "true" }, area, tag), share };
}

/** The share of a picture that a mask covers, and of the places that it covers the one nearest to their middle. */
async function extent(url) {
  const image = Object.assign(new Image(), { src: url });
  await image.decode();
  const context = new OffscreenCanvas(SEEN, SEEN).getContext("2d");
  context.drawImage(image, 0, 0, SEEN, SEEN);
  const { data } = context.getImageData(0, 0, SEEN, SEEN);
  const inside = [];
  for (let at = 0; at < SEEN * SEEN; at += 1) if (data[4 * at] > 127) inside.push({ x: at % SEEN, y: Math.floor(at / SEEN) });
  const mean = (side) => inside.reduce((sum, each) => sum + each[side], 0) / inside.length;
  const [x, y] = [mean("x"), mean("y")];
  const away = (each) => Math.hypot(each.x - x, each.y - y);
  const middle = inside.reduce((one, other) => (away(other) < away(one) ? other : one), inside[0] ?? { x: SEEN / 2, y: SEEN / 2 });
  return { share: inside.length / SEEN ** 2, x: (middle.x + 0.5) / SEEN, y: (middle.y + 0.5) / SEEN };
}
