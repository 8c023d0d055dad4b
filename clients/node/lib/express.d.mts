export * from './express.cjs';
