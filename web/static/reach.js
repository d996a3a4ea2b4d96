// The way to the server: says to the whole page when it cannot be reached, and when it can again.

/** A request that got no answer; what it asked for may or may not have been done. */
export class Unreachable extends Error {
  constructor() {
    super("the server cannot be reached: it may be stopped or restarting, or the network is down. Try again when it is back");
  }
}

export const AWAY = "server-away";
export const HERE = "server-here";

/**
 * As fetch; what stands between us and the server when it is away (a proxy's 502 to 504) counts as no answer.
 * @param {string} url
 * @param {RequestInit} [options]
 */
export async function reach(url, options) {
  let answer;
  try {
    answer = await fetch(url, options);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    dispatchEvent(new Event(AWAY));
    throw new Unreachable();
  }
  if ([502, 504].includes(answer.status)) {
    dispatchEvent(new Event(AWAY));
    throw new Unreachable();
  }
  dispatchEvent(new Event(HERE));
  return answer;
}
