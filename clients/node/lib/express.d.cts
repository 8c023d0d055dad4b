import type { IncomingMessage, ServerResponse } from 'node:http';
import type { HttpOptions } from './http.cjs';
import type { Claim } from './index.cjs';

export { SHARED, type HttpOptions } from './http.cjs';

/** Middleware for Express and Connect, behind the parser of the body. `request.onceClaim` is the claim. */
export function onceExpress<Request extends IncomingMessage = any>(
  options: HttpOptions<Request>,
): (request: Request & { onceClaim?: Claim }, response: ServerResponse, next: (error?: unknown) => void) => Promise<void>;
