export * from './web.cjs';
