// Pictures and sounds that are chosen, pasted or dropped, as they are sent.

import { Failure, trouble } from "./api.js";
import { el, icon, iconButton, number, say, word } from "./dom.js";

const SIDE = 1536; // pixels of a picture's longer side: models look at fewer
const BYTES = 500_000; // of a picture that is sent as it is
const QUALITY = 0.85; // of one that is made smaller, as JPEG
const READ = /^image\/(png|jpeg|webp|gif|bmp)$/; // what the server reads
const MOST = 8; // pictures of a message

/** A file as a `data:` URL. */
const urlOf = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Failure(word("no-file", { name: file.name })));
    reader.readAsDataURL(file);
  });

/** A picture with its `url`, `name`, `width` and `height`; a large one is made smaller. */
async function readPicture(file) {
  const found = await createImageBitmap(file).catch(() => {
    throw new Failure(word("no-picture", { name: file.name }));
  });
  const scale = Math.min(1, SIDE / Math.max(found.width, found.height));
  const [width, height] = [found.width, found.height].map((side) => Math.max(1, Math.round(side * scale)));
  const asItIs = scale === 1 && file.size <= BYTES && READ.test(file.type);
  const url = asItIs ? await urlOf(file) : smaller(found, width, height);
  found.close();
  return { url, name: file.name, width, height };
}

function smaller(picture, width, height) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // JPEG has no transparency
  context.fillRect(0, 0, width, height);
  context.drawImage(picture, 0, 0, width, height);
  return canvas.toDataURL("image/jpeg", QUALITY);
}

/** Give the files that are pasted, or dropped, while a view is shown. */
export function onFiles(view, give) {
  const holds = (event, data) => !view.hidden && event[data]?.types.includes("Files");
  const on = (kind, act) => document.addEventListener(kind, act);
  on("dragover", (event) => {
    if (!holds(event, "dataTransfer")) return;
    event.preventDefault();
    view.classList.add("dropping");
  });
  on("dragleave", (event) => event.relatedTarget || view.classList.remove("dropping"));
  for (const [kind, data] of [["drop", "dataTransfer"], ["paste", "clipboardData"]]) {
    on(kind, (event) => {
      view.classList.remove("dropping");
      if (!holds(event, data) || (kind === "paste" && event[data].types.includes("text/plain"))) return; // a text with its picture
      event.preventDefault();
      give(event[data].files);
    });
  }
}

const thumb = ({ url, name }) => [el("img", { src: url, alt: "" }), el("bdi", { class: "name", title: name }, name)];

/** Small pictures with their names. */
export const thumbs = (pictures) => el("ul", { class: "thumbs", label: "pictures" }, ...pictures.map((each) => el("li", {}, ...thumb(each))));

/** Pictures that will be sent, each with a button that takes it away; `home` has the keyboard when the last has gone. */
export class Tray {
  constructor(home, pictures = []) {
    Object.assign(this, { home, pictures: [...pictures], node: el("div", { class: "tray" }) });
    this.draw();
  }

  draw(...more) {
    const items = this.pictures.map((each) => {
      const away = iconButton("close", "remove", () => this.remove(each), { name: each.name });
      return el("li", {}, ...thumb(each), away);
    });
    const list = items.length ? [el("ul", { class: "thumbs", label: "pictures" }, ...items)] : [];
    this.node.replaceChildren(...list, ...more);
  }

  /** Add pictures, in their order; `ready` is when all are here. */
  add(files) {
    const given = Array.from(files); // which the browser may empty meanwhile
    this.ready = Promise.resolve(this.ready).then(() => this.read(given));
    return this.ready;
  }

  async read(files) {
    const wrong = [];
    for (const file of files) {
      try {
        if (this.pictures.length >= MOST) throw new Failure(word("most-pictures", { most: number(MOST) }));
        this.pictures.push(await readPicture(file));
        say(word("attached", { name: file.name }));
      } catch (error) {
        wrong.push(trouble(error));
      }
    }
    this.draw(...wrong.slice(0, 1));
  }

  remove(picture) {
    const place = this.pictures.indexOf(picture);
    this.pictures.splice(place, 1);
    this.draw();
    const rest = this.node.querySelectorAll("button");
    (rest[Math.min(place, rest.length - 1)] ?? this.home).focus();
    say(word("removed", { name: picture.name }));
  }

  /** The pictures, which are here no more. */
  take() {
    const found = this.pictures;
    this.pictures = [];
    this.draw();
    return found;
  }
}

/** A field for one picture or sound: `chosen` is a promise of it, or of nothing. */
export function fileField({ accept, optional }) {
  const isPicture = accept === "image/*";
  const input = el("input", { type: "file", class: "unseen", required: !optional, accept });
  const none = () => el("span", { class: "quiet", word: "no-file-yet" });
  const shown = el("span", { class: "shown" }, none());
  const button = el("span", { class: "button" }, icon(isPicture ? "attach" : "sound"), el("span", { word: "choose" }));
  const node = el("span", { class: "drop" }, button, shown, input);
  const draw = async () => {
    const [file] = input.files;
    const reads = isPicture ? readPicture : async () => ({ url: await urlOf(file), name: file.name });
    node.chosen = file && reads(file);
    try {
      const found = await node.chosen;
      if (input.files[0] !== file) return; // another has been chosen meanwhile
      shown.replaceChildren(...(!found ? [none()] : found.width ? thumb(found) : [el("bdi", { class: "name" }, found.name)]));
    } catch (error) {
      shown.replaceChildren(trouble(error));
    }
  };
  input.addEventListener("change", draw);
  return Object.assign(node, {
    give(files) {
      input.files = files;
      draw();
    },
  });
}
