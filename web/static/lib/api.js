// Requests to the API, which send and return JSON. A refused request throws an ApiError with the field that the server
// names.

import { reach } from "./reach.js";

/** @typedef {{message: string, code?: string, field?: string, allowed?: string}} Refusal */

export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {Refusal} refusal
   */
  constructor(status, { message, code, field, allowed }) {
    super(message);
    this.status = status;
    this.code = code;
    this.field = field;
    this.allowed = allowed;
  }
}

/** @param {unknown} error */
export function messageOf(error) {
  return error instanceof Error ? error.message : String(error);
}

/**
 * The error message, with the allowed values if the server lists them.
 * @param {unknown} error
 */
export function describe(error) {
  return error instanceof ApiError && error.allowed ? `${error.message} (allowed: ${error.allowed})` : messageOf(error);
}

/**
 * @param {string} url
 * @param {{signal?: AbortSignal}} [options]
 */
export function get(url, { signal } = {}) {
  return request(url, { signal });
}

/**
 * @param {string} method
 * @param {string} url
 * @param {unknown} [body]
 */
export function send(method, url, body) {
  /** @type {Record<string, string>} */
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  return request(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
}

/**
 * @param {string} url
 * @param {RequestInit & {headers?: Record<string, string>}} options
 * @returns {Promise<any>} the response's JSON; each caller states its type
 */
async function request(url, options) {
  const answer = await reach(url, { ...options, headers: { Accept: "application/json", ...options.headers } });
  if (answer.status === 204) return null;
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw refused(answer.status, body);
  return body;
}

/**
 * @param {number} status
 * @param {{error?: Refusal} | null} body
 */
function refused(status, body) {
  return new ApiError(status, body?.error ?? { message: `the server answered ${status}` });
}

/**
 * The ApiError for a refused request to an address whose successful responses are not JSON.
 * @param {Response} answer
 */
export async function refusal(answer) {
  return refused(answer.status, await answer.json().catch(() => null));
}
