// Requests to the server; events tell the whole page when the server cannot be reached and when it answers again.

/** A request without an answer. The server may or may not have acted on it. */
export class Unreachable extends Error {
  constructor() {
    super(
      "the server cannot be reached: it may be stopped or restarting, or the network is down. Try again when it is back",
    );
  }
}

export const AWAY = "server-away";
export const HERE = "server-here";

/**
 * Like fetch, but a proxy's status 502 or 504 is treated as no answer.
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
