export * from './fastify.cjs';
