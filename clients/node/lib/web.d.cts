import type { HttpOptions } from './http.cjs';

export { SHARED, type HttpOptions } from './http.cjs';

export interface RouteOptions<R extends Request = any> extends HttpOptions<R> {
  /** A larger body is refused by 413, because it is read before the handler runs. Default: 1 MiB. */
  maxRequestBytes?: number;
}

/** The same handler of a web-standard Request, such as a route handler of Next.js, which runs once for each key. */
export function onceRoute<R extends Request, More extends unknown[]>(
  options: RouteOptions<R>,
  handler: (request: R, ...more: More) => Response | Promise<Response>,
): (request: R, ...more: More) => Promise<Response>;
