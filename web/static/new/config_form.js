// Converts between form fields and the run configuration. Pure functions on plain objects.

/**
 * The value that a field's text represents. Text that is not a number stays text, and the server explains why it
 * refuses the text.
 * @param {string | undefined} type the field's data-type
 * @param {string} text
 * @param {boolean} [checked]
 */
export function parseField(type, text, checked = false) {
  if (type === "boolean") return checked;
  const trimmed = text.trim();
  if (type === "tags")
    return trimmed
      ? trimmed
          .split(",")
          .map((t) => t.trim())
          .filter(Boolean)
      : [];
  if (trimmed === "") return null;
  if (type === "list") return parseGrid(trimmed);
  if (type === "pair") return trimmed.split(/[\s,;]+/).map((part) => toNumber(part));
  if (type === "integer" || type === "number") return toNumber(trimmed);
  return trimmed;
}

/** @param {string} text */
export function toNumber(text) {
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}

/**
 * @param {Record<string, any>} target
 * @param {string} path
 * @param {unknown} value
 */
export function setPath(target, path, value) {
  const names = path.split(".");
  const last = names.pop() ?? "";
  let at = target;
  for (const name of names) at = at[name] ??= {};
  at[last] = value;
}

/**
 * @param {object} target
 * @param {string} path
 * @returns {unknown} undefined if the path does not exist
 */
export function getPath(target, path) {
  return path.split(".").reduce((/** @type {any} */ at, name) => at?.[name], target);
}

/**
 * The parts of `config` that differ from `defaults`; always includes the whole task.
 * @param {Record<string, any>} config
 * @param {Record<string, any> | undefined} defaults
 */
export function differences(config, defaults) {
  /** @type {Record<string, any>} */
  const out = {};
  for (const [key, value] of Object.entries(config)) {
    const usual = defaults?.[key];
    if (key === "task") out.task = value;
    else if (value !== null && typeof value === "object" && !Array.isArray(value)) {
      const inner = differences(value, usual);
      if (Object.keys(inner).length) out[key] = inner;
    } else if (JSON.stringify(value) !== JSON.stringify(usual)) out[key] = value;
  }
  return out;
}

/**
 * The shortest form of a layer's section: only the layer's name if all options have their default values.
 * @param {Record<string, any>} section
 * @param {Record<string, any> | undefined} usual the default section of this layer
 * @returns {string | Record<string, any>}
 */
export function sectionOf({ name, ...options }, usual) {
  /** @type {Record<string, any>} */
  const out = {};
  for (const [option, value] of Object.entries(options)) {
    const of = usual?.name === name ? usual?.[option] : undefined;
    if (value !== null && typeof value === "object" && !Array.isArray(value)) {
      const inner = sectionOf(value, of?.name === value.name ? of : { name: value.name });
      if (typeof inner === "object" || inner !== of?.name)
        out[option] = typeof inner === "object" ? inner : { name: inner };
    } else if (JSON.stringify(value) !== JSON.stringify(of ?? null)) out[option] = value;
  }
  return Object.keys(out).length ? { name, ...out } : name;
}

/**
 * The request for a whole configuration: the settings that differ from the defaults. Each layer has its own defaults.
 * @param {Record<string, any>} config with `model.layer` as a section; `model.layers` replaces it
 * @param {Record<string, any>} defaults
 * @param {Record<string, Record<string, any>>} sections the default section of every layer
 */
export function sentOf(config, defaults, sections) {
  const { layer, ...model } = config.model;
  const name = model.layers ? null : layer.name;
  const native = { ...defaults.model.reparameterization, name: "native", time: null };
  const usual =
    name === "stable_ssm" ? defaults : { ...defaults, model: { ...defaults.model, reparameterization: native } };
  const out = differences({ ...config, model }, usual);
  return name === null || name === "stable_ssm"
    ? out
    : { ...out, model: { layer: sectionOf(layer, sections[name]), ...out.model } };
}

/**
 * Parses "0.1, 0.01" as numbers, "best, exp" as strings, "[0.5, 0.9], [0.1, 0.9]" as lists, "true" and "null" as JSON
 * values; returns null for an empty field.
 * @param {string} text
 */
export function parseGrid(text) {
  try {
    const values = JSON.parse(`[${text}]`);
    return values.length ? values : null;
  } catch {
    const parts = text
      .split(",")
      .map((part) => part.trim())
      .filter(Boolean);
    return parts.length ? parts.map(valueOf) : null;
  }
}

/** @param {string} text */
function valueOf(text) {
  if (text === "true" || text === "false") return text === "true";
  return text === "null" ? null : toNumber(text);
}
