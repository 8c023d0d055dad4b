import type { FastifyPluginAsync, FastifyRequest } from 'fastify';
import type { HttpOptions } from './http.cjs';
import type { Claim } from './index.cjs';

export { SHARED, type HttpOptions } from './http.cjs';

declare module 'fastify' {
  interface FastifyRequest {
    /** Of a request that is protected. */
    onceClaim: Claim | null;
  }
}

/** A plugin: `app.register(onceFastify, { once, principal })`. Its hooks are those of the application that registers it. */
export const onceFastify: FastifyPluginAsync<HttpOptions<FastifyRequest>>;
